package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// Plan is who should hold what. It is a function of the view and the goal alone.
type Plan struct{ Models []ModelPlan }

// ModelPlan is the plan for one model.
type ModelPlan struct {
	Model     Model
	Want      int // holders wanted for each range: pipelines
	Pipelines int // holders of the range that has fewest
	Ranges    []Placement
	// Missing are the layers that no node can hold, for want of memory or of anybody who
	// has them on disk. The model is degraded until a node joins.
	Missing []kevlard.Layers
	// Needs and Free say, where somebody has the missing layers on disk, that memory is
	// what they want: bytes of their weights with the least room for KV, and bytes that the
	// plan leaves free on devices that may hold them. Needs is 0 where memory is not the
	// reason, or where a load failed.
	Needs, Free int64
	Resplit     bool // the cut differs from what stands
}

// Placement is a range and who should hold it, by node ID.
type Placement struct {
	Layers  kevlard.Layers
	Bytes   int64 // of its weights
	Holders []Holder
}

// Source is where a stage's weights come from.
type Source string

// The sources of weights, the best first.
const (
	Resident Source = "resident" // it is held already, or being loaded
	Disk     Source = "disk"
	Peer     Source = "peer"
)

// Reason is why a stage is adopted or released: an event's and a metric's word.
type Reason string

// The reasons of a re-form.
const (
	Join      Reason = "join"      // there was memory for more than was held
	Death     Reason = "death"     // a holder is gone
	Drained   Reason = "drain"     // a holder is about to go
	Resplit   Reason = "resplit"   // the layers are cut anew
	Rebalance Reason = "rebalance" // another node has less to do
	Unserved  Reason = "unserved"  // no configuration wants the model there
	LoadStuck Reason = "load-stuck"
)

// Holder is a node that should hold a range.
type Holder struct {
	Node   kevlard.NodeID
	Device int
	Source Source
	Fetch  int64  // bytes from peers
	Reason Reason // of a holder that is not resident
}

// Plan computes the desired assignment.
func (v View) Plan(g Goal) Plan {
	v = v.sorted()
	p := newPlanner(v, g)
	p.leanOnAll()
	for i := range p.models {
		p.cover(i)
	}
	// Who stood first no longer matters, or else carrying out the plan would change it.
	slices.SortFunc(p.models, func(a, b planned) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	p.widen()
	// Balancing may make room for a holder that found none before.
	for round := 0; p.fillLevels() > 0 || round == 0; round++ {
		p.balance()
		if round == maxRounds {
			break
		}
	}
	p.keepIdle()
	return p.plan()
}

// sorted returns the view with its nodes in the order of their IDs.
func (v View) sorted() View {
	byID := func(a, b Node) int { return cmp.Compare(a.ID, b.ID) }
	if slices.IsSortedFunc(v.Nodes, byID) {
		return v
	}
	nodes := slices.Clone(v.Nodes)
	slices.SortStableFunc(nodes, byID)
	return View{Nodes: nodes}
}

// leanOnAll counts all that is held as probably kept, until it is known what is.
func (p *planner) leanOnAll() {
	for i := range p.models {
		m := &p.models[i]
		for l, holders := range m.held {
			it := item{need: m.need(l), unit: m.cost(l) * m.weight / int64(m.want)}
			for _, h := range holders {
				if h.bin >= 0 {
					p.lean(&it, h.bin, 1)
				}
			}
		}
	}
}

// widen sets how many holders each range should have: the wanted replicas, and where
// devices are left, as many more pipelines as those make, by the models' weights.
func (p *planner) widen() {
	useful := make([]bool, len(p.bins))
	devices := 0
	taken := func(m *planned, want int) (n int) {
		for _, it := range m.items {
			n += max(0, want-it.pinned)
		}
		return n
	}
	for i := range p.models {
		m := &p.models[i]
		devices -= taken(m, m.want)
		for _, it := range m.items {
			for _, c := range it.candidates {
				useful[c.bin] = true
			}
			for _, h := range it.holders {
				useful[h.bin] = true
			}
		}
	}
	for _, u := range useful {
		devices += int(flag(u))
	}
	for {
		var next *planned
		for i := range p.models {
			m := &p.models[i]
			if !m.whole || taken(m, m.want+1)-taken(m, m.want) > devices || len(m.items) == 0 || m.want >= len(p.v.Nodes) {
				continue
			}
			// The one that is furthest below its share comes next.
			if next == nil || int64(m.want*len(m.items))*next.weight < int64(next.want*len(next.items))*m.weight {
				next = m
			}
		}
		if next == nil {
			break
		}
		devices -= taken(next, next.want+1) - taken(next, next.want)
		next.want++
	}
	p.settleLoads()
}

// settleLoads computes loads anew with the final number of copies, and leans on those
// holders that will be kept.
func (p *planner) settleLoads() {
	for i := range p.bins {
		b := &p.bins[i]
		b.load, b.soft, b.leaned = 0, 0, 0
	}
	for i := range p.models {
		m := &p.models[i]
		for _, it := range m.items {
			it.want = m.want
			it.unit = max(1, m.cost(it.layers)*m.weight/int64(m.want))
			for _, b := range it.copies {
				p.bins[b].load += p.bins[b].time(it)
			}
			slices.SortFunc(it.holders, func(a, b resident) int {
				return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.stages, b.stages), cmp.Compare(a.bin, b.bin))
			})
			left := m.want - it.pinned - len(it.copies)
			for k := range it.holders {
				h := &it.holders[k]
				h.leaning = left > 0 && !slices.Contains(it.copies, h.bin)
				if h.leaning {
					left--
					p.lean(it, h.bin, 1)
				}
			}
		}
	}
}

