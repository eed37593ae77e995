package stage

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// A stage that is given up takes no prepare any more. Its owners are told at once, and
// go on where the copies are; what was computed here is kept in this node's block
// memory, as at the end of a session; then the engine is killed, and its memory is free.

// Release gives the stage up. Retire must be called after each event until it is Gone.
func (m *Machine) Release(now kevlard.Instant, out []Effect) []Effect {
	if m.released {
		return out
	}
	m.released, m.releaseBy = true, now.Add(m.cfg.Timing.Release)
	for _, s := range m.sorted() {
		out = append(out, Reply{s.owner, m.lost(s, "release", false)})
		s.ending = true
		out = m.drop(now, s, out)
	}
	out = m.refuseParked(out)
	for _, w := range m.hot() {
		m.cool(w)
	}
	return append(out, Changed{}, Note{Type: "stage-release", Detail: fmt.Sprintf("stage %v", m.cfg.Key.Layers)})
}

// Evacuate asks the owners of all sessions here to move them. Until they do the stage goes
// on with them.
func (m *Machine) Evacuate(out []Effect) []Effect {
	for _, s := range m.sorted() {
		out = append(out, Reply{s.owner, m.lost(s, "drain", false)})
	}
	return out
}

// Released reports whether the stage is being given up.
func (m *Machine) Released() bool { return m.released }

// Gone reports whether a stage that was given up has no engine any more.
func (m *Machine) Gone() bool { return m.released && m.state == topology.Cold }

// Retire kills the engine of a stage that is given up when nothing uses it any more, or
// when that takes too long.
func (m *Machine) Retire(now kevlard.Instant, out []Effect) []Effect {
	if !m.released || m.retired || m.state == topology.Cold {
		return out
	}
	busy := m.batch != nil || len(m.transfers)+len(m.leaving) > 0
	if m.state == topology.Ready && busy && now < m.releaseBy {
		return out
	}
	m.retired, m.releaseBy = true, kevlard.Never
	m.setOverdue(kevlard.Never)
	return append(out, Kill{m.engine})
}

// Unloadable reports whether the engine failed to load too often to try again, and why.
func (m *Machine) Unloadable() (string, bool) { return m.reason, m.unloaded >= maxUnloaded }
