package session

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// PausedReason is the reason of a Finish whose session can be resumed: only its
// client's stream is over.
const PausedReason = "paused"

// Resumable reports whether the session outlives its client.
func (m *Machine) Resumable() bool { return len(m.req.Envelope) > 0 && m.superseded == 0 }

// Request returns what the client asked for. It must not be changed.
func (m *Machine) Request() Request { return m.req }

// Log returns the tokens shown so far, and their logprobs if they were asked for.
// Neither must be changed.
func (m *Machine) Log() ([]kevlard.Token, []kevlard.Logprobs) {
	n := len(m.req.Prompt)
	end := min(m.shown, len(m.logprobs))
	return m.tokens[n : n+m.shown : n+m.shown], m.logprobs[:end:end]
}

// Ended returns how a session ended that is Done.
func (m *Machine) Ended() Finish { return m.ended }

// Pause acts on a client that is gone: the session is closed at its stages, and what
// they send of it from now on is dropped. Tokens stay, so that Resume goes on. Copies at
// standbys stay until their leases end. A session that is not resumable ends instead.
func (m *Machine) Pause(now kevlard.Instant, out []Effect) []Effect {
	switch {
	case m.state == Done || m.state == Paused:
		return out
	case !m.Resumable():
		return m.Cancel(now, out)
	}
	return append(m.rest(now, out), Finish{PausedReason, nil})
}

// rest stops all work, whatever is under way.
func (m *Machine) rest(now kevlard.Instant, out []Effect) []Effect {
	m.state, m.deadline = Paused, kevlard.Never
	out = m.closeHops(m.route, nil, out)
	out = m.closeHops(m.old, m.route, out)
	m.route, m.old, m.pending = nil, nil, nil
	return m.flush(now, out)
}

// Trim gives back the room for tokens that are not there, and returns how many bytes
// the session holds.
func (m *Machine) Trim() int {
	m.tokens, m.logprobs = slices.Clone(m.tokens), slices.Clone(m.logprobs)
	bytes := 4*len(m.tokens) + 4*len(m.req.Prompt) + len(m.req.Envelope)
	for _, l := range m.logprobs {
		bytes += 32 + 8*len(l.Top)
	}
	return bytes
}

// Resume makes a paused session want a route, to go on after the last token.
func (m *Machine) Resume(now kevlard.Instant, out []Effect) []Effect {
	if m.state != Paused {
		return out
	}
	m.state, m.deadline, m.giveUp = Routing, now, now.Add(m.whole())
	m.submitted, m.lastToken, m.lastAck = now, now, now
	m.probe, m.refusal = probing{}, protocol.Prepared{}
	m.barren, m.refusals, m.budget = 0, 0, m.timing.ProgressBudget
	if g := m.guard; g != nil {
		g.openBy, g.waiting = now.Add(m.timing.Witness), 0
		out = m.Remind(now, out)
	}
	if m.ending != nil {
		m.state, m.deadline = Settling, kevlard.Never
	}
	return m.release(now, out)
}

// Forget ends a paused session for which nobody came: its copies may go.
func (m *Machine) Forget(out []Effect) []Effect {
	if m.state != Paused {
		return out
	}
	m.state = Done
	m.ended = Finish{"cancelled", nil}
	return m.closeCopies(m.forget(false, out))
}
