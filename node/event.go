package node

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/topology"
)

// Event is something that happened to this node. The shell reports it to
// Machine.Step.
type Event interface{ event() }

// Wake reports that the machine's deadline has passed.
type Wake struct{}

// ViewChanged replaces the node's view of the ring, self included.
type ViewChanged struct{ View topology.View }

// PeerUp reports that a peer's control connections stand in both directions.
type PeerUp struct {
	Node kevlard.NodeID
	Boot kevlard.BootID
}

// PeerDown reports that a connection to a peer broke (cause "reset", "keepalive").
// The shell reports it at once: it is the fastest evidence of a killed host.
type PeerDown struct {
	Node  kevlard.NodeID
	Cause string
}

// Received is one control message from a peer, or from this node itself.
type Received struct {
	From    kevlard.NodeID
	Boot    kevlard.BootID
	Message protocol.Message
}

// Arrived is one frame of work for this node's stages.
type Arrived struct {
	From  kevlard.NodeID
	Boot  kevlard.BootID
	Frame protocol.Frame
}

// SendFailed reports that a Send or SendFrame could not even be queued.
type SendFailed struct {
	Node    kevlard.NodeID
	Cause   SendCause
	Session kevlard.SessionID // of the message, if it has one
}

// SendCause says why something could not be sent.
type SendCause string

// The causes. The zero value is SendReset.
const (
	SendReset    SendCause = ""         // there is no connection
	SendFull     SendCause = "full"     // the peer's queue is full
	SendOversize SendCause = "oversize" // no message of this size is sent
)

// EngineReady reports that an engine has loaded its stage. Cells is the number
// of KV positions granted to it.
type EngineReady struct {
	Stage kevlard.StageKey
	Run   uint64 // from StartEngine
	Class string
	Cells int
	Width int // bytes of one row of hidden state
	// CellBytes is the bytes of one position's KV in all layers of the stage; 0 if it
	// can't be copied.
	CellBytes int
}

// EngineLoading reports load progress in permille.
type EngineLoading struct {
	Stage    kevlard.StageKey
	Run      uint64
	Progress int
	Waits    bool // for something that shows no progress and will end
}

// EngineExited reports that an engine process is gone, or could not be started.
type EngineExited struct {
	Stage     kevlard.StageKey
	Run       uint64
	Poisonous bool   // ABRT, SEGV, BUS, FPE, ILL or an error exit: the batch may be at fault
	Reason    string // for people: "signal: killed", last words on stderr
}

// BatchDone reports the result of RunBatch: Rows has one entry for each part (at
// the last stage nil), Sampled one for each part that sampled, in order.
type BatchDone struct {
	Stage   kevlard.StageKey
	Run     uint64
	Batch   uint64
	Rows    [][]byte
	Sampled []kevlard.Sampled
}

// Submit hands a new session to this node, which becomes its owner. The shell
// chose an id that is not in use and has checked the request against the model.
type Submit struct {
	Session kevlard.SessionID
	Request Request
	// Client is a number of the shell's own, here and in Resume and Follow. What it says of
	// a client later must have its number: a word of one that is gone, which comes late, does
	// not concern another that has the session meanwhile.
	Client uint64
}

// Request is what a client asked for.
type Request = session.Request

// Cancel ends a session: its client is gone, or has what it wanted.
type Cancel struct {
	Session kevlard.SessionID
	Client  uint64 // see Submit
}

// Pause says that a session's client is gone. The session stops, and can be resumed for
// a while, if it has an envelope; else it ends.
type Pause struct {
	Session kevlard.SessionID
	Client  uint64 // see Submit
}

// Resume gives a session that waits for it a client again: Replay follows with what
// was generated so far, and then the rest; a Finish with an error if that can't be.
type Resume struct {
	Session kevlard.SessionID
	Client  uint64 // see Submit
}

