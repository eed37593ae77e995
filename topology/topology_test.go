package topology

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

func TestUncoveredAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		var ranges []kevlard.Layers
		covered := make([]bool, n)
		for range rapid.IntRange(0, 6).Draw(t, "ranges") {
			lo := rapid.IntRange(0, 24).Draw(t, "lo")
			r := kevlard.Layers{Lo: lo, Hi: lo + rapid.IntRange(1, 8).Draw(t, "len")}
			ranges = append(ranges, r)
			for i := r.Lo; i < min(r.Hi, n); i++ {
				covered[i] = true
			}
		}
		before := slices.Clone(ranges)
		var want []kevlard.Layers
		for i := 0; i < n; i++ {
			if covered[i] {
				continue
			}
			lo := i
			for i < n && !covered[i] {
				i++
			}
			want = append(want, kevlard.Layers{Lo: lo, Hi: i})
		}
		if got := Uncovered(ranges, n); !slices.Equal(got, want) {
			t.Fatalf("Uncovered(%v, %d) = %v, want %v", ranges, n, got, want)
		}
		if !slices.Equal(before, ranges) {
			t.Fatal("the argument was changed")
		}
	})
}

func ready(model kevlard.Digest, lo, hi int) Stage {
	return Stage{Key: kevlard.StageKey{Model: model, Layers: kevlard.Layers{Lo: lo, Hi: hi}}, State: Ready, Class: "c"}
}

func TestCandidates(t *testing.T) {
	m, other := kevlard.Digest{1}, kevlard.Digest{2}
	loading := ready(m, 0, 2)
	loading.State = Loading
	v := View{Nodes: []Node{
		{ID: "a", State: Alive, Stages: []Stage{ready(m, 2, 4), ready(other, 0, 4)}},
		{ID: "b", State: Suspect, Stages: []Stage{ready(m, 0, 2)}},
		{ID: "c", State: Dead, Stages: []Stage{ready(m, 0, 2)}},
		{ID: "d", State: Draining, Stages: []Stage{ready(m, 0, 2)}},
		{ID: "e", State: Left, Stages: []Stage{ready(m, 0, 2)}},
		{ID: "f", State: Alive, Stages: []Stage{loading}},
		{ID: "g", State: Alive, Stages: []Stage{ready(m, 0, 2), ready(m, 3, 3), ready(m, 4, 2), ready(m, -1, 2)}},
	}}
	var got []string
	for _, c := range v.Candidates(m) {
		got = append(got, string(c.Node)+c.Layers.String())
	}
	if want := []string{"b[0,2)", "g[0,2)", "a[2,4)"}; !slices.Equal(got, want) {
		t.Errorf("candidates %v, want %v", got, want)
	}
}

func TestLayout(t *testing.T) {
	m := Model{ID: kevlard.Digest{1}, Name: "m", Layers: 4}
	stalled := ready(m.ID, 2, 4)
	stalled.State = Stalled
	v := View{Nodes: []Node{
		{ID: "a", State: Alive, Stages: []Stage{ready(m.ID, 0, 2)}},
		{ID: "b", State: Alive, Stages: []Stage{stalled}},
		{ID: "c", State: Dead, Stages: []Stage{ready(m.ID, 0, 2)}},
		{ID: "d", State: Alive, Stages: []Stage{{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: 4, Hi: 4}}, State: Ready}}},
	}}
	l := v.Layout(m)
	if len(l.Pipelines) != 2 || l.Pipelines[0].ID != "p0" {
		t.Fatalf("pipelines %+v", l.Pipelines)
	}
	second := l.Pipelines[1].Stages
	if len(second) != 2 || second[0].Node != "c" || second[0].State != Cold || second[1].Node != "b" || !second[1].Shared {
		t.Errorf("second pipeline %+v", second)
	}
	if !slices.Equal(l.Missing, []kevlard.Layers{{Lo: 2, Hi: 4}}) {
		t.Errorf("missing %v", l.Missing)
	}
	want := []Shortage{{kevlard.Layers{Lo: 0, Hi: 2}, 1, 2}, {kevlard.Layers{Lo: 2, Hi: 4}, 0, 2}}
	if !slices.Equal(l.Shortages, want) {
		t.Errorf("shortages %v, want %v", l.Shortages, want)
	}
}

