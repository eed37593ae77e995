package scheduler

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Router finds routes. It keeps its buffers, so that a decision allocates nothing. The
// zero value is ready; it is not safe for concurrent use.
type Router struct {
	ways    []way   // those that can matter, by layers, then node
	marks   []mark  // of the table's nodes
	stamp   uint64  // of this decision
	groups  []group // by first layer
	classes []string
	route   kevlard.Route
	least   kevlard.Route // the best so far
	zoned   bool          // there are candidates in several zones
	home    int           // the owner's zone; -1: none of the table's
}

// mark says which ways are of a node of which something is known.
type mark struct {
	stamp    uint64 // of the decision that it was made for
	from, to int
}

// way is a candidate and the best way from it to the end.
type way struct {
	node   kevlard.NodeID
	layers kevlard.Layers
	class  string
	zone   int
	load   int
	stays  bool // it is a hop of the previous route
	copied bool
	held   int
	own    int64 // cost of this hop

	cost int64 // from here to the end; -1: no way
	next int   // index of the next stage; -1: this is the last
	wide int   // the most that all stages from here to the end have
}

// group is the ways that begin with one layer, which stand together.
type group struct {
	from, to int
	best     int // the one of least cost, the first of equals; -1: none
	wide     int
	link     int64 // the least from the owner
	load     int   // the least of those to which that is not much more
}

// Load thresholds: a node that holds prefixes of a prompt is overloaded, and gets no
// session for their sake, while it holds spreadFactor times as many sessions as the
// least loaded node with a stage of the same first layer, and spreadMore; nodes in zones
// that are far compared with those of others do not count.
const (
	spreadFactor = 2
	spreadMore   = 8
)

// Route finds the route of least cost: a shortest path over the candidates in the order
// of their layers, once for each numerics class. Ties go to the lesser node ID at the
// earliest hop. Where stages have parts of the prompt, the route that has most of it
// goes first. The answer's route is valid until the next call.
//
// Nodes of which nothing is known but their load are alike within a row of the table: only
// the first of them that is usable can be on the route, since it can take the place of
// every other at no more cost. So these and the nodes of which more is known are all that
// is looked at; the choice is that over all candidates.
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

// gather takes the usable candidates that can matter, with what they cost.
func (r *Router) gather(a *Ask) {
	r.ways, r.classes = r.ways[:0], r.classes[:0]
	r.stamp++
	r.zoned, r.home = len(a.Table.zones) > 1, a.Table.zone(a.Zone)
	if len(r.marks) < len(a.Table.places) {
		r.marks = append(r.marks, make([]mark, len(a.Table.places)-len(r.marks))...)
	}
	surcharge := len(a.Previous) > 0
	for _, h := range a.Previous {
		if w := r.known(a, h); w != nil {
			w.stays = true
		}
	}
	for _, h := range a.Copies {
		if w := r.known(a, h); w != nil {
			w.copied, surcharge = true, true
		}
	}
	for _, h := range a.Held {
		if h.Positions < max(1, a.Worth) {
			continue
		}
		if w := r.known(a, h.Hop); w != nil {
			w.held = h.Positions
		}
	}
	for _, e := range a.Avoid {
		r.mark(a, e.From)
		r.mark(a, e.To)
	}
	for i := range a.Table.rows {
		r.first(a, &a.Table.rows[i])
	}
	slices.SortFunc(r.ways, func(v, w way) int {
		return cmp.Or(v.layers.Compare(w.layers), cmp.Compare(v.node, w.node))
	})
	if cap(r.groups) <= a.Layers {
		r.groups = make([]group, a.Layers+1)
	}
	r.groups = r.groups[:a.Layers+1]
	clear(r.groups)
	for i := range r.ways {
		w := &r.ways[i]
		w.own = w.price(surcharge)
		if j, known := slices.BinarySearch(r.classes, w.class); !known {
			r.classes = slices.Insert(r.classes, j, w.class)
		}
		if g := &r.groups[w.layers.Lo]; g.to == 0 {
			*g = group{from: i, to: i + 1}
		} else {
			g.to = i + 1
		}
	}
}

// known returns the way over a stage, nil if that can't be.
func (r *Router) known(a *Ask, h kevlard.Hop) *way {
	m := r.mark(a, h.Node)
	for i := m.from; i < m.to; i++ {
		if r.ways[i].layers == h.Layers {
			return &r.ways[i]
		}
	}
	return nil
}

