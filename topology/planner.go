package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// planner is the work space of one plan.
type planner struct {
	v       View
	goal    Goal
	zone    []int // of each node
	zones   int
	bins    []bin
	models  []planned
	fair    int64 // load of a device if all work were spread evenly
	fastest int64
	// together counts, by zone, the ranges that were placed for the pipeline that is
	// being filled: its stages stay in one zone where they can.
	together []int
	adopted  int // ranges given to bins that do not hold them
}

// planned is a model with what the view says about it.
type planned struct {
	Model
	sizes
	weight         int64
	want, stages   int // wanted holders of each range; wanted stages, 0: any
	replicas       int // what want was configured to be
	serves         []bool
	held           map[kevlard.Layers][]resident
	ghosts         []kevlard.Layers // held by the dead and the draining
	stood          bool             // it was held whole
	items          []*item
	resplit, whole bool
	gaps           []kevlard.Layers // of the cut that stands
	readable       []bool           // layers that some node can read from disk
}

func newPlanner(v View, g Goal) *planner {
	p := &planner{v: v, goal: g.withDefaults(), zone: make([]int, len(v.Nodes)), fastest: 1}
	var names []string
	for _, n := range v.Nodes {
		names = append(names, n.Zone)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	p.zones = len(names)
	p.together = make([]int, p.zones)
	speeds := int64(0)
	for i := range v.Nodes {
		n := &v.Nodes[i]
		p.zone[i], _ = slices.BinarySearch(names, n.Zone)
		if !n.planned() || n.State != Alive && n.State != Suspect {
			continue
		}
		for d, dev := range n.Devices[:min(len(n.Devices), maxDevices)] {
			b := bin{node: i, device: d, zone: p.zone[i], open: n.State == Alive, budget: dev.Budget, speed: dev.speed()}
			p.bins = append(p.bins, b)
			if b.open {
				speeds += b.speed
				p.fastest = max(p.fastest, b.speed)
			}
		}
	}
	p.readModels()
	total := int64(0)
	for i := range p.models {
		total += p.models[i].cost(kevlard.Layers{Hi: p.models[i].sizes.layers}) * p.models[i].weight
	}
	p.fair = total * 1000 / max(1, speeds)
	return p
}

// speed in permille, in steps of an eighth, so that measurements that differ little
// order nobody.
func (d Device) speed() int64 {
	s := min(max(d.Speed, 0), maxSpeed)
	if s == 0 {
		s = 1000
	}
	return int64(max(minSpeed, (s+62)/125*125))
}

// planned reports whether the plan decides what a node holds.
func (n *Node) planned() bool { return n.Auto && n.Role != "gateway" && len(n.Devices) > 0 }

// mayServe reports whether a node's configuration lets it hold a model.
func (n *Node) mayServe(name string) bool {
	return len(n.Serve) == 0 || slices.ContainsFunc(n.Serve, func(s Serve) bool { return s.Name == name })
}

// readModels lists the models to plan, in the order in which they get memory.
func (p *planner) readModels() {
	strays := p.v.Strays()
	weights := p.v.weights()
	for _, m := range p.v.Models() {
		w, ok := weights[m.ID]
		if !ok || m.Layers > maxLayers || !w.Check(m.Layers) || slices.ContainsFunc(strays, func(s Model) bool { return s.ID == m.ID }) {
			continue
		}
		x := planned{Model: m, sizes: newSizes(w), serves: make([]bool, len(p.v.Nodes)), held: map[kevlard.Layers][]resident{}}
		any := false
		for i := range p.v.Nodes {
			n := &p.v.Nodes[i]
			if !n.planned() || n.State == Dead || n.State == Left {
				continue
			}
			x.serves[i] = n.mayServe(m.Name)
			any = any || x.serves[i]
			for _, s := range n.Serve {
				if s.Name == m.Name {
					x.weight = max(x.weight, int64(s.Weight))
					x.want = max(x.want, s.Replicas)
					x.stages = max(x.stages, s.Stages)
				}
			}
		}
		if !any {
			continue
		}
		x.weight = min(max(x.weight, 1), maxWeight)
		x.want = min(cmp.Or(max(x.want, 0), p.goal.Replicas), maxCopies)
		x.replicas = x.want
		x.readable = p.v.readable(m)
		p.models = append(p.models, x)
	}
	index := map[kevlard.Digest]*planned{}
	for i := range p.models {
		index[p.models[i].ID] = &p.models[i]
	}
	p.readStages(index)
	for i := range p.models {
		p.models[i].stood = len(Uncovered(p.models[i].ranges(), p.models[i].Layers)) == 0
	}
	slices.SortFunc(p.models, func(a, b planned) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(flag(b.stood), flag(a.stood)),
			cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
}

// readStages files what nodes hold under its model and range.
func (p *planner) readStages(models map[kevlard.Digest]*planned) {
	first := make([]int, len(p.v.Nodes)) // a node's first bin
	for i := len(p.bins) - 1; i >= 0; i-- {
		first[p.bins[i].node] = i
	}
	for i := range p.v.Nodes {
		n := &p.v.Nodes[i]
		for _, s := range n.Stages {
			m := models[s.Key.Model]
			l := s.Key.Layers
			if m == nil || !valid(l) || l.Hi > m.Layers {
				continue
			}
			switch {
			case n.State != Alive && n.State != Suspect:
				m.ghosts = append(m.ghosts, l)
			case !n.planned() && slices.ContainsFunc(m.held[l], func(h resident) bool { return h.bin == -i-1 }): // said twice
			case !n.planned():
				m.held[l] = append(m.held[l], resident{bin: -i - 1})
			case m.serves[i] && s.Device >= 0 && s.Device < min(len(n.Devices), maxDevices):
				m.held[l] = append(m.held[l], resident{bin: first[i] + s.Device, rank: s.rank(), stages: len(n.Stages)})
			}
		}
	}
}

// rank is how little of a reason to keep a stage its state is.
func (s Stage) rank() int {
	switch {
	case s.State == Ready && !s.Releasing:
		return 0
	case s.State == Ready:
		return 1
	case !s.Releasing:
		return 2
	}
	return 3
}

func (m *planned) ranges() []kevlard.Layers {
	var out []kevlard.Layers
	for l := range m.held {
		out = append(out, l)
	}
	slices.SortFunc(out, kevlard.Layers.Compare)
	return out
}

// weights finds what each model's units weigh: nodes with the same digest agree, and
// where one does not, the first by ID counts for all.
func (v View) weights() map[kevlard.Digest]Weights {
	out := map[kevlard.Digest]Weights{}
	for _, n := range v.Nodes {
		for _, w := range n.Weights {
			if _, ok := out[w.Model]; !ok {
				out[w.Model] = w
			}
		}
	}
	return out
}

// readable tells for each layer of a model whether some node that answers has it on
// disk. The embedding counts with the first layer and the head with the last.
func (v View) readable(m Model) []bool {
	out := make([]bool, m.Layers)
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.State == Dead || n.State == Left {
			continue
		}
		for _, l := range n.local(m.ID) {
			for k := max(l.Lo, 0); k < min(l.Hi, m.Layers); k++ {
				out[k] = true
			}
		}
	}
	return out
}

func (n *Node) local(model kevlard.Digest) []kevlard.Layers {
	for _, l := range n.Local {
		if l.Model == model {
			return l.Layers
		}
	}
	return nil
}

func (m *planned) available(l kevlard.Layers) bool {
	return !slices.Contains(m.readable[l.Lo:l.Hi], false)
}

// fetch is how many bytes a node would have to get from peers to load a range.
func (m *planned) fetch(n *Node, l kevlard.Layers) int64 {
	local := n.local(m.ID)
	for _, have := range local {
		if have.Contains(l) {
			return 0
		}
	}
	bytes := m.sizes.weight(l)
	if len(local) > 0 {
		bytes -= m.globals
	}
	for k := l.Lo; k < l.Hi; k++ {
		one := kevlard.Layers{Lo: k, Hi: k + 1}
		if slices.ContainsFunc(local, func(have kevlard.Layers) bool { return have.Contains(one) }) {
			bytes -= m.sizes.weight(one) - m.globals
		}
	}
	return bytes
}