// TestLayoutShowsTheDeadUntilReplaced: what a planned node held is missing until another
// one takes it on.
func TestLayoutShowsTheDeadUntilReplaced(t *testing.T) {
	m := Model{ID: kevlard.Digest{1}, Name: "m", Layers: 4}
	auto := func(id kevlard.NodeID, state State, stages ...Stage) Node {
		return Node{ID: id, State: state, Stages: stages, Capacity: Capacity{Auto: true}}
	}
	nodes := []Node{
		auto("a", Alive, ready(m.ID, 0, 2)), auto("b", Alive, ready(m.ID, 2, 4)), auto("c", Dead, ready(m.ID, 0, 2)),
		auto("d", Alive, ready(m.ID, 2, 4)), auto("e", Alive),
	}
	l := View{Nodes: nodes}.Layout(m)
	if want := []Shortage{{kevlard.Layers{Lo: 0, Hi: 2}, 1, 2}}; len(l.Pipelines) != 2 || !slices.Equal(l.Shortages, want) {
		t.Errorf("with a dead holder: %+v", l)
	}
	nodes[4] = auto("e", Alive, ready(m.ID, 0, 2))
	if l = (View{Nodes: nodes}).Layout(m); len(l.Pipelines) != 2 || len(l.Shortages) != 0 {
		t.Errorf("replaced: %+v", l)
	}
	nodes = []Node{auto("a", Dead, ready(m.ID, 0, 2)), auto("b", Dead, ready(m.ID, 2, 4)), auto("c", Alive, ready(m.ID, 0, 4))}
	if l = (View{Nodes: nodes}).Layout(m); len(l.Pipelines) != 1 || len(l.Shortages) != 0 {
		t.Errorf("replaced in another cut: %+v", l)
	}
	nodes = nodes[:2]
	if l = (View{Nodes: nodes}).Layout(m); len(l.Pipelines) != 1 || len(l.Missing) != 1 || len(l.Shortages) != 2 {
		t.Errorf("all dead: %+v", l)
	}
}

func TestModelsAndNodes(t *testing.T) {
	x, y := Model{ID: kevlard.Digest{1}, Name: "x"}, Model{ID: kevlard.Digest{2}, Name: "a"}
	v := View{Nodes: []Node{{ID: "a", Models: []Model{x}}, {ID: "b", Models: []Model{y, x}}}}
	if got := v.Models(); len(got) != 2 || got[0].Name != "a" || got[1].Name != "x" {
		t.Errorf("models %+v", got)
	}
	if m, ok := v.Model(y.ID); !ok || m.Name != "a" {
		t.Errorf("model %+v %v", m, ok)
	}
	if _, ok := v.Model(kevlard.Digest{3}); ok {
		t.Error("found a model that nobody holds")
	}
	if n, ok := v.Node("b"); !ok || n.ID != "b" {
		t.Errorf("node %+v %v", n, ok)
	}
	if _, ok := v.Node("c"); ok {
		t.Error("found a node that is not there")
	}
}

// TestOneModelOfTwoNames: nodes may have different names for the same weights, and others
// may lie between them.
func TestOneModelOfTwoNames(t *testing.T) {
	a, b := kevlard.Digest{1}, kevlard.Digest{2}
	v := View{Nodes: []Node{
		{ID: "n1", Models: []Model{{ID: a, Name: "a-m"}}},
		{ID: "n2", Models: []Model{{ID: a, Name: "z-m"}, {ID: b, Name: "m"}}},
	}}
	if got := v.Models(); len(got) != 2 || got[0].ID != a || got[0].Name != "a-m" || got[1].ID != b {
		t.Errorf("models %+v", got)
	}
}