// Follow gives a session that another node owns a client here: Replay follows with its
// tokens, and Finish.
type Follow struct {
	Session kevlard.SessionID
	Owner   kevlard.NodeID
	Client  uint64 // see Submit
}

// Find asks what this node knows of a session that it owns; Found follows with the
// same number.
type Find struct {
	Session kevlard.SessionID
	Number  uint64
}

// TakeOver makes this node the owner of a session whose owner is gone; TakenOver
// follows with the same number.
type TakeOver struct {
	Session kevlard.SessionID
	Number  uint64
	// Accepted says that the session's envelope was seen, and is that of the client that
	// comes back. Otherwise nothing is taken over.
	Accepted bool
}

// Adopt makes this node hold a stage: its engine starts at once. A stage that does not
// fit is reported and not taken.
type Adopt struct {
	Assigned
	Cause string // for the event log
}

// Release makes this node give a stage up, if it holds it. Sessions there go on
// elsewhere, and what was computed stays in the block memory.
type Release struct{ Stage kevlard.StageKey }

// Drain stops taking new sessions and gives the stages up; with Undo both are taken on
// again.
type Drain struct{ Undo bool }

// Exported reports that the cells of an Export have been read (or that they could
// not be): they may be written again. The rows are on their way.
type Exported struct {
	Stage  kevlard.StageKey
	Run    uint64
	ID     uint64
	Failed string // why nothing was read; "" if it was
}

// Loaded reports the end of a Load. N is how many positions, from the first, were
// checked and written into the engine; fewer than asked if a checksum was wrong
// (Damaged) or the engine refused.
type Loaded struct {
	Stage   kevlard.StageKey
	Run     uint64
	ID      uint64
	N       int
	Damaged bool
}

// RowsUnsent reports that rows of an Export will not reach the standby.
type RowsUnsent struct {
	To      kevlard.NodeID
	Session kevlard.SessionID
	Stage   kevlard.StageKey
	Cause   string
}

// StoredUnsent reports that stored rows, from position From on, will not reach the node
// that takes their stage over.
type StoredUnsent struct {
	To      kevlard.NodeID
	Session kevlard.SessionID
	Fence   kevlard.Fence // of the fetch
	Stage   kevlard.StageKey
	From    kevlard.Pos
	Damaged bool // at rest; else they could not be sent
	Cause   string
}

// RowsArrived reports a piece of KV from a peer. Its bytes wait in the shell under
// the number Piece until StoreRows or DropRows. Intact is whether all checksums
// were right.
type RowsArrived struct {
	From   kevlard.NodeID
	Piece  uint64
	Rows   protocol.Rows
	Intact bool
}

// StoredSent reports that the block memory of a SendStored is no longer read.
// N positions were whole; the next one was Damaged, or all were sent.
type StoredSent struct {
	ID      uint64
	N       int
	Damaged bool
}

// RowsStored reports the end of a StoreRows.
type RowsStored struct {
	Piece  uint64
	Failed string // why the rows are not in their place; "" if they are
}

func (Exported) event()     {}
func (Loaded) event()       {}
func (RowsUnsent) event()   {}
func (StoredUnsent) event() {}
func (RowsArrived) event()  {}
func (RowsStored) event()   {}
func (StoredSent) event()   {}

func (Wake) event()          {}
func (ViewChanged) event()   {}
func (PeerUp) event()        {}
func (PeerDown) event()      {}
func (Received) event()      {}
func (Arrived) event()       {}
func (SendFailed) event()    {}
func (EngineReady) event()   {}
func (EngineLoading) event() {}
func (EngineExited) event()  {}
func (BatchDone) event()     {}
func (Submit) event()        {}
func (Cancel) event()        {}
func (Pause) event()         {}
func (Resume) event()        {}
func (Follow) event()        {}
func (Find) event()          {}
func (TakeOver) event()      {}
func (Drain) event()         {}
func (Adopt) event()         {}
func (Release) event()       {}
