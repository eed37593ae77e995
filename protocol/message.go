// Package protocol is what nodes say to each other: the messages of the control
// connections, the frames of the data connections, their byte format and their
// limits. It decides nothing.
//
// # Control messages
//
// One message is one byte of kind followed by the CBOR encoding (RFC 8949) of
// the struct of that kind, a map with small integer keys. A receiver ignores
// keys it does not know, so fields can be added; a field is never reused. An
// unknown kind is an error that the receiver counts and drops.
//
// # Frames
//
// A frame is a header, the CBOR encoding of Frame, and a body: the rows of its
// items one after the other, each row Dim little-endian float32 values. Items
// for a first stage have no rows, only token ids.
//
// # Order and loss
//
// Messages of one class between two nodes keep their order; a broken connection
// loses what was under way. Every message that acts on a session carries the
// fence (epoch, term) of its sender, and receivers drop what is older than they
// have seen, so duplicates and latecomers are harmless.
package protocol

import "github.com/kevlard/kevlard"

// Message is one control message.
type Message interface{ kind() kind }

type kind byte

// The kinds on the wire. Never renumber.
const (
	kindPrepare kind = iota + 1
	kindPrepared
	kindClose
	kindRefused
	kindStep
	kindProbe
	kindProbed
	kindPing
	kindPong
	kindLost
	kindRenew
	kindReplicate
	kindOffer
	kindStored
	kindStandbyLost
	kindFetch
	kindFetched
	kindFollow
	kindFollowed
	kindUnfollow
)

// 18 to 21 are kept for the return of clients.
const (
	kindRecord kind = iota + 22
	kindLog
	kindLogged
	kindLocate
	kindLocated
	kindVote
	kindPromise
	kindForget
	kindKeep
)

// Who has KV of a prompt.
const (
	kindSeek   kind = 64
	kindSought kind = 65
)

// Prepare asks a stage to fence all older terms of a session, to reserve room
// for it, and to say how many of its leading positions it already holds. It is
// idempotent per fence. Only Prepare creates state at a stage.
type Prepare struct {
	Session   kevlard.SessionID `cbor:"1,keyasint"`
	Fence     kevlard.Fence     `cbor:"2,keyasint"`
	OwnerBoot kevlard.BootID    `cbor:"3,keyasint"` // the sender is the owner
	Stage     kevlard.StageKey  `cbor:"4,keyasint"`
	Next      kevlard.NodeID    `cbor:"5,keyasint,omitempty"` // empty at the last stage
	Last      bool              `cbor:"6,keyasint,omitempty"`
	Tokens    []kevlard.Token   `cbor:"7,keyasint"` // all tokens known so far, prompt first
	Positions int               `cbor:"8,keyasint"` // the most the session can ever hold
	Sampling  kevlard.Sampling  `cbor:"9,keyasint"`
	Solo      bool              `cbor:"10,keyasint,omitempty"` // run in a batch of its own (poison rule)
	Recovery  bool              `cbor:"11,keyasint,omitempty"` // replays go before new prefills
	Credit    int               `cbor:"12,keyasint"`           // rows the owner may have under way at once
	Standby   kevlard.NodeID    `cbor:"13,keyasint,omitempty"` // gets a copy of the stage's KV; empty: nobody
	Source    kevlard.NodeID    `cbor:"15,keyasint,omitempty"` // has a copy; empty: nobody
	Mark      kevlard.Pos       `cbor:"16,keyasint,omitempty"` // how many leading positions Source is known to have
	Salt      string            `cbor:"14,keyasint,omitempty"` // KV is shared only under equal salts
	// Await is how many leading positions the stage waits for while another session there
	// computes them, or is about to. The first stage is told at once; to others the same
	// prepare comes again when those before them have waited.
	Await kevlard.Pos `cbor:"17,keyasint,omitempty"`
}

