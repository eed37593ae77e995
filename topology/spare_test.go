package topology

import (
	"testing"

	"github.com/kevlard/kevlard"
)

// TestWithout asks what remains when a draining node gives its stage 0-2 of four layers up.
func TestWithout(t *testing.T) {
	m := Model{ID: kevlard.Digest{1}, Layers: 4}
	st := func(lo, hi int, class string, state StageState) Stage {
		return Stage{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: lo, Hi: hi}}, State: state, Class: class}
	}
	ready := func(lo, hi int) Stage { return st(lo, hi, "c", Ready) }
	node := func(id kevlard.NodeID, state State, s ...Stage) Node {
		return Node{ID: id, State: state, Models: []Model{m}, Stages: s}
	}
	releasing := func(lo, hi int) Stage {
		s := ready(lo, hi)
		s.Releasing = true
		return s
	}
	goes := ready(2, 4)
	self := node("a", Draining, ready(0, 2))
	for name, c := range map[string]struct {
		nodes []Node
		want  Remains
	}{
		"nobody else":            {[]Node{self, node("b", Alive, ready(2, 4))}, NoHolder},
		"a sibling":              {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, ready(0, 2))}, OtherRoute},
		"another cut":            {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, ready(0, 1), ready(1, 2))}, OtherRoute},
		"a sibling that drains":  {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Draining, ready(0, 2))}, NoHolder},
		"one that is suspected":  {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Suspect, ready(0, 2))}, NoHolder},
		"one that loads":         {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, st(0, 2, "", Loading))}, NoHolder},
		"of another class":       {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, st(0, 2, "d", Ready))}, NoHolder},
		"its own other stage":    {[]Node{node("a", Draining, ready(0, 2), ready(2, 4)), node("c", Alive, ready(0, 2))}, OtherRoute},
		"no route anyway":        {[]Node{self}, NoHolder},
		"no route, but a second": {[]Node{self, node("c", Alive, ready(0, 2))}, SameLayers},
		"an engine that is gone": {[]Node{node("a", Draining, st(0, 2, "", Cold)), node("b", Alive, ready(2, 4))}, NoHolder},
		"one that releases":      {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, releasing(0, 2))}, OtherRoute},
		"one that goes first":    {[]Node{self, node("b", Alive, ready(2, 4)), node("A", Alive, releasing(0, 2))}, NoHolder},
		"a route of suspects":    {[]Node{self, node("b", Suspect, ready(2, 4)), node("c", Alive, ready(0, 2))}, SameLayers},
		"a route of a class":     {[]Node{self, node("b", Alive, st(2, 4, "d", Ready)), node("c", Alive, st(0, 2, "d", Ready))}, OtherRoute},
		"its other goes too":     {[]Node{node("a", Alive, ready(0, 2), goes), node("b", Alive, ready(0, 2))}, SameLayers},
		"an unknown model":       {[]Node{{ID: "a", State: Draining, Stages: []Stage{ready(0, 2)}}}, OtherRoute},
	} {
		going := func(k kevlard.StageKey) bool { return name == "its other goes too" && k == goes.Key }
		if got := (View{Nodes: c.nodes}).Without("a", ready(0, 2).Key, self.Stages[0].Class, going); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
