package session

import (
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// salt is what keeps this session's KV apart from that of others.
func (m *Machine) salt() string {
	if m.req.Salt != "" {
		return "shared:" + m.req.Salt
	}
	return "session:" + string(m.id)
}

// CopiedRoute returns the route that was set last; Standbys and Marks are of its
// hops, also when it is no longer in use.
func (m *Machine) CopiedRoute() kevlard.Route { return m.copied }

// Standbys returns the standby of each hop of CopiedRoute; "" is none.
func (m *Machine) Standbys() []kevlard.NodeID { return m.standbys }

// Marks returns, for each hop of CopiedRoute, how many leading positions
// its standby has acknowledged.
func (m *Machine) Marks() []kevlard.Pos { return m.marks }

// Copied returns how many leading positions a node is known to have as the standby
// of a stage of CopiedRoute.
func (m *Machine) Copied(n kevlard.NodeID, l kevlard.Layers) kevlard.Pos {
	for i, h := range m.copied {
		if h.Layers == l && i < len(m.standbys) && m.standbys[i] == n {
			return m.marks[i]
		}
	}
	return 0
}

// Unfit reports whether a node lately failed this session as a standby.
func (m *Machine) Unfit(now kevlard.Instant, n kevlard.NodeID) bool { return now < m.unfit[n] }

// WantsStandby returns the first hop that has no standby and could get one now, -1
// if there is none.
func (m *Machine) WantsStandby(now kevlard.Instant) int {
	if m.state != Prefill && m.state != Decode || now < m.standbyAt {
		return -1
	}
	for i, n := range m.standbys {
		if n == "" {
			return i
		}
	}
	return -1
}

// keepMarks carries over what is known of the copies whose hop and standby stay.
func (m *Machine) keepMarks(before kevlard.Route, standbys []kevlard.NodeID, marks []kevlard.Pos) {
	for i, h := range m.route {
		for j, old := range before {
			if old == h && j < len(standbys) && standbys[j] == m.standbys[i] {
				m.marks[i] = marks[j]
			}
		}
	}
}

// SetStandby gives a hop its standby. With none the session asks again later.
func (m *Machine) SetStandby(now kevlard.Instant, hop int, n kevlard.NodeID, out []Effect) []Effect {
	if n == "" {
		m.standbyAt = now.Add(m.timing.Standby)
		return out
	}
	m.standbys[hop], m.marks[hop] = n, 0
	h := m.route[hop]
	return append(out, Send{h.Node, protocol.Replicate{Session: m.id, Fence: m.fence, Lo: h.Layers.Lo, Standby: n}})
}

// HurryStandby looks for missing standbys at once: the view has changed.
func (m *Machine) HurryStandby(now kevlard.Instant) { m.standbyAt = min(m.standbyAt, now) }

// StandbyLost takes a stage's word that its standby takes no more rows.
func (m *Machine) StandbyLost(now kevlard.Instant, from kevlard.NodeID, l protocol.StandbyLost, out []Effect) []Effect {
	i := m.hop(from, l.Lo)
	if m.state == Done || i < 0 || l.Fence != m.fence || m.standbys[i] != l.Standby {
		return out
	}
	m.standbys[i], m.marks[i] = "", 0
	if !strings.HasPrefix(l.Cause, "unreachable") { // whether it can be reached the node knows better
		m.shun(now, l.Standby)
	}
	return append(out, Note{Type: "standby-lost", Node: l.Standby, Cause: l.Cause})
}

// shun does not name a node as a standby again for a while.
func (m *Machine) shun(now kevlard.Instant, n kevlard.NodeID) {
	if m.unfit == nil {
		m.unfit = map[kevlard.NodeID]kevlard.Instant{}
	}
	m.unfit[n] = now.Add(10 * m.timing.Standby)
}

// closeCopies ends the session at its standbys.
func (m *Machine) closeCopies(out []Effect) []Effect {
	for i, h := range m.copied {
		if i >= len(m.standbys) || m.standbys[i] == "" || contains(m.copied, kevlard.Hop{Node: m.standbys[i], Layers: h.Layers}) {
			continue
		}
		out = append(out, Send{m.standbys[i], protocol.Close{Session: m.id, Fence: m.fence, Lo: h.Layers.Lo}})
	}
	return out
}

// standbyRetry is Timing.Standby's default.
const standbyRetry = time.Second
