package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// formWithin is how long hosts without configured stages have to form a mesh before
// sessions and faults come.
const formWithin = 8 * time.Second

// Planned draws a scenario of hosts that take the stages of the plan, and of faults that
// make them take others on and give some up.
func Planned(seed uint64) Scenario {
	s := FromSeed(seed)
	s.Planned, s.Gentle, s.SafeOwners, s.Poison, s.Limits, s.Wire = true, false, false, 0, node.Limits{}, seed%4 == 0
	s.Layers, s.Ranges = 4, []kevlard.Layers{{Lo: 0, Hi: 2}, {Lo: 2, Hi: 4}}
	s.Copies, s.Whole, s.Cells, s.Sessions, s.MaxTokens, s.Faults = 2+int(seed%2), int(seed%3), 1<<14, 12, 150, 8
	s.Start, s.Horizon = formWithin, 20*time.Second
	s.Kinds = []Kind{Kill, Freeze, Reset, EngineKill, FalseDeath, Drain, Isolate}
	return s
}

// Replaced draws a scenario of such hosts of which one at a time is killed and comes back
// when the next one dies. Others take its layers on meanwhile, so every layer always has
// a holder, and no session of a gateway may fail.
func Replaced(seed uint64) Scenario {
	s := Planned(seed)
	s.Gentle, s.SafeOwners, s.Roam, s.Tight = true, true, false, false
	s.Faults, s.InTurn, s.Kinds = 4, 20*time.Second, []Kind{Kill}
	s.Sessions, s.Horizon = 40, s.Start+time.Duration(s.Faults)*s.InTurn
	return s
}

// inTurn kills one host after another, and starts it when the next one dies.
func (w *world) inTurn() {
	for i := range w.sc.Faults {
		var h *host
		w.after(w.sc.Start+time.Duration(i)*w.sc.InTurn, func() {
			if h = w.victim(); h != nil {
				w.say(h.id, "fault", "%s", Kill)
				h.kill()
			}
		})
		w.after(w.sc.Start+time.Duration(i+1)*w.sc.InTurn-8*time.Second, func() {
			if h != nil && h.m == nil {
				h.start()
			}
		})
	}
}

// capacity is what a host says that it could hold.
func (w *world) capacity() topology.Capacity {
	m := w.planned()
	return topology.Capacity{
		Auto: true, Devices: []topology.Device{{Budget: 1 << 20}},
		Weights: []topology.Weights{{Model: m.ID, Layers: []topology.Run{{Count: m.Layers, Bytes: 1 << 10}}, KV: 1 << 10}},
		Local:   []topology.Local{{Model: m.ID, Layers: []kevlard.Layers{{Hi: m.Layers}}}},
	}
}

// planned is the model as hosts that have it on their disks know it.
func (w *world) planned() topology.Model {
	m := w.model
	m.Width = w.toy().Width
	return m
}

// held lists the stages of a host, in order.
func (h *host) held() []kevlard.StageKey {
	var out []kevlard.StageKey
	for _, a := range h.stages {
		out = append(out, a.Key())
	}
	if h.auto && h.m != nil {
		for _, s := range h.m.Snapshot(h.w.now).Stages {
			out = append(out, s.Key)
		}
		slices.SortFunc(out, func(a, b kevlard.StageKey) int { return cmp.Compare(a.Layers.Lo, b.Layers.Lo) })
	}
	return out
}

// whole judges that hosts with a plan hold every layer at the end, twice where there are
// enough of them.
func (j *judge) whole() {
	if !j.w.sc.Planned {
		return
	}
	holders := make([]int, j.w.sc.Layers)
	hosts := 0
	for _, h := range j.w.hosts {
		if h.m == nil || !h.auto {
			continue
		}
		hosts++
		for _, s := range h.m.Snapshot(j.w.now).Stages {
			for k := s.Key.Layers.Lo; k < s.Key.Layers.Hi && s.State == topology.Ready; k++ {
				holders[k]++
			}
		}
	}
	if least := slices.Min(holders); least < min(2, hosts) {
		j.fail("at the end the layers have %v holders, and there are %d hosts", holders, hosts)
	}
}
