package topology

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
)

// TestStrays checks which of several models of one name the name means (K69).
func TestStrays(t *testing.T) {
	good := Model{ID: kevlard.Digest{9}, Name: "m", Layers: 4}
	bad := Model{ID: kevlard.Digest{1}, Name: "m", Layers: 4}
	short := Model{ID: kevlard.Digest{5}, Name: "m", Layers: 2}
	other := Model{ID: kevlard.Digest{7}, Name: "o", Layers: 4}
	node := func(id string, state State, m Model, lo, hi int) Node {
		return Node{ID: kevlard.NodeID(id), State: state, Models: []Model{m}, Stages: []Stage{ready(m.ID, lo, hi)}}
	}
	for _, c := range []struct {
		name  string
		nodes []Node
		want  []Model
	}{
		{"one model", []Node{node("a", Alive, good, 0, 2)}, nil},
		{"two names", []Node{node("a", Alive, good, 0, 2), node("b", Alive, other, 0, 4)}, nil},
		{"a node with other weights", []Node{node("a", Alive, good, 0, 2), node("b", Alive, good, 2, 4), node("c", Alive, bad, 2, 4)}, []Model{bad}},
		{"also while a holder is dead", []Node{node("a", Alive, good, 0, 2), node("b", Dead, good, 2, 4), node("c", Alive, bad, 2, 4)}, []Model{bad}},
		{"also when one has left, by copies", []Node{node("a", Alive, good, 0, 2), node("a2", Alive, good, 0, 2), node("b", Left, good, 2, 4), node("c", Alive, bad, 2, 4)}, []Model{bad}},
		{"by layers", []Node{node("a", Alive, good, 0, 3), node("c", Alive, bad, 2, 4)}, []Model{bad}},
		{"a tie goes to the least ID", []Node{node("a", Alive, good, 0, 2), node("c", Alive, bad, 2, 4)}, []Model{good}},
		{"both whole", []Node{node("a", Alive, good, 0, 4), node("c", Alive, bad, 0, 4)}, nil},
		{"two whole, one not", []Node{node("a", Alive, good, 0, 4), node("b", Alive, short, 0, 2), node("c", Alive, bad, 1, 4)}, []Model{bad}},
		{"a nonsensical range", []Node{node("a", Alive, good, 0, 4), node("c", Alive, bad, 4, 0)}, []Model{bad}},
		{"nobody holds any", []Node{{ID: "a", State: Alive, Models: []Model{good, bad}}}, []Model{good}},
	} {
		if got := (View{Nodes: c.nodes}).Strays(); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	v := View{Nodes: []Node{node("a", Alive, good, 0, 4), node("b", Left, good, 0, 4), node("c", Dead, good, 0, 4), node("d", Alive, bad, 0, 4)}}
	if got := v.Holders(good.ID); !slices.Equal(got, []kevlard.NodeID{"a", "c"}) {
		t.Errorf("holders %v", got)
	}
}
