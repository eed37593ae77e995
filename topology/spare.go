package topology

import (
	"slices"

	"github.com/kevlard/kevlard"
)

// Remains is what would be left of a stage's model if the stage went.
type Remains int

// What can remain; more is larger.
const (
	NoHolder   Remains = iota // layers would be lost, or the last route of the stage's class
	SameLayers                // there is no route to lose, and others hold the same layers
	OtherRoute                // a route through the whole model
)

// Without says what would remain if a node gave a stage up: what is ready on live nodes,
// and what the node keeps. class is the stage's numerics class, which sessions there can't
// change: while there is a route of it, one has to remain. going (nil: none) are the
// node's other stages that are about to go too. Of what others will give up only stages of nodes with
// a greater ID count, so that of two nodes that announce at once one goes first.
func (v View) Without(self kevlard.NodeID, key kevlard.StageKey, class string, going func(kevlard.StageKey) bool) Remains {
	m, ok := v.Model(key.Model)
	if !ok {
		return OtherRoute // nobody can ask for it
	}
	own := func(n *Node) bool {
		return n.ID == self && (n.State == Alive || n.State == Suspect || n.State == Draining)
	}
	stays := func(n *Node, s Stage) bool {
		switch {
		case s.State != Ready:
			return false
		case own(n):
			return s.Key != key && (going == nil || !going(s.Key))
		}
		return n.ID != self && n.State == Alive && (!s.Releasing || n.ID > self)
	}
	alike := func(take func(*Node, Stage) bool) func(*Node, Stage) bool {
		return func(n *Node, s Stage) bool { return s.Class == class && take(n, s) }
	}
	left := stays
	if v.routes(m, alike(func(n *Node, s Stage) bool { return answers(n, s) || own(n) && s.State == Ready })) {
		left = alike(stays)
	}
	switch {
	case v.routes(m, left):
		return OtherRoute
	case v.routes(m, func(n *Node, s Stage) bool { return left(n, s) || n.ID == self && s.Key == key && s.State == Ready }):
		return NoHolder // it is part of a route
	case v.any(key, func(n *Node, s Stage) bool { return n.ID != self && stays(n, s) }):
		return SameLayers
	}
	return NoHolder
}

// any reports whether there is a holder of a range for which take answers true.
func (v View) any(k kevlard.StageKey, take func(*Node, Stage) bool) bool {
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if slices.ContainsFunc(n.Stages, func(s Stage) bool { return s.Key == k && take(n, s) }) {
			return true
		}
	}
	return false
}
