// Package session is the owner's side of one session: it drives steps over a
// route, judges who is to blame when they stop, and re-routes. It is pure:
// methods take the time and what happened, and append effects.
//
//	           SetRoute            all prepared            sampled
//	Routing ─────────────▶ Preparing ───────────▶ Prefill ─────────▶ Decode
//	   ▲                       │                     │                 │
//	   └──── evidence, refusal, time-out ────────────┴─────────────────┘
//	   │
//	   └─ no route until the deadline, poison ─▶ Done ◀─ stop, length, cancel
//
// From every state but Done a resumable session is Paused when its client is gone, or
// when it has shown something and finds no route; Resume makes it want one.
//
// Every re-route raises the term. The new stages (and the surviving ones) say
// what they hold under the session's tokens; the session starts at the least of
// it and replays the rest, so the text goes on exactly where it stopped.
package session

import (
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// State is where a session is in its life.
type State string

// The states of a session.
const (
	Routing   State = "queued"    // wants a route
	Preparing State = "preparing" // stages are reserving room
	Prefill   State = "prefill"   // known tokens are being computed
	Decode    State = "decode"    // one token at a time
	Paused    State = "paused"    // no client: closed at the stages, until Resume
	Settling  State = "settling"  // all is generated, and waits for the witnesses to be shown
	Done      State = "done"
)

// Request is what a client asked for.
type Request struct {
	Model     kevlard.Digest
	Prompt    []kevlard.Token // not empty
	MaxTokens int             // at least 1; prompt and answer fit the model's context
	Sampling  kevlard.Sampling
	EOG       []kevlard.Token // tokens that end the generation; they are not emitted
	IgnoreEOG bool
	MinTokens int // an EOG before this many tokens does not end the generation
	// Salt keeps KV apart: sessions share it only under equal salts. It names the
	// tenant; without keys there is one, and it is empty.
	Salt string
	// Envelope is what the API needs to write the answer on for another connection. The
	// session can be resumed if there is one.
	Envelope []byte
}

// Effect is what a session asks of the node around it.
type Effect interface{ effect() }

// Send sends a control message.
type Send struct {
	To      kevlard.NodeID
	Message protocol.Message
}

// SendAll sends one control message to several other nodes.
type SendAll struct {
	To      []kevlard.NodeID
	Message protocol.Message
}

// SendFrame sends work to the first stage.
type SendFrame struct {
	To    kevlard.NodeID
	Frame protocol.Frame
}

// Emit hands a generated token to the client.
type Emit struct {
	Index    int
	Token    kevlard.Token
	Logprobs *kevlard.Logprobs // if the request asks for them, else nil
	Again    bool              // another owner generated it
}

// Reused says, once, how many leading positions of the prompt were found instead of
// computed.
type Reused struct{ Positions int }

// Finish ends the stream of a session's client, and unless it is paused the session.
type Finish struct {
	Reason string // stop, length, cancelled, error, paused
	Err    *kevlard.Failure
}

// Note is for the event log.
type Note struct {
	Type   string
	Node   kevlard.NodeID
	Cause  string
	Detail string
	Took   time.Duration
	// Failover is the one that ended, with a "recovered" note.
	Failover *kevlard.Failover
}

func (Send) effect()      {}
func (SendAll) effect()   {}
func (SendFrame) effect() {}
func (Emit) effect()      {}
func (Reused) effect()    {}
func (Finish) effect()    {}
func (Note) effect()      {}

// Machine is one session at its owner. Not safe for concurrent use.
type Machine struct {
	id     kevlard.SessionID
	boot   kevlard.BootID // of the owner
	req    Request
	timing Timing

	state  State
	fence  kevlard.Fence
	tokens []kevlard.Token // prompt, then what was generated

	logprobs []kevlard.Logprobs // of what was generated, if asked for
	ended    Finish             // when Done

	route kevlard.Route
	class string // numerics class of the route
	have  []int  // per hop, -1 until its prepare is answered
	again int    // hops up to this one have answered, and been asked again if that helps
	old   kevlard.Route

	copied    kevlard.Route     // the route that was set last: standbys and marks are of its hops
	standbys  []kevlard.NodeID  // per hop; "" is none
	marks     []kevlard.Pos     // per hop: what its standby has acknowledged, as told last
	standbyAt []kevlard.Instant // per hop: when a missing standby is looked for again
	namedAt   kevlard.Instant   // when the last standby was named
	kept      []keptCopy        // what earlier standbys have
	touched   kevlard.Route     // who was a hop or standby, at any time
	ran       []kevlard.NodeID  // whose work or copies its KV and tokens come from
	unfit     map[kevlard.NodeID]kevlard.Instant

	start       kevlard.Pos // where this term's work began
	sent, acked kevlard.Pos
	high        kevlard.Pos // the most that any route got acknowledged
	started     bool        // the first item of this term was sent
	begun       bool        // some route was started, and what it found is known
	reused      int         // of the prompt: what was found then
	found       bool        // some term began with KV that was found
	deadline    kevlard.Instant
	askedAt     kevlard.Instant   // while Preparing: when a stage was asked, or said that it waits
	giveUp      kevlard.Instant   // while Routing and Preparing: when to fail
	patience    time.Duration     // while running: what was left until giveUp
	refusal     protocol.Prepared // the last one since a route was found
	barren      int               // routes in a row that acknowledged nothing
	refusals    int               // how many since then
	submitted   kevlard.Instant
	lastToken   kevlard.Instant // or submission
	lastAck     kevlard.Instant
	pace        time.Duration // smoothed time from one acknowledgement to the next

	probe  probing
	avoid  avoidance
	budget int // re-routes for missing progress that may still be made

	solo    bool // replay in a batch alone from the next route on: it may have killed an engine
	alone   bool // this term's replay is alone
	strikes int  // engines it may have killed

	pending   *kevlard.Failover // the failover under way
	evidence  kevlard.Instant   // when its evidence came
	prepared  kevlard.Instant
	failovers []kevlard.Failover
	fenced    uint64

	guard      *guarding        // nil: the session cannot be taken over
	chosen     bool             // whether it has witnesses was decided
	shown      int              // generated tokens that were shown
	inherited  int              // generated tokens that another owner has generated
	end        *kevlard.Sampled // the token that ended the answer, which is not shown
	ending     *Finish          // how it ends when all is shown
	hint       kevlard.Route    // that another owner used last
	before     protocol.Life    // the owner that it was taken over from
	superseded uint64           // the epoch of another owner
}

// New returns a session that wants a route.
func New(id kevlard.SessionID, boot kevlard.BootID, req Request, timing Timing, now kevlard.Instant) *Machine {
	timing = timing.withDefaults()
	return &Machine{
		id: id, boot: boot, req: req, timing: timing,
		state: Routing, fence: kevlard.Fence{Epoch: 1},
		tokens:   append(make([]kevlard.Token, 0, len(req.Prompt)+req.MaxTokens), req.Prompt...),
		deadline: now, giveUp: now.Add(timing.QueueDeadline),
		submitted: now, lastToken: now, lastAck: now, pace: timing.ProgressFloor / 16,
		budget: timing.ProgressBudget,
	}
}

// ID returns the session's id.
func (m *Machine) ID() kevlard.SessionID { return m.id }

// State returns where the session is in its life.
func (m *Machine) State() State { return m.state }

// Recovering reports whether a failover is under way.
func (m *Machine) Recovering() bool { return m.pending != nil }

// Fence returns the session's epoch and term.
func (m *Machine) Fence() kevlard.Fence { return m.fence }

// Route returns the route in use; nil while there is none.
func (m *Machine) Route() kevlard.Route { return m.route }

// Model returns the model's id.
func (m *Machine) Model() kevlard.Digest { return m.req.Model }

// Salt returns what keeps the session's KV apart from that of other tenants.
func (m *Machine) Salt() string { return m.req.Salt }

// Prompt returns the request's prompt.
func (m *Machine) Prompt() []kevlard.Token { return m.req.Prompt }

// Len returns the number of tokens, prompt included.
func (m *Machine) Len() int { return len(m.tokens) }

// Generated returns the number of generated tokens.
func (m *Machine) Generated() int { return len(m.tokens) - len(m.req.Prompt) }

// Reused returns how many leading positions of the prompt were found instead of computed.
func (m *Machine) Reused() int { return m.reused }

// Found reports whether the session ever went on from KV that was found where a route began:
// its own copies, or what others have left under the same names. Nobody can tell which.
func (m *Machine) Found() bool { return m.found }

// Resalt keeps what is computed from the next route on apart from all that was computed
// before, the session's own too. A route that is being prepared is left: what its stages say
// that they hold is of before.
func (m *Machine) Resalt(now kevlard.Instant, salt string, out []Effect) []Effect {
	m.req.Salt = salt
	if m.state != Preparing {
		return out
	}
	return m.reroute(now, "distrust", "", 0, out)
}

// Failovers lists the failovers that ended.
func (m *Machine) Failovers() []kevlard.Failover { return m.failovers }

// Fenced counts the stale answers that were dropped.
func (m *Machine) Fenced() uint64 { return m.fenced }

// Deadline returns when Wake must be called.
func (m *Machine) Deadline() kevlard.Instant {
	if m.state == Done || m.state == Paused {
		return kevlard.Never
	}
	return min(m.deadline, m.guardDue())
}

// Positions is the most the session can ever hold. The last token is sampled but
// never computed, except when a later turn continues from it.
func (m *Machine) Positions() int { return len(m.req.Prompt) + m.req.MaxTokens }

// Cancel ends the session for its client.
func (m *Machine) Cancel(now kevlard.Instant, out []Effect) []Effect {
	if m.state == Done {
		return out
	}
	return m.finish(now, "cancelled", nil, out)
}

// Fail ends the session whatever it does: what it has is not to be gone on from.
func (m *Machine) Fail(now kevlard.Instant, f *kevlard.Failure, out []Effect) []Effect {
	if m.state == Done {
		return out
	}
	return m.finish(now, "error", f, out)
}

// RanAt reports whether a node has computed for the session, or given it KV, since it
// began; of a session that was taken over, since then, or at the route that its record names.
func (m *Machine) RanAt(n kevlard.NodeID) bool { return slices.Contains(m.ran, n) }

func (m *Machine) runs(n kevlard.NodeID) {
	if n != "" && !slices.Contains(m.ran, n) {
		m.ran = append(m.ran, n)
	}
}

// fail ends the session, or pauses it if the trouble may pass and its client would have
// to begin again.
func (m *Machine) fail(now kevlard.Instant, f *kevlard.Failure, out []Effect) []Effect {
	if (f.Status == 503 || f.Code == CodeNoQuorum) && m.Resumable() && m.Generated() > 0 {
		return append(m.rest(now, out), Finish{"error", f})
	}
	return m.finish(now, "error", f, out)
}

func (m *Machine) finish(now kevlard.Instant, reason string, f *kevlard.Failure, out []Effect) []Effect {
	whole := reason == "stop" || reason == "length"
	if whole && m.unsettled() {
		return m.settle(now, Finish{reason, f}, out)
	}
	m.state, m.deadline, m.ended = Done, kevlard.Never, Finish{reason, f}
	// The API cancels what has come to a stop string: the last bytes may still be on their
	// way to a client that can come back for them elsewhere.
	kept := whole || reason == "cancelled" && m.Resumable()
	if kept {
		out = m.flush(now, out)
	}
	out = m.forget(kept, out)
	out = m.closeHops(m.route, nil, out)
	out = m.closeHops(m.old, m.route, out)
	out = m.closeCopies(out)
	return append(out, Finish{reason, f})
}

// unsettled reports whether the witnesses have too little of an answer that is complete to
// show all of it, or its end. Where another owner could generate other tokens, one that
// does not know of the end would go on behind it.
func (m *Machine) unsettled() bool {
	return m.shown < m.Generated() || m.guard != nil && m.bestEffort() && m.guard.Committed() < len(m.history())
}

// settle ends all work of a session whose last tokens the witnesses do not have yet.
func (m *Machine) settle(now kevlard.Instant, end Finish, out []Effect) []Effect {
	m.state, m.deadline, m.ending = Settling, kevlard.Never, &end
	out = m.closeHops(m.route, nil, out)
	out = m.closeHops(m.old, m.route, out)
	m.route, m.old, m.pending = nil, nil, nil
	return m.release(now, m.flush(now, out))
}

// closeHops closes the session at every hop of r that is not in keep.
func (m *Machine) closeHops(r, keep kevlard.Route, out []Effect) []Effect {
	return m.closeAt(m.fence, r, keep, out)
}

// closeAt closes what was at a fence.
func (m *Machine) closeAt(fence kevlard.Fence, r, keep kevlard.Route, out []Effect) []Effect {
	for _, h := range r {
		if !contains(keep, h) {
			out = append(out, Send{h.Node, protocol.Close{Session: m.id, Fence: fence, Lo: h.Layers.Lo, Hi: h.Layers.Hi, Keep: m.state != Done}})
		}
	}
	return out
}

func contains(r kevlard.Route, h kevlard.Hop) bool {
	for _, o := range r {
		if o == h {
			return true
		}
	}
	return false
}