// fillLevels gives every range its wanted holders, one after the other, and counts those
// that do not hold it yet.
func (p *planner) fillLevels() int {
	before := p.adopted
	for level, more := 1, true; more; level++ {
		more = false
		for i := range p.models {
			p.keepLevel(&p.models[i], level) // of all, before anything new takes the memory
		}
		for i := range p.models {
			more = p.adoptLevel(&p.models[i], level) || more
		}
	}
	return p.adopted - before
}

// keepLevel keeps up to that many holders of each range of a model.
func (p *planner) keepLevel(m *planned, level int) {
	for _, it := range m.items {
		if n := len(it.copies) + it.pinned; n > 0 && n < level && level <= m.want {
			p.keep(it)
		}
	}
}

// adoptLevel gives each range of a model that many holders, if there is memory, and
// reports whether the model wants more than that.
func (p *planner) adoptLevel(m *planned, level int) bool {
	if level > m.want {
		return false
	}
	clear(p.together)
	for _, it := range m.items {
		if n := len(it.copies); n > 0 && n+it.pinned == level {
			p.together[p.bins[it.copies[n-1]].zone]++
		}
	}
	short := slices.DeleteFunc(slices.Clone(m.items), func(it *item) bool {
		n := len(it.copies) + it.pinned
		return n == 0 || n >= level
	})
	slices.SortStableFunc(short, func(a, b *item) int {
		return cmp.Or(cmp.Compare(len(a.copies)+a.pinned, len(b.copies)+b.pinned), cmp.Compare(b.unit, a.unit), cmp.Compare(b.need, a.need))
	})
	for i, it := range short {
		if p.adopt(it) || level <= m.replicas {
			continue
		}
		// A pipeline beyond the wanted replicas is of use only as a whole.
		for _, o := range short[:i] {
			p.unplace(o, o.copies[len(o.copies)-1])
			p.adopted--
		}
		m.want = level - 1
		break
	}
	return level < m.want
}

// keepIdle lets devices that have nothing else to hold keep what they have.
func (p *planner) keepIdle() {
	for i := range p.models {
		for _, it := range p.models[i].items {
			for _, h := range it.holders {
				if b := &p.bins[h.bin]; b.used == 0 && !it.on[b.node] && it.need <= b.budget {
					p.place(it, h.bin)
				}
			}
		}
	}
}

