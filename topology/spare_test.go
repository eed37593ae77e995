package topology

import (
	"testing"

	"github.com/kevlard/kevlard"
)

// TestSpares asks whether a draining node may give its stage 0-2 of four layers up.
func TestSpares(t *testing.T) {
	m := Model{ID: kevlard.Digest{1}, Layers: 4}
	st := func(lo, hi int, class string, state StageState) Stage {
		return Stage{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: lo, Hi: hi}}, State: state, Class: class}
	}
	ready := func(lo, hi int) Stage { return st(lo, hi, "c", Ready) }
	node := func(id kevlard.NodeID, state State, s ...Stage) Node {
		return Node{ID: id, State: state, Models: []Model{m}, Stages: s}
	}
	self := node("a", Draining, ready(0, 2))
	for name, c := range map[string]struct {
		nodes []Node
		want  bool
	}{
		"nobody else":            {[]Node{self, node("b", Alive, ready(2, 4))}, false},
		"a sibling":              {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, ready(0, 2))}, true},
		"another cut":            {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, ready(0, 1), ready(1, 2))}, true},
		"a sibling that drains":  {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Draining, ready(0, 2))}, false},
		"one that is suspected":  {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Suspect, ready(0, 2))}, false},
		"one that loads":         {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, st(0, 2, "", Loading))}, false},
		"of another class":       {[]Node{self, node("b", Alive, ready(2, 4)), node("c", Alive, st(0, 2, "d", Ready))}, false},
		"its own other stage":    {[]Node{node("a", Draining, ready(0, 2), ready(2, 4)), node("c", Alive, ready(0, 2))}, true},
		"no route anyway":        {[]Node{self}, false},
		"no route, but a second": {[]Node{self, node("c", Alive, ready(0, 2))}, true},
		"an engine that is gone": {[]Node{node("a", Draining, st(0, 2, "", Cold)), node("b", Alive, ready(2, 4))}, false},
		"an unknown model":       {[]Node{{ID: "a", State: Draining, Stages: []Stage{ready(0, 2)}}}, true},
	} {
		if got := (View{Nodes: c.nodes}).Spares("a", ready(0, 2).Key, self.Stages[0].Class); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
