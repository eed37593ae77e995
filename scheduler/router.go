package scheduler

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Router finds routes. It keeps its buffers, so that a decision allocates nothing. The
// zero value is ready; it is not safe for concurrent use.
type Router struct {
	ways    []way   // of the usable candidates
	groups  []group // by first layer
	classes []string
	route   kevlard.Route
	least   kevlard.Route // the best so far
}

// way is a candidate and the best way from it to the end.
type way struct {
	topology.Candidate
	own  int64 // cost of this hop
	load int
	held int

	cost int64 // from here to the end; -1: no way
	next int   // index of the next stage; -1: this is the last
	wide int   // the most that all stages from here to the end have
}

// group is the ways that begin with one layer, which stand together: those of a view
// are sorted.
type group struct {
	from, to int
	best     int // the one of least cost, the first of equals; -1: none
	wide     int
	load     int // the least
}

// Load thresholds: a node that holds prefixes of a prompt is overloaded, and gets no
// session for their sake, while it holds spreadFactor times as many sessions as the
// least loaded node with a stage of the same first layer, and spreadMore.
const (
	spreadFactor = 2
	spreadMore   = 8
)

// Route finds the route of least cost: a shortest path over the candidates in the order
// of their layers, once for each numerics class. Ties go to the lesser node ID at the
// earliest hop. Where stages have parts of the prompt, the route that has most of it
// goes first. The answer's route is valid until the next call.
func (r *Router) Route(a Ask) Answer {
	r.gather(&a)
	found, most, cost := false, 0, int64(0)
	var class string
	for _, c := range r.classes {
		wide := r.widest(&a, c)
		if wide < max(1, a.Worth) {
			wide = 0
		}
		way, sum := r.shortest(&a, c, wide)
		if way == nil && wide > 0 { // a link on it is avoided
			wide = 0
			way, sum = r.shortest(&a, c, wide)
		}
		if way == nil || found && (wide < most || wide == most && sum >= cost) {
			continue
		}
		found, most, cost, class = true, wide, sum, c
		r.route, r.least = r.least, way
	}
	if !found {
		return Answer{Missing: r.missing(&a)}
	}
	return Answer{Route: r.least, Class: class}
}

// gather takes the usable candidates, with what they cost.
func (r *Router) gather(a *Ask) {
	r.ways, r.classes = r.ways[:0], r.classes[:0]
	for _, c := range a.Candidates {
		if c.Layers.Hi > a.Layers || a.Class != "" && c.Class != a.Class || !a.Usable(c.Node) {
			continue
		}
		w := way{Candidate: c, load: a.Load(c.Node)}
		if a.Held != nil {
			w.held = a.Held(c.Node, c.Layers)
		}
		a.copies = a.copies || a.Copied != nil && a.Copied(c.Node, c.Layers) > 0
		r.ways = append(r.ways, w)
		if i, known := slices.BinarySearch(r.classes, c.Class); !known {
			r.classes = slices.Insert(r.classes, i, c.Class)
		}
	}
	if cap(r.groups) <= a.Layers {
		r.groups = make([]group, a.Layers+1)
	}
	r.groups = r.groups[:a.Layers+1]
	clear(r.groups)
	for i := range r.ways {
		w := &r.ways[i]
		w.own = a.cost(w.Candidate, w.load)
		if g := &r.groups[w.Layers.Lo]; g.to == 0 {
			*g = group{from: i, to: i + 1}
		} else {
			g.to = i + 1
		}
	}
}

// widest returns how much of the prompt all stages of some route have whose nodes are
// not overloaded.
func (r *Router) widest(a *Ask, class string) int {
	if a.Held == nil {
		return 0
	}
	for i := range r.groups {
		g := &r.groups[i]
		g.wide, g.load = 0, -1
		for _, w := range r.ways[g.from:g.to] {
			if w.Class == class && (g.load < 0 || w.load < g.load) {
				g.load = w.load
			}
		}
	}
	for i := len(r.ways) - 1; i >= 0; i-- {
		w := &r.ways[i]
		w.wide = 0
		g := &r.groups[w.Layers.Lo]
		if w.Class != class || w.load > spreadFactor*g.load+spreadMore {
			continue
		}
		if w.wide = w.held; w.Layers.Hi < a.Layers {
			w.wide = min(w.held, r.groups[w.Layers.Hi].wide)
		}
		g.wide = max(g.wide, w.wide)
	}
	return r.groups[0].wide
}

// shortest finds the route of least cost over stages that have so much of the prompt.
// It works backwards, so that among equal costs the lesser node wins at the earliest
// hop.
func (r *Router) shortest(a *Ask, class string, wide int) (kevlard.Route, int64) {
	for i := range r.groups {
		r.groups[i].best = -1
	}
	for lo := a.Layers - 1; lo >= 0; lo-- {
		g := &r.groups[lo]
		for i := g.from; i < g.to; i++ {
			w := &r.ways[i]
			w.cost, w.next = -1, -1
			if w.Class != class || w.wide < wide {
				continue
			}
			if w.Layers.Hi == a.Layers {
				w.cost = w.own
			} else if j := r.after(a, w); j >= 0 {
				w.cost, w.next = w.own+r.ways[j].cost, j
			} else {
				continue
			}
			if g.best < 0 || w.cost < r.ways[g.best].cost {
				g.best = i
			}
		}
	}
	first := r.groups[0].best
	if first < 0 {
		return nil, 0
	}
	r.route = r.route[:0]
	for i := first; i >= 0; i = r.ways[i].next {
		r.route = append(r.route, kevlard.Hop{Node: r.ways[i].Node, Layers: r.ways[i].Layers})
	}
	return r.route, r.ways[first].cost
}

// after returns the stage that a way goes on with, -1 if there is none.
func (r *Router) after(a *Ask, w *way) int {
	g := r.groups[w.Layers.Hi]
	if g.best < 0 || !a.AvoidEdge(w.Node, r.ways[g.best].Node) {
		return g.best
	}
	best := -1
	for j := g.from; j < g.to; j++ {
		if d := &r.ways[j]; d.cost >= 0 && (best < 0 || d.cost < r.ways[best].cost) && !a.AvoidEdge(w.Node, d.Node) {
			best = j
		}
	}
	return best
}

// missing names the layers that no usable candidate serves.
func (r *Router) missing(a *Ask) []kevlard.Layers {
	covered := make([]kevlard.Layers, 0, len(r.ways))
	for _, w := range r.ways {
		covered = append(covered, w.Layers)
	}
	return topology.Uncovered(covered, a.Layers)
}