// mark takes all usable stages of a node, once in a decision.
func (r *Router) mark(a *Ask, n kevlard.NodeID) mark {
	i, ok := a.Table.nodes[n]
	if !ok {
		return mark{}
	}
	m := &r.marks[i]
	if m.stamp == r.stamp {
		return *m
	}
	*m = mark{r.stamp, len(r.ways), len(r.ways)}
	p := &a.Table.places[i]
	if !a.Usable(n) {
		return *m
	}
	for _, j := range p.rows {
		if row := &a.Table.rows[j]; a.wants(row) {
			r.ways = append(r.ways, way{node: n, layers: row.layers, class: row.class, zone: row.zone, load: p.load})
		}
	}
	m.to = len(r.ways)
	return *m
}

// first takes the first usable candidate of a row of which nothing else is known.
func (r *Router) first(a *Ask, row *row) {
	if !a.wants(row) {
		return
	}
	for _, s := range row.at {
		if r.marks[s.place].stamp != r.stamp && a.Usable(s.node) {
			r.ways = append(r.ways, way{node: s.node, layers: row.layers, class: row.class, zone: row.zone, load: s.load})
			return
		}
	}
}

// wants reports whether stages of a row can be part of the route.
func (a *Ask) wants(r *row) bool {
	return r.layers.Hi <= a.Layers && (a.Class == "" || r.class == a.Class)
}

// widest returns how much of the prompt all stages of some route have whose nodes are
// not overloaded.
func (r *Router) widest(a *Ask, class string) int {
	if len(a.Held) == 0 {
		return 0
	}
	for i := range r.groups {
		g := &r.groups[i]
		g.wide, g.load, g.link = 0, -1, -1
		for j := g.from; j < g.to && r.zoned; j++ {
			if w := &r.ways[j]; w.class == class && (g.link < 0 || a.Table.link(r.home, w.zone) < g.link) {
				g.link = a.Table.link(r.home, w.zone)
			}
		}
		for j := g.from; j < g.to; j++ {
			if w := &r.ways[j]; w.class == class && r.near(a, g, w) && (g.load < 0 || w.load < g.load) {
				g.load = w.load
			}
		}
	}
	for i := len(r.ways) - 1; i >= 0; i-- {
		w := &r.ways[i]
		w.wide = 0
		g := &r.groups[w.layers.Lo]
		if w.class != class || !r.near(a, g, w) || w.load > spreadFactor*g.load+spreadMore {
			continue
		}
		if w.wide = w.held; w.layers.Hi < a.Layers {
			w.wide = min(w.held, r.groups[w.layers.Hi].wide)
		}
		g.wide = max(g.wide, w.wide)
	}
	return r.groups[0].wide
}

// near reports whether a way is not much farther from the owner than the nearest of its
// group.
func (r *Router) near(a *Ask, g *group, w *way) bool {
	return !r.zoned || a.Table.link(r.home, w.zone) <= g.link+farther
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
			if w.class != class || w.wide < wide {
				continue
			}
			if w.layers.Hi == a.Layers {
				w.cost = w.own + r.link(a, w.zone, r.home)
			} else if j, rest := r.next(a, r.groups[w.layers.Hi], w.node, w.zone); j >= 0 {
				w.cost, w.next = w.own+rest, j
			} else {
				continue
			}
			if g.best < 0 || w.cost < r.ways[g.best].cost {
				g.best = i
			}
		}
	}
	first, least := r.next(a, r.groups[0], "", r.home)
	if first < 0 {
		return nil, 0
	}
	r.route = r.route[:0]
	for i := first; i >= 0; i = r.ways[i].next {
		r.route = append(r.route, kevlard.Hop{Node: r.ways[i].node, Layers: r.ways[i].layers})
	}
	return r.route, least
}

// link is what a link costs, from one zone to another.
func (r *Router) link(a *Ask, from, to int) int64 {
	if !r.zoned {
		return 0
	}
	return a.Table.link(from, to)
}

// next returns the way of a group that a route goes on with, from a node in a zone or, with
// no node, from the owner, and what it costs with the link to it. -1: there is none.
func (r *Router) next(a *Ask, g group, from kevlard.NodeID, zone int) (best int, cost int64) {
	if g.best < 0 {
		return -1, 0
	}
	if w := &r.ways[g.best]; (!r.zoned || w.zone == zone) && !a.avoids(from, w.node) {
		return g.best, w.cost
	}
	best = -1
	for j := g.from; j < g.to; j++ {
		w := &r.ways[j]
		if w.cost < 0 || a.avoids(from, w.node) {
			continue
		}
		if c := w.cost + r.link(a, zone, w.zone); best < 0 || c < cost {
			best, cost = j, c
		}
	}
	return best, cost
}

// missing names the layers that no usable candidate serves.
func (r *Router) missing(a *Ask) []kevlard.Layers {
	covered := make([]kevlard.Layers, 0, len(r.ways))
	for _, w := range r.ways {
		covered = append(covered, w.layers)
	}
	return topology.Uncovered(covered, a.Layers)
}