// plan writes down the result.
func (p *planner) plan() Plan {
	var out Plan
	for i := range p.models {
		m := &p.models[i]
		mp := ModelPlan{Model: m.Model, Want: m.want, Resplit: m.resplit}
		var placed []kevlard.Layers
		for _, it := range m.items {
			pl := Placement{Layers: it.layers, Bytes: m.sizes.weight(it.layers)}
			for _, h := range m.held[it.layers] {
				if h.bin < 0 {
					pl.Holders = append(pl.Holders, Holder{Node: p.v.Nodes[-h.bin-1].ID, Source: Resident})
				}
			}
			why := p.reason(m, it)
			for _, b := range it.copies {
				pl.Holders = append(pl.Holders, p.holder(m, it, b, why))
			}
			slices.SortFunc(pl.Holders, func(a, b Holder) int {
				return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Device, b.Device))
			})
			if len(mp.Ranges) == 0 || len(pl.Holders) < mp.Pipelines {
				mp.Pipelines = len(pl.Holders)
			}
			if len(pl.Holders) > 0 {
				placed = append(placed, it.layers)
			}
			mp.Ranges = append(mp.Ranges, pl)
		}
		mp.Missing = Uncovered(placed, m.Model.Layers)
		mp.Needs, mp.Free = p.cramped(m, mp.Missing)
		out.Models = append(out.Models, mp)
	}
	slices.SortFunc(out.Models, func(a, b ModelPlan) int {
		return cmp.Or(cmp.Compare(a.Model.Name, b.Model.Name), slices.Compare(a.Model.ID[:], b.Model.ID[:]))
	})
	return out
}

// cramped returns what missing layers take and what is free for them, nothing where
// memory is not what they miss.
func (p *planner) cramped(m *planned, missing []kevlard.Layers) (needs, free int64) {
	for _, l := range missing {
		if !m.available(l) {
			return 0, 0
		}
		needs += m.need(l)
	}
	if needs == 0 {
		return 0, 0
	}
	for _, b := range p.bins {
		if !b.open || !m.serves[b.node] {
			continue
		}
		for _, f := range p.v.Nodes[b.node].Failed {
			if f.Key.Model == m.ID {
				return 0, 0
			}
		}
		free += max(0, b.budget-b.used)
	}
	return needs, free
}

func (p *planner) holder(m *planned, it *item, b int, why Reason) Holder {
	n := &p.v.Nodes[p.bins[b].node]
	h := Holder{Node: n.ID, Device: p.bins[b].device, Source: Resident}
	if p.holds(it, b) {
		return h
	}
	h.Fetch, h.Source, h.Reason = m.fetch(n, it.layers), Disk, why
	if slices.Contains(it.moved, b) {
		h.Reason = Rebalance
	}
	if h.Fetch > 0 {
		h.Source = Peer
	}
	return h
}

// reason says why those who do not hold a range yet should.
func (p *planner) reason(m *planned, it *item) Reason {
	k := kevlard.StageKey{Model: m.ID, Layers: it.layers}
	switch {
	case m.resplit:
		return Resplit
	case len(it.holders)+it.pinned >= m.want:
		return Rebalance
	case p.v.lost(k):
		return Death
	case p.v.heldBy(k, Draining):
		return Drained
	}
	return Join
}

// lost reports whether a node that is gone held some of a stage's layers.
func (v View) lost(k kevlard.StageKey) bool { return v.heldBy(k, Dead, Left) }

func (v View) heldBy(k kevlard.StageKey, states ...State) bool {
	return slices.ContainsFunc(v.Nodes, func(n Node) bool { return slices.Contains(states, n.State) && n.has(k) })
}

// has reports whether a node holds some of a stage's layers.
func (n *Node) has(k kevlard.StageKey) bool {
	return slices.ContainsFunc(n.Stages, func(s Stage) bool {
		return s.Key.Model == k.Model && s.Key.Layers.Lo < k.Layers.Hi && k.Layers.Lo < s.Key.Layers.Hi
	})
}
