package stage

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// A hot copy is one that is also in cells of this node's engine, ready for the
// prepare that makes the session this stage's own. Hot copies use cells that nobody
// else wants, and give them up for any session.

// Warm brings the engine's copy of a session up to what the node has stored of it.
func (m *Machine) Warm(now kevlard.Instant, id kevlard.SessionID, out []Effect) []Effect {
	if m.state != topology.Ready || m.released || m.cfg.Copies == nil || m.cellBytes == 0 || m.slots[id] != nil {
		return out
	}
	c, ok := m.cfg.Copies.Copy(m.cfg.Key, id)
	w := m.warm[id]
	switch {
	case !ok || w != nil && w.busy():
		return out
	case w == nil:
		cells, room := m.cells.grant(c.Positions)
		if !room {
			return out
		}
		w = &slot{id: id, cells: cells}
		m.warm[id] = w
	}
	if w.salt != c.Salt {
		w.held, w.tokens, w.salt = 0, nil, c.Salt
	}
	w.held = commonPrefix(w.tokens[:w.held], c.Tokens)
	w.tokens = w.tokens[:w.held:w.held]
	pinned := m.cfg.Copies.Pin(m.cfg.Key, m.class, c.Salt, id, c.Tokens, w.held)
	if pinned.N <= w.held {
		return out
	}
	t := &transfer{slot: w, from: w.held, to: pinned.N, load: true, pinned: pinned}
	t.msg.Tokens = c.Tokens
	w.load = t
	return append(out, Load{m.engine, m.begin(now, t), id, w.held, w.cells.cell + w.held, pinned.Runs})
}

// Cool gives up the engine's copy of a session that the node keeps no more.
func (m *Machine) Cool(id kevlard.SessionID) {
	if w := m.warm[id]; w != nil {
		m.cool(w)
	}
}

func (m *Machine) cool(w *slot) {
	delete(m.warm, w.id)
	w.closed = true
	m.settle(0, w, nil) // none of it is to be kept, so there are no effects
}

// coolOne gives up one hot copy whose cells are at rest, for a session that needs
// room.
func (m *Machine) coolOne() bool {
	for _, w := range m.hot() {
		if !w.busy() {
			m.cool(w)
			return true
		}
	}
	return false
}

// adopt makes a hot copy the session's own slot.
func (m *Machine) adopt(id kevlard.SessionID) *slot {
	w := m.warm[id]
	if w == nil || w.busy() {
		return nil
	}
	delete(m.warm, id)
	return w
}

// hot returns the hot copies in the order of their sessions.
func (m *Machine) hot() []*slot {
	return slices.SortedFunc(maps.Values(m.warm), func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
}

// roomy returns the extents as they would be without hot copies.
func (m *Machine) roomy() *extents {
	if len(m.warm) == 0 {
		return m.cells
	}
	e := &extents{total: m.cells.total, free: slices.Clone(m.cells.free)}
	for _, w := range m.hot() {
		e.release(w.cells)
	}
	return e
}
