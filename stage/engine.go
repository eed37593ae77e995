package stage

import (
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// EngineLoading records load progress in permille.
func (m *Machine) EngineLoading(engine uint64, permille int) {
	if engine == m.engine && m.state == topology.Loading {
		m.progress = permille
	}
}

// EngineReady opens the stage for sessions. cells is the number of KV positions
// that the engine was granted, cellBytes what the KV of one takes in all layers (0:
// the shell cannot move KV).
func (m *Machine) EngineReady(now kevlard.Instant, engine uint64, class string, cells, cellBytes int, out []Effect) []Effect {
	if engine != m.engine || m.state != topology.Loading {
		return out
	}
	m.state, m.class, m.progress, m.reason, m.readyAt = topology.Ready, class, 1000, "", now
	m.cells, m.cellBytes = newExtents(cells), cellBytes
	return append(out, Changed{}, Note{Type: "engine-ready", Detail: fmt.Sprintf("stage %v, %d KV positions", m.cfg.Key.Layers, cells)})
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
	m.abortTransfers()
	m.forget()
	m.batch = nil
	if m.readyAt != 0 && now.Sub(m.readyAt) >= m.cfg.Timing.Calm {
		m.failures = 0
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
	since := m.batch.started
	if m.state == topology.Stalled {
		m.batch.overdue = kevlard.Never
		return m.kill(now, since, out)
	}
	m.batch.overdue = now.Add(m.cfg.Timing.StallKill)
	return m.stall(now, since, out)
}

func (m *Machine) stall(now, since kevlard.Instant, out []Effect) []Effect {
	for _, s := range m.sorted() {
		out = append(out, Reply{s.owner, m.lost(s, "engine-stall", false)})
	}
	m.forget()
	m.state = topology.Stalled
	m.reason = fmt.Sprintf("engine does not answer for %v", now.Sub(since).Round(time.Millisecond))
	return append(out, Changed{}, Note{Type: "engine-stall", Cause: "engine-stall", Detail: m.reason})
}

func (m *Machine) kill(now, since kevlard.Instant, out []Effect) []Effect {
	return append(out, Kill{m.engine}, Note{Type: "engine-kill", Cause: "engine-stall", Detail: fmt.Sprintf("no result for %v", now.Sub(since))})
}

// forget drops every session and all queued work.
func (m *Machine) forget() {
	for _, s := range m.sorted() {
		m.drop(s)
	}
	for _, w := range m.hot() {
		m.cool(w)
	}
	m.fast, m.slow = nil, nil
}
