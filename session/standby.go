package session

import (
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// CopiedRoute returns the route that was set last; Standbys and Marks are of its
// hops, also when it is no longer in use.
func (m *Machine) CopiedRoute() kevlard.Route { return m.copied }

// Standbys returns the standby of each hop of CopiedRoute; "" is none.
func (m *Machine) Standbys() []kevlard.NodeID { return m.standbys }

// Marks returns, for each hop of CopiedRoute, how many leading positions
// its standby has acknowledged.
func (m *Machine) Marks() []kevlard.Pos { return m.marks }

// Source is a node that has a copy of the leading Mark positions of a stage.
type Source struct {
	Node kevlard.NodeID
	Mark kevlard.Pos
}

// keptCopy is what a standby has that is no longer a hop's standby, because it became
// a hop itself or was replaced: until a newer copy has as much, it is worth asking.
type keptCopy struct {
	layers kevlard.Layers
	Source
}

// keepCopies remembers the copies of the route set last before another is set.
func (m *Machine) keepCopies() {
	for i := range m.copied {
		m.keep(i)
	}
}

// keep remembers the copy of one hop: one for each stage, the longest.
func (m *Machine) keep(hop int) {
	if m.standbys[hop] == "" || m.marks[hop] <= 0 {
		return
	}
	k := keptCopy{m.copied[hop].Layers, Source{m.standbys[hop], m.marks[hop]}}
	for i, old := range m.kept {
		if old.layers == k.layers {
			if k.Mark >= old.Mark {
				m.kept[i] = k
			}
			return
		}
	}
	if len(m.kept) < protocol.MaxHops {
		m.kept = append(m.kept, k)
	}
}

// BestCopy returns the longest copy of a stage's KV at a node that fits; the zero
// value if there is none.
func (m *Machine) BestCopy(l kevlard.Layers, fits func(kevlard.NodeID) bool) Source {
	var best Source
	for i, h := range m.copied {
		if h.Layers == l && m.standbys[i] != "" && m.marks[i] > best.Mark && fits(m.standbys[i]) {
			best = Source{m.standbys[i], m.marks[i]}
		}
	}
	for _, k := range m.kept {
		if k.layers == l && k.Mark > best.Mark && fits(k.Node) {
			best = k.Source
		}
	}
	return best
}

// Copies appends the stages that nodes are known to have a part of the session's KV for
// as the standby, now or before. One may come twice.
func (m *Machine) Copies(out []kevlard.Hop) []kevlard.Hop {
	for i, h := range m.copied {
		if m.standbys[i] != "" && m.marks[i] > 0 {
			out = append(out, kevlard.Hop{Node: m.standbys[i], Layers: h.Layers})
		}
	}
	for _, k := range m.kept {
		if k.Mark > 0 {
			out = append(out, kevlard.Hop{Node: k.Node, Layers: k.layers})
		}
	}
	return out
}

// marked takes what the stages say of their standbys. A stage that has none although
// one was named a while ago missed it.
func (m *Machine) marked(now kevlard.Instant, marks []kevlard.Pos) {
	if len(marks) != len(m.marks) {
		return
	}
	for i, mark := range marks {
		switch {
		case mark >= 0:
			m.marks[i] = mark
		case m.standbys[i] != "" && now.Sub(m.namedAt) > 2*m.timing.Standby:
			m.keep(i)
			m.standbys[i], m.marks[i] = "", 0
		}
	}
}

// Unfit reports whether a node lately failed this session as a standby.
func (m *Machine) Unfit(now kevlard.Instant, n kevlard.NodeID) bool { return now < m.unfit[n] }

// WantsStandby returns the first hop that has no standby and could get one now, -1
// if there is none.
func (m *Machine) WantsStandby(now kevlard.Instant) int {
	if m.state != Prefill && m.state != Decode {
		return -1
	}
	for i, n := range m.standbys {
		if n == "" && now >= m.standbyAt[i] {
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
		m.standbyAt[hop] = now.Add(m.timing.Standby)
		return out
	}
	m.keep(hop)
	m.standbys[hop], m.marks[hop], m.namedAt = n, 0, now
	m.touch(n, m.route[hop].Layers)
	h := m.route[hop]
	return append(out, Send{h.Node, protocol.Replicate{Session: m.id, Fence: m.fence, Lo: h.Layers.Lo, Standby: n}})
}

// HurryStandby looks for missing standbys at once: the view has changed.
func (m *Machine) HurryStandby() { clear(m.standbyAt) }

// StandbyLost takes a stage's word that its standby takes no more rows, or that a node
// that was to have a copy has none or can't send it.
func (m *Machine) StandbyLost(now kevlard.Instant, from kevlard.NodeID, l protocol.StandbyLost, out []Effect) []Effect {
	i := m.hop(from, l.Lo)
	if m.state == Done || i < 0 || l.Fence != m.fence {
		return out
	}
	m.kept = slices.DeleteFunc(m.kept, func(k keptCopy) bool { return k.Node == l.Standby && k.layers == m.route[i].Layers })
	if m.standbys[i] != l.Standby {
		return out
	}
	m.marks[i] = 0
	if strings.HasPrefix(l.Cause, "no copy") {
		return out // it can still be given one
	}
	m.standbys[i] = ""
	pause := 10 * m.timing.Standby
	if strings.HasPrefix(l.Cause, "unreachable") { // it may be back soon
		pause = m.timing.Standby
	}
	m.shun(l.Standby, now.Add(pause))
	return append(out, Note{Type: "standby-lost", Node: l.Standby, Cause: l.Cause})
}

// shun does not name a node as a standby again for a while.
func (m *Machine) shun(n kevlard.NodeID, until kevlard.Instant) {
	if m.unfit == nil {
		m.unfit = map[kevlard.NodeID]kevlard.Instant{}
	}
	m.unfit[n] = until
}

// touch remembers who may have something of the session, to close it in the end. What
// does not fit is given up there when the lease ends.
func (m *Machine) touch(n kevlard.NodeID, l kevlard.Layers) {
	h := kevlard.Hop{Node: n, Layers: l}
	if n != "" && len(m.touched) < protocol.MaxHops && !contains(m.touched, h) {
		m.touched = append(m.touched, h)
	}
}

// closeCopies ends the session wherever it has left something.
func (m *Machine) closeCopies(out []Effect) []Effect {
	for _, h := range m.touched {
		if !contains(m.route, h) && !contains(m.old, h) {
			out = append(out, Send{h.Node, protocol.Close{Session: m.id, Fence: m.fence, Lo: h.Layers.Lo}})
		}
	}
	return out
}

// standbyRetry is Timing.Standby's default.
const standbyRetry = time.Second