// Prepared answers Prepare.
type Prepared struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`           // start of the stage's layers
	Have    int               `cbor:"4,keyasint"`           // leading positions held under equal tokens
	Refusal Refusal           `cbor:"5,keyasint,omitempty"` // empty: prepared
	Detail  string            `cbor:"6,keyasint,omitempty"`
	// Epoch, with RefusedStale, is the one that the stage is bound to: if it is newer
	// than the prepare's, the owner is superseded.
	Epoch uint64 `cbor:"24,keyasint,omitempty"`
	// Waits says that the answer is still to come: another session computes what this one
	// needs. It is said again and again as long as that is so.
	Waits bool `cbor:"25,keyasint,omitempty"`
}

// Refusal says why a stage refused a Prepare or an item.
type Refusal string

// The refusals. Stale ones answer an old owner; the others make the owner choose
// again.
const (
	RefusedStale    Refusal = "stale"    // a newer fence, or another owner boot for this epoch
	RefusedNoStage  Refusal = "no-stage" // no such stage here, or its engine is not ready
	RefusedCapacity Refusal = "capacity" // no room for the session
	RefusedUnknown  Refusal = "unknown"  // an item of a session that was never prepared here
	RefusedGap      Refusal = "gap"      // an item that does not continue what is held
	RefusedCredit   Refusal = "credit"   // more rows under way than Prepare asked for
	RefusedLink     Refusal = "link"     // no connection to the next stage
	RefusedDraining Refusal = "draining"
)

// Refused tells the owner that an item was not taken.
type Refused struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	Pos     kevlard.Pos       `cbor:"4,keyasint"`
	Reason  Refusal           `cbor:"5,keyasint"`
}

// Close ends a session at a stage: queued work is dropped, memory freed, a
// tombstone kept.
type Close struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	// Keep leaves copies of the session where they are: it goes on elsewhere.
	Keep bool `cbor:"4,keyasint,omitempty"`
	// Hi is the end of the stage's layers: a node can have two stages that begin alike,
	// while one replaces the other. 0: whichever begins at Lo.
	Hi int `cbor:"5,keyasint,omitempty"`
}

// Step tells the owner that the last stage has finished the positions before
// Next, and, when Sampled, the token it chose for position Next.
type Step struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Next    kevlard.Pos       `cbor:"3,keyasint"`
	Sampled bool              `cbor:"4,keyasint,omitempty"`
	Token   kevlard.Token     `cbor:"5,keyasint,omitempty"`
	// Logprobs go with Token if Prepare's sampling asks for them.
	Logprobs *kevlard.Logprobs `cbor:"6,keyasint,omitempty"`
	Marks    []kevlard.Pos     `cbor:"7,keyasint,omitempty"` // see Item.Marks; one for each hop of the route
}

// Probe asks a stage how far it is with a session.
type Probe struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	Round   uint64            `cbor:"4,keyasint"`
	Model   kevlard.Digest    `cbor:"5,keyasint"`
}

// Probed answers Probe.
type Probed struct {
	Session  kevlard.SessionID `cbor:"1,keyasint"`
	Fence    kevlard.Fence     `cbor:"2,keyasint"`
	Lo       int               `cbor:"3,keyasint"`
	Round    uint64            `cbor:"4,keyasint"`
	Known    bool              `cbor:"5,keyasint,omitempty"` // the session is prepared here at this fence
	Received kevlard.Pos       `cbor:"6,keyasint"`           // positions before it have arrived
	Done     kevlard.Pos       `cbor:"7,keyasint"`           // positions before it were computed and sent on
	Stalled  bool              `cbor:"8,keyasint,omitempty"` // the engine is overdue
}

// Ping measures a link and carries the sender's load. Any byte from a node
// counts as a sign of life; pings make sure there are some.
type Ping struct {
	Seq      uint64 `cbor:"1,keyasint"`
	Sessions int    `cbor:"2,keyasint"` // sessions held by the sender's stages
	Free     int    `cbor:"3,keyasint"` // KV positions that each of its stages can still grant
	// Record is the version of the sender's node record: gossip takes longer. 0: not said.
	Record uint64 `cbor:"4,keyasint,omitempty"`
}

// Pong answers Ping with the answerer's load.
type Pong struct {
	Seq      uint64 `cbor:"1,keyasint"`
	Sessions int    `cbor:"2,keyasint"`
	Free     int    `cbor:"3,keyasint"`
}

// Lost tells an owner that a stage can no longer work on a session.
type Lost struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	Cause   string            `cbor:"4,keyasint"`           // engine-exit, engine-stall, lease, release, drain
	Suspect bool              `cbor:"5,keyasint,omitempty"` // it was in the batch that killed the engine
}

// Renew keeps the leases of sessions that have no work under way.
type Renew struct {
	Sessions []kevlard.SessionID `cbor:"1,keyasint"`
}

// Replicate names the standby of a session at a stage, outside of a Prepare: the
// last one died, was slow, or there was none.
type Replicate struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	Standby kevlard.NodeID    `cbor:"4,keyasint,omitempty"` // empty: nobody
}

// Offer asks a node to keep a copy of the KV that the sender's stage computes for
// a session. The answer is Stored.
type Offer struct {
	Session   kevlard.SessionID `cbor:"1,keyasint"`
	Fence     kevlard.Fence     `cbor:"2,keyasint"`
	Owner     kevlard.NodeID    `cbor:"3,keyasint"`
	OwnerBoot kevlard.BootID    `cbor:"4,keyasint"`
	Stage     kevlard.StageKey  `cbor:"5,keyasint"`
	Class     string            `cbor:"6,keyasint"` // numerics class of the sender's engine
	CellBytes int               `cbor:"7,keyasint"` // bytes of one position in all layers of the stage
	Salt      string            `cbor:"8,keyasint,omitempty"`
	Tokens    []kevlard.Token   `cbor:"9,keyasint"`  // those known now, to find what is held already
	Positions int               `cbor:"10,keyasint"` // the most the session can ever hold
	Number    uint64            `cbor:"11,keyasint"` // of the sender's stream
}

// Stored answers an Offer, and acknowledges rows: the positions before Through
// are stored and checked. It goes to the stage that sends the rows.
type Stored struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"` // of the offer or rows that it answers
	Stage   kevlard.StageKey  `cbor:"3,keyasint"`
	Through kevlard.Pos       `cbor:"4,keyasint"`
	Again   bool              `cbor:"5,keyasint,omitempty"` // rows were lost or damaged: go on from Through
	// Try grows with each Again. Rows carry the one that their sender heard last, so
	// that those sent before are told from those that are missing.
	Try     uint64  `cbor:"8,keyasint,omitempty"`
	Refusal Refusal `cbor:"6,keyasint,omitempty"` // no copy is kept
	Detail  string  `cbor:"7,keyasint,omitempty"`
	Number  uint64  `cbor:"9,keyasint,omitempty"` // of the offer
}

