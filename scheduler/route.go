// Package scheduler chooses where sessions run. It is pure and counts in
// integers, so that two nodes with equal views choose alike.
package scheduler

import (
	"time"

	"github.com/kevlard/kevlard"
)

// Costs in permille of one session's load.
const (
	costLoad  = 1000  // each session that a node already holds
	costHop   = 100   // each hop: fewer, longer stages win a tie
	costCopy  = 5000  // a stage that has a copy, while the previous one is there too
	bonusStay = 10000 // a stage of the previous route: it may hold KV, and has room reserved

	// costLink is what a millisecond on the way of every token costs, so that a session
	// counts as 2.5 ms of a node's time: eight on each node of a pipeline of four weigh as
	// much as 40 ms there and back. costZone is the least for a link between two zones.
	costLink = 400
	costZone = 200
	// maxRTT is the longest round trip that costs more than shorter ones.
	maxRTT = time.Second
	// farther is by how much links may cost more to a zone where a prefix is followed to.
	// Beyond, it is fetched or computed once rather than every token sent so far.
	farther = 1000
)

// Ask is what a route is wanted for. What is known of single stages comes as lists, which
// are short: a decision takes time for each of their entries, not for each candidate.
type Ask struct {
	Layers   int    // of the model
	Table    *Table // of its ready stages
	Class    string // the numerics class the route must have; "" is any
	Zone     string // of the owner: where tokens come from and go to
	Previous kevlard.Route
	// Copies are stages that are known to have a part of the session's KV that they did
	// not compute.
	Copies []kevlard.Hop
	// Held is which stages have a part of the prompt, of sessions that are over or run. A
	// route whose stages all have Worth of it goes before others, those that have most
	// first, while its nodes are not overloaded. What has less does not count.
	Held  []Held
	Worth int

	Usable func(kevlard.NodeID) bool
	Avoid  []Edge
}

// Held is how many leading positions of a prompt a stage has.
type Held struct {
	kevlard.Hop
	Positions int
}

// Edge is a link between two nodes, in the direction of the work.
type Edge struct{ From, To kevlard.NodeID }

// Answer is a route of one numerics class, or what stands in its way.
type Answer struct {
	Route   kevlard.Route // nil: there is none
	Class   string
	Missing []kevlard.Layers // layers that no usable candidate serves
}

// avoids reports whether a link is not to be used.
func (a *Ask) avoids(from, to kevlard.NodeID) bool {
	for _, e := range a.Avoid {
		if e.From == from && e.To == to {
			return true
		}
	}
	return false
}

// price of one hop, never negative: the stay bonus is a discount on a surcharge
// that every other stage pays, if there is one to stay at or a copy.
func (w *way) price(surcharge bool) int64 {
	cost := int64(costHop) + int64(w.load)*costLoad
	switch {
	case !surcharge || w.stays:
		return cost
	case w.copied:
		return cost + costCopy
	}
	return cost + bonusStay
}
