package topology

import "github.com/kevlard/kevlard"

// Spares reports whether a draining node's stage can go: what is ready on live nodes, and
// what the node itself still has, makes a route without it. class is the stage's numerics
// class, which sessions there can't change. Where there is no route to lose, another
// holder of the same layers will do.
func (v View) Spares(self kevlard.NodeID, key kevlard.StageKey, class string) bool {
	m, ok := v.Model(key.Model)
	if !ok {
		return true // nobody can ask for it
	}
	stays := func(n *Node, s Stage) bool {
		return s.State == Ready && (n.ID == self && s.Key != key || n.ID != self && n.State == Alive)
	}
	with := func(n *Node, s Stage) bool {
		return s.Class == class && (stays(n, s) || n.ID == self && s.Key == key && s.State == Ready)
	}
	if v.routes(m, with) {
		return v.routes(m, func(n *Node, s Stage) bool { return s.Class == class && stays(n, s) })
	}
	return v.any(key, func(n *Node, s Stage) bool { return n.ID != self && stays(n, s) })
}
