package scheduler

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Standby chooses who keeps the copy of one hop's KV: a usable node with the same
// layers and numerics class, which can go on from it at once. One in another zone
// than the hop's is preferred, then one that is not on the route itself, because its
// loss would cost two things, then the least loaded; ties go to the lesser node ID.
// The result is empty if there is none.
func Standby(v topology.View, candidates []topology.Candidate, r kevlard.Route, hop int, class string, usable func(kevlard.NodeID) bool, load func(kevlard.NodeID) int) kevlard.NodeID {
	own, _ := v.Node(r[hop].Node)
	var best kevlard.NodeID
	var least [3]int
	for _, c := range candidates {
		if c.Layers != r[hop].Layers || c.Class != class || c.Node == r[hop].Node || !usable(c.Node) {
			continue
		}
		cost := [3]int{0, 0, load(c.Node)}
		if n, _ := v.Node(c.Node); n.Zone == own.Zone && own.Zone != "" {
			cost[0] = 1
		}
		if r.Uses(c.Node) {
			cost[1] = 1
		}
		if best == "" || less(cost, least) {
			best, least = c.Node, cost
		}
	}
	return best
}

// Keeper chooses who keeps a hop's copy when no node can go on from it: any usable
// host; the preferences are those of Standby. A later holder of the stage fetches the
// copy from there.
func Keeper(v topology.View, r kevlard.Route, hop int, usable func(kevlard.NodeID) bool, load func(kevlard.NodeID) int) kevlard.NodeID {
	own, _ := v.Node(r[hop].Node)
	var best kevlard.NodeID
	var least [3]int
	for _, n := range v.Nodes {
		if n.Role == "gateway" || n.ID == r[hop].Node || !usable(n.ID) {
			continue
		}
		cost := [3]int{0, 0, load(n.ID)}
		if n.Zone == own.Zone && own.Zone != "" {
			cost[0] = 1
		}
		if r.Uses(n.ID) {
			cost[1] = 1
		}
		if best == "" || less(cost, least) {
			best, least = n.ID, cost
		}
	}
	return best
}

func less(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
