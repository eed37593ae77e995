package session

import (
	"fmt"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// pump sends known tokens as far as the window allows.
func (m *Machine) pump(out []Effect) []Effect {
	n := len(m.tokens)
	for m.sent < n && m.sent-m.acked < m.timing.Window {
		end := min(n, m.sent+m.timing.Chunk, m.acked+m.timing.Window)
		it := protocol.Item{
			Session: m.id, Fence: m.fence, Pos: m.sent, Tokens: m.tokens[m.sent:end:end],
			Start: !m.started, Sample: end == n,
		}
		m.started, m.sent = true, end
		out = append(out, SendFrame{m.route[0].Node, protocol.Frame{Items: []protocol.Item{it}}})
	}
	return out
}

// Step takes the last stage's acknowledgement, and its token if it sampled one.
func (m *Machine) Step(now kevlard.Instant, from kevlard.NodeID, s protocol.Step, out []Effect) []Effect {
	running := m.state == Prefill || m.state == Decode
	if !running || s.Fence != m.fence || from != m.route[len(m.route)-1].Node || s.Next <= m.acked || s.Next > m.sent {
		m.fenced++
		return out
	}
	took := now.Sub(m.lastAck)
	m.pace += (took - m.pace) / 8
	m.acked, m.lastAck = s.Next, now
	m.marked(now, s.Marks)
	m.watch(now)
	if !s.Sampled {
		return m.pump(out)
	}
	if s.Next != len(m.tokens) {
		m.fenced++
		return out
	}
	if m.req.Sampling.Logprobs && s.Logprobs == nil {
		return m.fail(now, &kevlard.Failure{
			Code: "no_logprobs", Status: 503,
			Message: fmt.Sprintf("node %s sends tokens without logprobs: it runs an older version, upgrade it or leave logprobs out", from),
		}, out)
	}
	out = m.recovered(now, out)
	m.lastToken = now
	if !m.req.Sampling.Logprobs {
		s.Logprobs = nil // nobody asked
	}
	if m.ends(s.Token, m.Generated()) {
		m.end = &kevlard.Sampled{Token: s.Token, Logprobs: s.Logprobs}
		return m.finish(now, "stop", nil, out)
	}
	m.tokens = append(m.tokens, s.Token)
	if s.Logprobs != nil {
		m.logprobs = append(m.logprobs, *s.Logprobs)
	}
	m.state = Decode
	if m.Generated()%m.timing.ProgressEarn == 0 {
		m.budget = min(m.budget+1, m.timing.ProgressBudget)
	}
	out = m.release(now, out)
	if m.Generated() >= m.req.MaxTokens {
		return m.finish(now, "length", nil, out)
	}
	return m.pump(out)
}

// ends reports whether a token, generated after n others, ends the answer.
func (m *Machine) ends(t kevlard.Token, n int) bool {
	return !m.req.IgnoreEOG && n >= m.req.MinTokens && slices.Contains(m.req.EOG, t)
}

// recovered closes the failover under way, if there is one.
func (m *Machine) recovered(now kevlard.Instant, out []Effect) []Effect {
	m.solo, m.alone = false, false // the replay went well: it was not this session
	if m.pending == nil {
		return out
	}
	f := *m.pending
	f.Reroute, f.Restore = m.prepared.Sub(m.evidence), now.Sub(m.prepared)
	f.Known, f.From = len(m.tokens), m.start
	m.pending = nil
	if len(m.failovers) < maxFailovers {
		m.failovers = append(m.failovers, f)
	}
	return append(out, Note{Type: "recovered", Node: f.Node, Cause: f.Cause, Took: f.Gap(), Failover: &f})
}

// maxFailovers bounds the list that goes to the client; further ones are only
// counted and logged.
const maxFailovers = 64

// watch sets the deadline for the next acknowledgement.
func (m *Machine) watch(now kevlard.Instant) {
	m.probe = probing{}
	m.deadline = now.Add(max(m.timing.ProgressFloor, 8*m.pace))
}

// Forgive moves the deadlines that run against others: the judge itself was late
// by that much.
func (m *Machine) Forgive(now kevlard.Instant, late time.Duration) {
	if g := m.guard; g != nil {
		g.openBy = g.openBy.Add(late)
		if g.waiting > 0 {
			g.waiting = g.waiting.Add(late)
		}
	}
	switch m.state {
	case Prefill, Decode:
		m.deadline = max(m.deadline.Add(late), now.Add(kevlard.LateGrace))
	case Preparing:
		m.deadline = max(m.deadline.Add(late), now.Add(kevlard.LateGrace))
		m.giveUp = m.giveUp.Add(late)
	case Routing:
		m.giveUp = m.giveUp.Add(late)
	}
}
