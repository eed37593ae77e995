package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// run is one audit: a session at the stages of a peer and of this node.
type run struct {
	claim  claim
	boot   kevlard.BootID
	hold   Holding
	id     kevlard.SessionID
	tokens []kevlard.Token
	rows   []byte // nil at a first stage
	mine   side
	theirs side
	sent   bool
	until  kevlard.Instant
}

// side is what one of the two stages has answered.
type side struct {
	prepared bool
	n        int               // leading positions that it has answered
	rows     []byte            // n rows
	chosen   []kevlard.Sampled // the same, of a last stage
}

// fence is that of all audits: none is routed twice.
func fence() kevlard.Fence { return kevlard.Fence{Epoch: 1, Term: 1} }

// random draws 32 bytes that only this life can know.
func (m *Machine) random() [sha256.Size]byte {
	m.drawn++
	return sha256.Sum256(binary.LittleEndian.AppendUint64(append(m.cfg.Seed[:], m.cfg.Boot...), m.drawn))
}

// jitter draws a time of at most d.
func (m *Machine) jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	r := m.random()
	return time.Duration(binary.LittleEndian.Uint64(r[:]) % uint64(d))
}

// begin prepares both stages for a new input of n positions.
func (m *Machine) begin(now kevlard.Instant, c claim, s *state, h Holding, n int, out []Effect) []Effect {
	name := m.random()
	r := &run{claim: c, boot: s.boot, hold: h, id: kevlard.SessionID(hex.EncodeToString(name[:16])), until: now.Add(m.cfg.Timing.Answer)}
	words := m.words(n)
	for i := range n {
		r.tokens = append(r.tokens, kevlard.Token(words[i]%uint32(h.Vocab)))
	}
	if h.Key.Layers.Lo > 0 {
		for _, w := range m.words(n * h.Width / 4) { // evenly from -1 to 1; layers normalise what comes in
			r.rows = binary.LittleEndian.AppendUint32(r.rows, math.Float32bits(float32(int32(w))/(1<<31)))
		}
	}
	p := protocol.Prepare{
		Session: r.id, Fence: fence(), OwnerBoot: m.cfg.Boot, Stage: h.Key, Last: h.Last, Tokens: r.tokens, Positions: n + 1,
		Credit: n, Salt: string(r.id), // its KV is nobody's prefix
	}
	if h.Last {
		p.Sampling = kevlard.Sampling{Logprobs: true, TopLogprobs: kevlard.MaxTopLogprobs}
	} else {
		p.Next = m.cfg.Self // the rows come back here
	}
	m.run = r
	return append(out, Send{c.node, p}, Send{m.cfg.Self, p})
}

// words draws n random words.
func (m *Machine) words(n int) []uint32 {
	out := make([]uint32, 0, n+7)
	for len(out) < n {
		r := m.random()
		for i := 0; i < len(r); i += 4 {
			out = append(out, binary.LittleEndian.Uint32(r[i:]))
		}
	}
	return out[:n]
}

// end closes the sessions of an audit. What its stages still send is dropped.
func (m *Machine) end(r *run, out []Effect) []Effect {
	m.run = nil
	c := protocol.Close{Session: r.id, Fence: fence(), Lo: r.hold.Key.Layers.Lo, Hi: r.hold.Key.Layers.Hi}
	return append(out, Send{r.claim.node, c}, Send{m.cfg.Self, c})
}

// Concerns reports whether a session is the audit that runs.
func (m *Machine) Concerns(id kevlard.SessionID) bool { return m.run != nil && m.run.id == id }

// Result reports whether an item of that session is what a stage made of the input, and
// not the input on its way to the stage here.
func (m *Machine) Result(it protocol.Item) bool { return it.Lo == m.run.hold.Key.Layers.Hi }

// side returns what a node has answered so far, nil if it is not of the audit.
func (r *run) side(self, from kevlard.NodeID) *side {
	switch from {
	case self:
		return &r.mine
	case r.claim.node:
		return &r.theirs
	}
	return nil
}

// Received takes a message of the session that Concerns is true of.
func (m *Machine) Received(now kevlard.Instant, from kevlard.NodeID, msg protocol.Message, out []Effect) []Effect {
	r := m.run
	s := r.side(m.cfg.Self, from)
	if s == nil {
		return out
	}
	switch msg := msg.(type) {
	case protocol.Prepared:
		switch {
		case msg.Refusal != "":
			return m.silent(now, r, out)
		case msg.Waits:
			return out
		}
		s.prepared = true
		return m.feed(r, out)
	case protocol.Step:
		if !r.hold.Last || !msg.Sampled || msg.Next != s.n+1 || s.n == len(r.tokens) || msg.Logprobs == nil {
			return out
		}
		s.n++
		s.chosen = append(s.chosen, kevlard.Sampled{Token: msg.Token, Logprobs: msg.Logprobs})
		return m.compare(now, r, out)
	case protocol.Refused, protocol.Lost:
		return m.silent(now, r, out)
	}
	return out
}

// feed sends the input when both stages have room for it.
func (m *Machine) feed(r *run, out []Effect) []Effect {
	if r.sent || !r.mine.prepared || !r.theirs.prepared {
		return out
	}
	r.sent = true
	it := protocol.Item{Session: r.id, Fence: fence(), Lo: r.hold.Key.Layers.Lo, Tokens: r.tokens, Start: true, Rows: r.rows}
	if r.rows != nil {
		it.Width = r.hold.Width
	}
	var f protocol.Frame
	for r.hold.Last && len(it.Tokens) > 1 { // a token is sampled after each position
		var head protocol.Item
		head, it = it.Split(1)
		head.Sample = true
		f.Items = append(f.Items, head)
	}
	it.Sample = r.hold.Last
	f.Items = append(f.Items, it)
	return append(out, SendFrame{r.claim.node, f}, SendFrame{m.cfg.Self, f})
}

// Arrived takes an item of the session that Concerns is true of.
func (m *Machine) Arrived(now kevlard.Instant, from kevlard.NodeID, it protocol.Item, out []Effect) []Effect {
	r := m.run
	s := r.side(m.cfg.Self, from)
	n := len(it.Tokens)
	if s == nil || r.hold.Last || it.Lo != r.hold.Key.Layers.Hi || it.Pos != s.n || it.Width != r.hold.Width || len(it.Rows) != n*it.Width || s.n+n > len(r.tokens) {
		return out // what is not an answer leaves no verdict
	}
	s.n += n
	s.rows = append(s.rows, it.Rows...)
	return m.compare(now, r, out)
}

// compare judges when both have answered.
func (m *Machine) compare(now kevlard.Instant, r *run, out []Effect) []Effect {
	if r.mine.n < len(r.tokens) || r.theirs.n < len(r.tokens) {
		return out
	}
	differ := differRows(r.hold, r.mine.rows, r.theirs.rows)
	for i, mine := range r.mine.chosen {
		if d := differChoice(r.hold, mine, r.theirs.chosen[i]); d != "" && differ == "" {
			differ = fmt.Sprintf("after position %d %s", i, d)
		}
	}
	return m.judged(now, r, differ, out)
}