// StandbyLost tells the owner that a stage can no longer stream to its standby.
type StandbyLost struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"`
	Standby kevlard.NodeID    `cbor:"4,keyasint"`
	Cause   string            `cbor:"5,keyasint"` // refused, slow, unreachable; no copy: what it was to have is not there
}

// Fetch asks the keeper of a copy for its rows from position From on.
type Fetch struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Stage   kevlard.StageKey  `cbor:"3,keyasint"`
	Class   string            `cbor:"4,keyasint"`
	Salt    string            `cbor:"5,keyasint,omitempty"`
	From    kevlard.Pos       `cbor:"6,keyasint"`
	Tokens  []kevlard.Token   `cbor:"7,keyasint"`
	Try     uint64            `cbor:"8,keyasint,omitempty"` // for the rows
}

// Fetched answers Fetch: rows up to position Through are on their way. With a refusal
// no others are, at once or, when rows could not be sent, after all.
type Fetched struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Stage   kevlard.StageKey  `cbor:"3,keyasint"`
	Through kevlard.Pos       `cbor:"4,keyasint"`
	Refusal Refusal           `cbor:"5,keyasint,omitempty"` // unknown: nothing is kept; capacity: too many fetch; link: the rows could not be sent
	Detail  string            `cbor:"6,keyasint,omitempty"`
}

// Seek asks a node how much of a prompt's KV its stages of a model have, before a route
// is chosen.
type Seek struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Model   kevlard.Digest    `cbor:"2,keyasint"`
	Salt    string            `cbor:"3,keyasint,omitempty"`
	Tokens  []kevlard.Token   `cbor:"4,keyasint"` // the leading ones
}

// Sought answers Seek. Prepare has the last word.
type Sought struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Stages  []Holding         `cbor:"2,keyasint,omitempty"` // those that have anything
	Load    int               `cbor:"3,keyasint"`           // sessions held by the sender's stages, as in Ping
}

// Holding is how many leading positions a stage has.
type Holding struct {
	Layers    kevlard.Layers `cbor:"1,keyasint"`
	Class     string         `cbor:"2,keyasint"`
	Positions int            `cbor:"3,keyasint"`
}

func (Seek) kind() kind   { return kindSeek }
func (Sought) kind() kind { return kindSought }

func (Fetch) kind() kind   { return kindFetch }
func (Fetched) kind() kind { return kindFetched }

func (Replicate) kind() kind   { return kindReplicate }
func (Offer) kind() kind       { return kindOffer }
func (Stored) kind() kind      { return kindStored }
func (StandbyLost) kind() kind { return kindStandbyLost }

func (Prepare) kind() kind  { return kindPrepare }
func (Prepared) kind() kind { return kindPrepared }
func (Close) kind() kind    { return kindClose }
func (Refused) kind() kind  { return kindRefused }
func (Step) kind() kind     { return kindStep }
func (Probe) kind() kind    { return kindProbe }
func (Probed) kind() kind   { return kindProbed }
func (Ping) kind() kind     { return kindPing }
func (Pong) kind() kind     { return kindPong }
func (Lost) kind() kind     { return kindLost }
func (Renew) kind() kind    { return kindRenew }
