package node

import (
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// The stages of a node come and go while it runs: each has an engine, cells and sessions
// of its own, and what is kept of their KV belongs to the node. So none notices another.

// Assigned is one stage for this node to hold.
type Assigned struct {
	Model  topology.Model
	Layers kevlard.Layers
	Width  int // bytes of one row of hidden state
	Device int // index in the node's devices
}

// Key names the stage.
func (a Assigned) Key() kevlard.StageKey {
	return kevlard.StageKey{Model: a.Model.ID, Layers: a.Layers}
}

// unfit returns why this node cannot take a stage now, "" if it can.
func (m *Machine) unfit(a Assigned) string {
	if m.drains.on {
		return "the node is draining"
	}
	l := a.Layers
	if a.Model.ID.IsZero() || l.Lo < 0 || l.Hi <= l.Lo || l.Hi > a.Model.Layers || a.Width < 1 {
		return fmt.Sprintf("layers %v of a model with %d, rows of %d bytes", l, a.Model.Layers, a.Width)
	}
	if len(m.stages) >= m.cfg.Limits.Stages {
		return fmt.Sprintf("%d stages are here, the most at once", len(m.stages))
	}
	for _, s := range m.stages {
		if s.Key() == a.Key() {
			return fmt.Sprintf("it is here, and is %s", s.Advertise().State)
		}
	}
	return ""
}

// addStage adds a stage whose engine starts at once. It must be fit.
func (m *Machine) addStage(a Assigned) {
	s := stage.New(stage.Config{
		Key: a.Key(), Last: a.Layers.Hi == a.Model.Layers,
		Width: a.Width, Copies: m.copies, Keep: true, Timing: m.cfg.Timing.Stage, Limits: m.cfg.Limits.Stage,
	})
	at, _ := slices.BinarySearchFunc(m.stages, s, func(a, b *stage.Machine) int { return a.Key().Compare(b.Key()) })
	m.stages = slices.Insert(m.stages, at, s)
	m.assigned[a.Key()] = a
}

// asked takes a stage on that an event names.
func (m *Machine) asked(now kevlard.Instant, ev Adopt, out []Effect) []Effect {
	if why := m.unfit(ev.Assigned); why != "" {
		return append(out, Report{Type: "adopt-refused", Cause: ev.Cause, Detail: fmt.Sprintf("stage %v: %s", ev.Layers, why)})
	}
	return m.adopt(now, ev.Assigned, append(out, Report{Type: "adopt", Cause: ev.Cause, Detail: fmt.Sprintf("stage %v of %s", ev.Layers, ev.Model.Name)}))
}

// adopt takes a stage on that is fit, and starts its engine.
func (m *Machine) adopt(now kevlard.Instant, a Assigned, out []Effect) []Effect {
	m.addStage(a)
	for i, s := range m.stages {
		if s.Key() == a.Key() {
			out = m.fromStage(now, i, s.Wake(now, 0, nil), out)
		}
	}
	return out
}

// release gives a stage up; it goes when its engine is gone.
func (m *Machine) release(now kevlard.Instant, ev Release, out []Effect) []Effect {
	for i, s := range m.stages {
		if s.Key() == ev.Stage {
			out = m.fromStage(now, i, s.Release(now, nil), out)
		}
	}
	return out
}

// retire carries on with the stages that are given up, and forgets those that are gone.
// It comes after everything that counts on the places of stages.
func (m *Machine) retire(now kevlard.Instant, out []Effect) []Effect {
	gone := false
	for i, s := range m.stages {
		if s.Released() {
			out = m.fromStage(now, i, s.Retire(now, nil), out)
			gone = gone || s.Gone()
		}
	}
	if !gone {
		return out
	}
	m.stages = slices.DeleteFunc(m.stages, func(s *stage.Machine) bool {
		if s.Gone() {
			m.former.add(s.Counters())
			delete(m.announced, s.Key())
			delete(m.assigned, s.Key())
		}
		return s.Gone()
	})
	m.tellAll(now)
	m.unsettled(now)
	return append(m.takeBack(out), m.publish())
}

// stageCounters is the sum of stages' counters: what is added up never falls when a
// stage goes.
type stageCounters stage.Counters

func (c *stageCounters) add(o stage.Counters) {
	c.Fenced += o.Fenced
	c.Refused += o.Refused
	c.Batches += o.Batches
	c.Rows += o.Rows
	c.Exported += o.Exported
	c.Loaded += o.Loaded
}
