// Package scheduler chooses where sessions run. It is pure and counts in
// integers, so that two nodes with equal views choose alike.
package scheduler

import (
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
	// Held is how many leading positions of a prompt a stage has, of sessions that are
	// over or run; nil: nobody was asked. A route whose stages all have Worth of them goes
	// before others, those that have most first, while its nodes are not overloaded.
	Held  func(kevlard.NodeID, kevlard.Layers) int
	Worth int

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

// Route is Router.Route for those who ask seldom.
func Route(a Ask) Answer { return new(Router).Route(a) }

// cost of one hop, never negative: the stay bonus is a discount on a surcharge
// that every other stage pays.
func (a *Ask) cost(c topology.Candidate, load int) int64 {
	cost := int64(costHop) + int64(load)*costLoad
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
