package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// A node that drains takes no new sessions as their owner, and gives its stages up. It
// waits Timing.Drain first, so that all know of it: of two holders that drain at once,
// neither counts on the other. Then the owners of the sessions at each stage are asked to
// move them; the stage goes on with a session until its owner has, because elsewhere may
// be no room. Empty stages are released. One without which there is no route stays, and
// serves those that find no other, until somebody else has its layers.

const (
	// drainEvery is how often a draining node looks whether its stages can go.
	drainEvery = 250 * time.Millisecond
	// evacuateEvery is how often the owners of sessions that are still here are asked:
	// each time costs those that find no room elsewhere the pause of a re-route.
	evacuateEvery = 5 * time.Second
	// handOver is how long a draining node waits for others to begin to load what only it
	// has: what the news of it takes, and their decision.
	handOver = 3 * time.Second
)

// draining is what a node knows of its drain.
type draining struct {
	on       bool
	orders   uint64 // to drain, or to undo it, that were taken
	since    kevlard.Instant
	at       kevlard.Instant // of the next look; Never: nothing is left to give up
	evacuate kevlard.Instant // when owners are asked again
	kept     map[kevlard.StageKey]bool
	given    []Assigned // what was given up, to be taken on again after an undo
}

func (m *Machine) drain(now kevlard.Instant, undo bool, out []Effect) []Effect {
	d := &m.drains
	if d.on == undo {
		d.on, d.at, d.kept = !undo, kevlard.Never, map[kevlard.StageKey]bool{}
		if d.on {
			d.since, d.at, d.evacuate = now, now.Add(m.cfg.Timing.Drain), now
			m.reformAt = kevlard.Never
		}
	}
	m.unsettled(now)
	return append(m.takeBack(out), m.publish())
}

// giveUp asks the owners of sessions here to move them, and releases the stages that are
// empty, as far as there are routes without them.
func (m *Machine) giveUp(now kevlard.Instant, out []Effect) []Effect {
	d := &m.drains
	if !d.on || now < d.at {
		return out
	}
	d.at = kevlard.Never
	ask := now >= d.evacuate
	for i, s := range m.stages {
		if s.Released() {
			continue
		}
		d.at = now.Add(drainEvery)
		switch {
		case !m.spares(s):
			if !d.kept[s.Key()] {
				d.kept[s.Key()] = true
				out = append(out, Report{Type: "stage-kept", Cause: "drain", Detail: fmt.Sprintf("stage %v: no other node can serve its layers", s.Key().Layers)})
			}
		case s.Sessions() == 0:
			d.given = append(d.given, m.assigned[s.Key()])
			out = m.fromStage(now, i, s.Release(now, nil), out)
		case ask:
			d.evacuate = now.Add(evacuateEvery)
			out = m.fromStage(now, i, s.Evacuate(nil), out)
		}
	}
	return out
}

// takeBack takes on again what was given up, if the node does not drain any more: each
// stage as soon as the engine that it had is gone.
func (m *Machine) takeBack(out []Effect) []Effect {
	d := &m.drains
	if d.on {
		return out
	}
	d.given = slices.DeleteFunc(d.given, func(a Assigned) bool {
		if slices.ContainsFunc(m.stages, func(s *stage.Machine) bool { return s.Key() == a.Key() && s.Released() }) {
			return false
		}
		if m.unfit(a) == "" { // else it was taken on by other means
			m.addStage(a)
			out = append(out, Report{Type: "adopt", Cause: "drain-undo", Detail: fmt.Sprintf("stage %v of %s", a.Layers, a.Model.Name)})
		}
		return true
	})
	return out
}

// spares reports whether the others can do without a stage of this node.
func (m *Machine) spares(s *stage.Machine) bool {
	return m.ownView().Without(m.cfg.Self, s.Key(), s.Advertise().Class, nil) != topology.NoHolder
}

// handsOver reports whether a draining node has layers that nobody else can serve yet, and
// that others are about to load.
func (m *Machine) handsOver(now kevlard.Instant) bool {
	if !m.drains.on {
		return false
	}
	for _, s := range m.stages {
		if s.Released() || m.spares(s) {
			continue
		}
		k := s.Key()
		for _, n := range m.view.Nodes {
			if n.ID == m.cfg.Self || n.State != topology.Alive {
				continue
			}
			if n.Auto && now < m.drains.since.Add(handOver) || slices.ContainsFunc(n.Stages, func(o topology.Stage) bool {
				return o.Key.Model == k.Model && o.Key.Layers.Lo < k.Layers.Hi && k.Layers.Lo < o.Key.Layers.Hi && (o.State == topology.Loading || o.State == topology.Cold)
			}) {
				return true
			}
		}
	}
	return false
}

// serves reports whether a node can be a hop for want of others: it is usable, or drains,
// or should be avoided.
func (m *Machine) serves(id kevlard.NodeID) bool {
	n, ok := m.view.Node(id)
	switch {
	case !m.believed(id):
		return false
	case m.usable(id):
		return true
	case id == m.cfg.Self:
		return m.drains.on || m.ailing.avoided()
	}
	return ok && (n.State == topology.Draining || n.Avoid && (n.State == topology.Alive || n.State == topology.Suspect)) && m.reach(id) && n.Boot == m.peers[id].boot
}

// withDraining is a view in which nodes that drain count like those that are suspected.
func withDraining(v topology.View) topology.View {
	out := topology.View{Nodes: slices.Clone(v.Nodes)}
	for i := range out.Nodes {
		if n := &out.Nodes[i]; n.State == topology.Draining {
			n.State = topology.Suspect
		}
	}
	return out
}
