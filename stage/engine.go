package stage

import (
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// EngineLoading records load progress in permille, and whether the load waits for something
// that shows none and will end. Others are told of each tenth.
func (m *Machine) EngineLoading(engine uint64, permille int, waits bool, out []Effect) []Effect {
	if engine != m.engine || m.state != topology.Loading {
		return out
	}
	if permille/100 != m.progress/100 || waits != m.waits {
		out = append(out, Changed{})
	}
	m.progress, m.waits = permille, waits
	return out
}

// EngineReady opens the stage for sessions. cells is the number of KV positions
// that the engine was granted, cellBytes what the KV of one takes in all layers (0:
// the shell cannot move KV).
func (m *Machine) EngineReady(now kevlard.Instant, engine uint64, class string, cells, cellBytes int, out []Effect) []Effect {
	if engine != m.engine || m.state != topology.Loading || m.released {
		return out
	}
	m.unloaded = 0
	m.state, m.class, m.progress, m.reason, m.readyAt = topology.Ready, class, 1000, "", now
	m.cells, m.cellBytes = newExtents(cells), cellBytes
	m.tempo.restart()
	return append(out, Changed{}, Note{Type: "engine-ready", Detail: fmt.Sprintf("stage %v, %d KV positions, after %v", m.cfg.Key.Layers, cells, now.Sub(m.begunAt).Round(time.Millisecond))})
}

// EngineExited tells all owners at once and plans the restart. When the exit
// looks like the batch's fault, the sessions of the running batch are suspects.
func (m *Machine) EngineExited(now kevlard.Instant, engine uint64, poisonous bool, reason string, out []Effect) []Effect {
	if engine != m.engine || m.state == topology.Cold {
		return out
	}
	for _, s := range m.sorted() {
		out = append(out, Reply{s.owner, m.lost(s, "engine-exit", poisonous && s.inBatch)})
	}
	if poisonous && m.batch != nil { // whoever went elsewhere, as when the engine stalled first, may kill another one there
		for _, w := range m.batch.work {
			if m.slots[w.slot.id] != w.slot {
				out = append(out, Reply{w.slot.owner, m.lost(w.slot, "engine-exit", true)})
			}
		}
	}
	out = m.refuseParked(out)
	m.abortTransfers()
	m.forget(now)
	m.batch = nil
	if m.readyAt != 0 && now.Sub(m.readyAt) >= m.cfg.Timing.Calm {
		m.failures = 0
	}
	if m.released {
		m.state, m.readyAt, m.cells = topology.Cold, 0, newExtents(0)
		return append(out, Changed{}, Note{Type: "stage-released", Cause: "release", Detail: fmt.Sprintf("stage %v", m.cfg.Key.Layers)})
	}
	if m.state == topology.Loading {
		m.unloaded++
	}
	wait := backoff(m.cfg.Timing, m.failures)
	m.failures++
	m.state, m.readyAt, m.restartAt = topology.Cold, 0, now.Add(wait)
	m.cells = newExtents(0)
	m.reason = describe("engine exited", reason, wait)
	return append(out, Changed{}, Note{Type: "engine-exit", Cause: reason, Detail: m.reason})
}

// backoff doubles the wait with each exit in a row.
func backoff(t Timing, failures int) time.Duration {
	wait := t.RestartMin
	for range min(failures, 30) {
		if wait *= 2; wait >= t.RestartMax {
			return t.RestartMax
		}
	}
	return wait
}

// overdue takes the stage out of service while its engine does not answer, and
// kills the engine if that lasts.
func (m *Machine) overdue(now kevlard.Instant, out []Effect) []Effect {
	if m.state == topology.Stalled {
		return m.kill(m.batch.started, now, out)
	}
	return m.stall(now, m.batch.started, out)
}

// stall gives the engine Timing.StallKill to answer anything.
func (m *Machine) stall(now, since kevlard.Instant, out []Effect) []Effect {
	for _, s := range m.sorted() {
		out = append(out, Reply{s.owner, m.lost(s, "engine-stall", false)})
	}
	out = m.refuseParked(out)
	m.forget(now)
	m.state = topology.Stalled
	m.reason = fmt.Sprintf("engine does not answer for %v", now.Sub(since).Round(time.Millisecond))
	m.setOverdue(now.Add(m.cfg.Timing.StallKill))
	return append(out, Changed{}, Note{Type: "engine-stall", Cause: "engine-stall", Detail: m.reason})
}

func (m *Machine) kill(since, now kevlard.Instant, out []Effect) []Effect {
	m.setOverdue(kevlard.Never)
	return append(out, Kill{m.engine}, Note{Type: "engine-kill", Cause: "engine-stall", Detail: fmt.Sprintf("no result for %v", now.Sub(since))})
}

// setOverdue sets all deadlines that run against the engine.
func (m *Machine) setOverdue(at kevlard.Instant) {
	if m.batch != nil {
		m.batch.overdue = at
	}
	m.due = kevlard.Never
	if len(m.transfers) > 0 {
		m.due = at
	}
}

// refuseParked answers the prepares that wait for hot copies.
func (m *Machine) refuseParked(out []Effect) []Effect {
	for _, w := range m.hot() {
		if p := w.parked; p != nil {
			w.parked = nil
			m.counters.Refused++
			out = append(out, Reply{p.from, protocol.Prepared{
				Session: w.id, Fence: p.msg.Fence, Lo: m.cfg.Key.Layers.Lo, Refusal: protocol.RefusedNoStage, Detail: "the engine is gone",
			}})
		}
	}
	return out
}

// forget drops every session and all queued work. What is not kept yet is lost.
func (m *Machine) forget(now kevlard.Instant) {
	for _, s := range m.leaving {
		s.ending = false
	}
	m.leaving = nil
	for _, s := range m.sorted() {
		m.drop(now, s, nil) // none ends, so there are no effects
	}
	for _, w := range m.hot() {
		m.cool(w)
	}
	m.fast, m.slow = nil, nil
}
