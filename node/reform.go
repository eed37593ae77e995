package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// A node whose stages are not configured takes those that the plan gives it. Each node
// plans from its own view and carries out its own part; see package topology.

// reformEvery bounds how often a node plans anew while its view keeps changing: a plan
// for a thousand nodes takes tens of milliseconds.
const reformEvery = 100 * time.Millisecond

// advertise is what others are told of the stages here.
func (m *Machine) advertise() []topology.Stage {
	var out []topology.Stage
	for _, s := range m.stages {
		a := s.Advertise()
		a.Device, a.Releasing = m.assigned[s.Key()].Device, m.announced[s.Key()] || s.Released()
		out = append(out, a)
	}
	return m.withWords(out)
}

// unsettled makes the node look at the plan again, unless it drains: then it gives all up
// on its own.
func (m *Machine) unsettled(now kevlard.Instant) {
	if m.reformer != nil && !m.drains.on {
		m.reformAt = min(m.reformAt, max(now, m.reformed.Add(reformEvery)))
	}
}

// reform carries out this node's part of the plan, if it is time to look at it.
func (m *Machine) reform(now kevlard.Instant, out []Effect) []Effect {
	if m.reformer == nil || now < m.reformAt {
		return out
	}
	m.reformed, m.reformAt = now, kevlard.Never
	before := m.reformer.Failed()
	out = m.giveBack(now, out)
	for _, a := range m.reformer.Step(now, m.ownView(), nil) {
		out = m.carryOut(now, a, out)
	}
	m.reformAt = min(m.reformAt, max(m.reformer.Deadline(), now.Add(reformEvery)))
	if !slices.Equal(before, m.reformer.Failed()) {
		out = append(out, m.publish())
	}
	return out
}

// ownView is the view with what this node knows better: its own stages, and when it
// heard others last. A peer that is not believed holds nothing for others, as one that
// drains: somebody else takes its layers on, which also tells of two that dispute each
// other who is right.
func (m *Machine) ownView() topology.View {
	v := topology.View{Nodes: slices.Clone(m.view.Nodes)}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if p := m.peers[n.ID]; p != nil {
			n.Heard = p.heardAt
		}
		drains := !m.believed(n.ID)
		if n.ID == m.cfg.Self {
			n.Stages, drains = m.advertise(), m.drains.on
		}
		if drains && n.State == topology.Alive {
			n.State = topology.Draining
		}
	}
	return v
}

// giveBack lets others have the stages that could not be loaded here.
func (m *Machine) giveBack(now kevlard.Instant, out []Effect) []Effect {
	for i, s := range m.stages {
		if why, no := s.Unloadable(); no && !s.Released() {
			m.reformer.LoadFailed(now, s.Key(), why)
			out = m.countReform("load-failed", fmt.Sprintf("give stage %v of %s back: %s", s.Key().Layers, m.modelName(s.Key().Model), why), out)
			out = m.fromStage(now, i, s.Release(now, nil), out)
		}
	}
	return out
}

// carryOut does one thing that the plan asks for.
func (m *Machine) carryOut(now kevlard.Instant, a topology.Action, out []Effect) []Effect {
	what := fmt.Sprintf("stage %v of %s", a.Key.Layers, m.modelName(a.Key.Model))
	switch a.Do {
	case topology.Adopt:
		model, _ := m.view.Model(a.Key.Model)
		s := Assigned{Model: model, Layers: a.Key.Layers, Width: model.Width, Device: a.Device}
		if why := m.unfit(s); why != "" {
			m.reformer.LoadFailed(now, a.Key, why)
			return m.countReform("load-failed", fmt.Sprintf("no place for %s: %s", what, why), out)
		}
		out = m.countReform(string(a.Reason), fmt.Sprintf("adopt %s, %d bytes from %s", what, a.Bytes, a.Source), out)
		return m.adopt(now, s, out)
	case topology.Announce, topology.Retain:
		m.announced[a.Key] = a.Do == topology.Announce
		return append(out, Report{Type: "reform", Cause: string(a.Reason), Detail: fmt.Sprintf("%s %s", a.Do, what)}, m.publish())
	case topology.Release:
		if slices.ContainsFunc(m.stages, func(s *stage.Machine) bool { return s.Key() == a.Key && !s.Released() }) {
			out = m.countReform(string(a.Reason), "release "+what, out)
			return m.release(now, Release{a.Key}, out)
		}
	}
	return out
}

// countReform counts and reports a change of what this node holds.
func (m *Machine) countReform(reason, detail string, out []Effect) []Effect {
	m.counters.Reforms[reason]++
	return append(out, Report{Type: "reform", Cause: reason, Detail: detail})
}

func (m *Machine) modelName(id kevlard.Digest) string {
	if model, ok := m.view.Model(id); ok {
		return model.Name
	}
	return id.Short()
}
