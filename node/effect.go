package node

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// Effect is something the shell must do. Effects are carried out in order and
// without blocking.
type Effect interface{ effect() }

// Send queues a control message. To may be this node: the shell then feeds it
// back as Received.
type Send struct {
	To      kevlard.NodeID
	Message protocol.Message
}

// SendAll queues one control message for several other nodes.
type SendAll struct {
	To      []kevlard.NodeID
	Message protocol.Message
}

// SendFrame queues a frame on the data connection. To may be this node.
type SendFrame struct {
	To    kevlard.NodeID
	Frame protocol.Frame
}

// StartEngine starts the engine process of a stage; Run numbers its life.
type StartEngine struct {
	Stage  kevlard.StageKey
	Run    uint64
	Device int // index in the node's devices
}

// KillEngine kills it; EngineExited follows.
type KillEngine struct {
	Stage kevlard.StageKey
	Run   uint64
}

// RunBatch gives an engine one batch; BatchDone or EngineExited follows. At most
// one batch is under way per engine.
type RunBatch struct {
	Stage kevlard.StageKey
	Run   uint64
	Batch stage.Batch
}

// Emit hands one generated token to the session's client.
type Emit struct {
	Session  kevlard.SessionID
	Index    int // of the generated token, from 0
	Token    kevlard.Token
	Logprobs *kevlard.Logprobs // if the request asked for them, else nil
}

// Replay hands the client of a resumed session the tokens that were generated before,
// or on another node, from the first on.
type Replay struct {
	Session  kevlard.SessionID
	Tokens   []kevlard.Token
	Logprobs []kevlard.Logprobs // one for each of Tokens if the request asked for them, else nil
}

// Found answers Find.
type Found struct {
	Number   uint64
	Session  kevlard.SessionID
	Owned    bool
	Running  bool   // with a client
	Recorded bool   // this node is a witness of it
	Epoch    uint64 // if owned or recorded
	Envelope []byte // likewise
}

// TakenOver answers TakeOver. With nothing said of it the session is owned here, and
// waits for Resume.
type TakenOver struct {
	Number     uint64
	Session    kevlard.SessionID
	Owner      kevlard.NodeID   // it lives and owns the session: ask there
	Remembered bool             // witnesses have it, and its envelope was not accepted: ask them for that
	Err        *kevlard.Failure // session_not_found, session_no_quorum, session_busy, draining, overloaded
}

// Reused says how many leading positions of a session's prompt were found instead of
// computed: before its first token, and to each client that comes back.
type Reused struct {
	Session   kevlard.SessionID
	Positions int
}

// Finish ends the stream of a session's client. With the reason paused it can be
// resumed here, and so it can for a while after most other ends.
type Finish struct {
	Session   kevlard.SessionID
	Reason    string // stop, length, cancelled, error or paused
	Err       *kevlard.Failure
	Failovers []kevlard.Failover
}

// Publish asks the shell to publish a new record of this node.
type Publish struct {
	Stages   []topology.Stage
	Failed   []topology.Failed // loads that are not tried again for now
	Draining bool
	Avoid    bool   // work should go elsewhere while it can
	Reason   string // for that, or for the drain, if this node's devices are it
}

// Report is an entry of the event log. Fields that do not apply are zero.
type Report struct {
	Type    string // failover, recovered, engine-exit, engine-ready, engine-stall, poison, silent, heard, ...
	Session kevlard.SessionID
	Node    kevlard.NodeID // the other node concerned
	Cause   string
	Detail  string
	Took    time.Duration
	// Failover is the one that ended, with type "recovered".
	Failover *kevlard.Failover
}

// Export reads KV cells of an engine and sends them to a standby. If To is this node,
// they come back as RowsArrived, after Exported, or are dropped. The engine may
// be computing: the cells are of finished positions, and nothing writes them until
// Exported. Rows lacks its checksums, which the shell adds.
type Export struct {
	Stage kevlard.StageKey
	Run   uint64
	ID    uint64
	Cell  int // of the first position
	To    kevlard.NodeID
	Rows  protocol.Rows
}

// Load writes stored positions into KV cells of an engine, after checking each one's
// sum; Loaded follows.
type Load struct {
	Stage   kevlard.StageKey
	Run     uint64
	ID      uint64
	Session kevlard.SessionID // whose KV it is
	Pos     kevlard.Pos       // the first
	Cell    int               // of the first position
	From    []index.Run       // in the order of the positions
}

// SendStored sends stored rows to the node that takes over their stage, with the
// checksums that they were stored with; StoredSent follows. Rows lacks them.
type SendStored struct {
	ID    uint64
	To    kevlard.NodeID
	Stage kevlard.StageKey
	From  []index.Run // in the order of the positions
	Rows  protocol.Rows
}

// StoreRows moves a piece that arrived to its place in the block memory of the
// stage, with its checksums; RowsStored follows, also for those of nodes that are
// gone by then.
type StoreRows struct {
	Stage kevlard.StageKey
	Piece uint64
	To    []index.Run // in the order of the positions
}

// FreeSlots says which slots of a stage's block memory hold nothing any more, unless a
// later StoreRows names them.
type FreeSlots struct {
	Stage kevlard.StageKey
	Slots []int
}

// DropRows forgets a piece that arrived.
type DropRows struct{ Piece uint64 }

func (Export) effect()     {}
func (SendStored) effect() {}
func (Load) effect()       {}
func (StoreRows) effect()  {}
func (DropRows) effect()   {}
func (FreeSlots) effect()  {}

func (Send) effect()        {}
func (SendAll) effect()     {}
func (SendFrame) effect()   {}
func (StartEngine) effect() {}
func (KillEngine) effect()  {}
func (RunBatch) effect()    {}
func (Emit) effect()        {}
func (Replay) effect()      {}
func (Found) effect()       {}
func (TakenOver) effect()   {}
func (Reused) effect()      {}
func (Finish) effect()      {}
func (Publish) effect()     {}
func (Report) effect()      {}
