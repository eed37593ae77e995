package topology

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// pace makes a ring of one stage a node, each with layers and the microseconds of a row.
func pace(m Model, w Weights, stages ...[3]int) View {
	var v View
	for i, s := range stages {
		v.Nodes = append(v.Nodes, Node{
			ID: kevlard.NodeID("n" + string(rune('a'+i))), State: Alive, Models: []Model{m}, Capacity: Capacity{Weights: []Weights{w}},
			Stages: []Stage{{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: s[0], Hi: s[1]}}, State: Ready, RowMicros: s[2]}},
		})
	}
	return v
}

func TestCompare(t *testing.T) {
	m, w := even("fairy", 8, 100, 400, 0) // the head is half of the layers
	for name, c := range map[string]struct {
		v    View
		want []int // permille by node; -1: not compared
	}{
		"alone":                 {pace(m, w, [3]int{0, 8, 500}), []int{-1}},
		"two, unlike":           {pace(m, w, [3]int{0, 4, 500}, [3]int{4, 8, 1500}), []int{-1, -1}},
		"two, alike":            {pace(m, w, [3]int{0, 8, 500}, [3]int{0, 8, 1100}), []int{454, 2200}},
		"one of two pipelines":  {pace(m, w, [3]int{0, 4, 500}, [3]int{4, 8, 1000}, [3]int{0, 4, 1050}, [3]int{4, 8, 1000}), []int{500, 1000, 2100, 1000}},
		"the head costs":        {pace(m, w, [3]int{0, 3, 300}, [3]int{3, 6, 300}, [3]int{6, 8, 600}), []int{500, 500, 1000}},
		"small stages cost":     {pace(m, w, [3]int{0, 3, 300}, [3]int{3, 4, 290}, [3]int{4, 7, 310}), []int{344, 935, 356}},
		"a slow one in a chain": {pace(m, w, [3]int{0, 3, 300}, [3]int{3, 5, 900}, [3]int{5, 8, 400}), []int{222, 2250, 126}},
		"not measured":          {pace(m, w, [3]int{0, 8, 500}, [3]int{0, 8, 0}), []int{-1, -1}},
	} {
		got := c.v.Compare()
		for i, want := range c.want {
			at := slices.IndexFunc(got, func(s Slowness) bool { return s.Node == c.v.Nodes[i].ID })
			if (at < 0) != (want < 0) || at >= 0 && got[at].Permille != want {
				t.Errorf("%s: node %d: %+v, want %d", name, i, got, want)
			}
		}
	}
}

// TestNoneIsSlowAmongEquals: stages whose rows take what their layers take, and up to some
// noise, are not slow, however the layers are cut and whoever is dead; one that takes four
// times as long is, if others have the same layers.
func TestNoneIsSlowAmongEquals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, w := even("fairy", 12, 100, rapid.Int64Range(0, 500).Draw(t, "head"), 0)
		s := newSizes(w)
		fixed := rapid.IntRange(20, 500).Draw(t, "fixed") // of each row, whatever is computed; more than rounding to microseconds matters
		var stages [][3]int
		for range rapid.IntRange(1, 4).Draw(t, "pipelines") {
			for lo := 0; lo < 12; {
				hi := min(12, lo+rapid.IntRange(1, 12).Draw(t, "layers"))
				cost := int(s.cost(kevlard.Layers{Lo: lo, Hi: hi}) / 500)
				stages = append(stages, [3]int{lo, hi, (fixed + cost) * rapid.IntRange(80, 120).Draw(t, "noise") / 100})
				lo = hi
			}
		}
		v := pace(m, w, stages...)
		for i := range v.Nodes {
			v.Nodes[i].State = rapid.SampledFrom([]State{Alive, Alive, Alive, Dead}).Draw(t, "state")
		}
		for _, x := range v.Compare() {
			if x.Permille >= Slow {
				t.Fatalf("%+v is slow among equals: %v", x, stages)
			}
		}
		i := rapid.IntRange(0, len(stages)-1).Draw(t, "throttled")
		v.Nodes[i].Stages[0].RowMicros *= 4
		got := v.Compare()
		if at := slices.IndexFunc(got, func(x Slowness) bool { return x.Node == v.Nodes[i].ID }); at >= 0 && got[at].Permille < Slow {
			alike := 0
			for k, n := range v.Nodes {
				if k != i && n.State == Alive && n.Stages[0].Key == v.Nodes[i].Stages[0].Key {
					alike++
				}
			}
			if alike > 0 {
				t.Fatalf("%+v takes four times as long as %d others of these layers: %v", got[at], alike, stages)
			}
		}
	})
}

// TestCompareBelievesNoRecord: what others say of a model may fit nothing, and is left out.
func TestCompareBelievesNoRecord(t *testing.T) {
	m, w := even("fairy", 12, 100, 0, 0)
	v := pace(m, w, [3]int{0, 6, 100}, [3]int{6, 12, 100}, [3]int{0, 6, 400})
	want := v.Compare()
	huge, short := w, w
	huge.Layers = []Run{{Count: 1 << 40, Bytes: 1}}
	short.Layers = w.Layers[:0:0]
	for name, lies := range map[string]Weights{"endless": huge, "none": short} {
		v.Nodes[0].Weights = append([]Weights{lies}, v.Nodes[0].Weights...)
		if got := v.Compare(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	v.Nodes[2].Stages[0].Key.Layers = kevlard.Layers{Lo: 6, Hi: 99}
	v.Compare() // of layers that there are not
}
