// Package scheduler chooses where sessions run. It is pure and counts in
// integers, so that two nodes with equal views choose alike.
package scheduler

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Costs in permille of one session's load.
const (
	costLoad  = 1000  // each session that a node already holds
	costHop   = 100   // each hop: fewer, longer stages win a tie
	costCopy  = 5000  // a stage that has a copy, while the previous one is there too
	bonusStay = 10000 // a stage of the previous route: it may hold KV, and has room reserved
)

// Ask is what a route is wanted for.
type Ask struct {
	Layers     int                  // of the model
	Candidates []topology.Candidate // ready stages, sorted by layers, then node
	Class      string               // the numerics class the route must have; "" is any
	Previous   kevlard.Route
	// Copied is how many leading positions of the session's KV a node is known to have
	// for a stage that it did not compute.
	Copied func(kevlard.NodeID, kevlard.Layers) int
	copies bool // some usable candidate has one

	Load      func(kevlard.NodeID) int // sessions held, as last reported
	Usable    func(kevlard.NodeID) bool
	AvoidEdge func(from, to kevlard.NodeID) bool // "owner" is the first edge's start
}

// Answer is a route of one numerics class, or what stands in its way.
type Answer struct {
	Route   kevlard.Route // nil: there is none
	Class   string
	Missing []kevlard.Layers // layers that no usable candidate serves
}

// Route finds the route of least cost: a shortest path over the candidates in
// the order of their layers, once for each numerics class. Ties go to the lesser
// node ID at the earliest hop.
func Route(a Ask) Answer {
	usable := make([]topology.Candidate, 0, len(a.Candidates))
	var covered []kevlard.Layers
	var classes []string
	for _, c := range a.Candidates {
		if !a.Usable(c.Node) || a.Class != "" && c.Class != a.Class {
			continue
		}
		usable = append(usable, c)
		a.copies = a.copies || a.Copied != nil && a.Copied(c.Node, c.Layers) > 0
		covered = append(covered, c.Layers)
		classes = append(classes, c.Class)
	}
	slices.Sort(classes)
	best, found := Answer{}, int64(-1)
	for _, class := range slices.Compact(classes) {
		if r, cost := a.shortest(usable, class); r != nil && (found < 0 || cost < found) {
			best, found = Answer{Route: r, Class: class}, cost
		}
	}
	if best.Route == nil {
		best.Missing = topology.Uncovered(covered, a.Layers)
	}
	return best
}

// shortest works backwards, so that among equal costs the lesser node wins at
// the earliest hop.
func (a Ask) shortest(all []topology.Candidate, class string) (kevlard.Route, int64) {
	type best struct {
		cost int64 // from this stage to the end; -1: no way
		next int   // index of the next stage; -1: this is the last
	}
	ways := make([]best, len(all))
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(all[y].Layers.Lo, all[x].Layers.Lo) })
	for _, i := range order {
		c := all[i]
		ways[i] = best{-1, -1}
		if c.Class != class {
			continue
		}
		own := a.cost(c)
		if c.Layers.Hi == a.Layers {
			ways[i] = best{own, -1}
			continue
		}
		for j, d := range all {
			if d.Layers.Lo != c.Layers.Hi || ways[j].cost < 0 || a.AvoidEdge(c.Node, d.Node) {
				continue
			}
			if cost := own + ways[j].cost; ways[i].cost < 0 || cost < ways[i].cost {
				ways[i] = best{cost, j}
			}
		}
	}
	first := -1
	for i, c := range all {
		if c.Layers.Lo == 0 && ways[i].cost >= 0 && (first < 0 || ways[i].cost < ways[first].cost) {
			first = i
		}
	}
	if first < 0 {
		return nil, 0
	}
	var r kevlard.Route
	for i := first; i >= 0; i = ways[i].next {
		r = append(r, kevlard.Hop{Node: all[i].Node, Layers: all[i].Layers})
	}
	return r, ways[first].cost
}

// cost of one hop, never negative: the stay bonus is a discount on a surcharge
// that every other stage pays.
func (a Ask) cost(c topology.Candidate) int64 {
	cost := int64(costHop) + int64(a.Load(c.Node))*costLoad
	if len(a.Previous) == 0 && !a.copies {
		return cost
	}
	for _, h := range a.Previous {
		if h.Node == c.Node && h.Layers == c.Layers {
			return cost
		}
	}
	if a.Copied != nil && a.Copied(c.Node, c.Layers) > 0 {
		return cost + costCopy
	}
	return cost + bonusStay
}
