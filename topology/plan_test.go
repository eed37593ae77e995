package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// ring is n alike nodes that all have the model on disk.
func ring(m Model, w Weights, n int, budget int64) View {
	var v View
	for i := range n {
		v.Nodes = append(v.Nodes, auto(fmt.Sprintf("n%03d", i), m, w, budget))
	}
	return v
}

func auto(id string, m Model, w Weights, budget int64) Node {
	return Node{
		ID: kevlard.NodeID(id), Role: "host", State: Alive, Models: []Model{m},
		Capacity: Capacity{
			Auto: true, Devices: []Device{{Budget: budget}}, Weights: []Weights{w},
			Local: []Local{{Model: m.ID, Layers: []kevlard.Layers{{Lo: 0, Hi: m.Layers}}}},
		},
	}
}

// even is a model of equal layers.
func even(name string, layers int, layer, ends, kv int64) (Model, Weights) {
	m := Model{ID: kevlard.Digest{name[0]}, Name: name, Layers: layers, Context: 1, Vocab: 1}
	return m, Weights{Model: m.ID, Embedding: ends, Head: ends, Layers: []Run{{layers, layer}}, KV: kv}
}

// carry returns the view after every node did what the plan says.
func carry(v View, p Plan) View {
	out := View{Nodes: slices.Clone(v.Nodes)}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		if n.planned() && (n.State == Alive || n.State == Suspect || n.State == Draining) {
			n.Stages = nil
		}
	}
	for _, m := range p.Models {
		for _, r := range m.Ranges {
			for _, h := range r.Holders {
				i := slices.IndexFunc(out.Nodes, func(n Node) bool { return n.ID == h.Node })
				if n := &out.Nodes[i]; n.planned() {
					n.Stages = append(n.Stages, Stage{Key: kevlard.StageKey{Model: m.Model.ID, Layers: r.Layers}, State: Ready, Class: "c", Device: h.Device})
				}
			}
		}
	}
	return out
}

func (p Plan) String() string {
	var b strings.Builder
	for _, m := range p.Models {
		fmt.Fprintf(&b, "%s want %d pipelines %d missing %v resplit %v\n", m.Model.Name, m.Want, m.Pipelines, m.Missing, m.Resplit)
		for _, r := range m.Ranges {
			fmt.Fprintf(&b, "  %v:", r.Layers)
			for _, h := range r.Holders {
				fmt.Fprintf(&b, " %s/%d(%s %s)", h.Node, h.Device, h.Source, h.Reason)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// TestEightNodesMakeTwoPipelines is what the mesh does without configuration.
func TestEightNodesMakeTwoPipelines(t *testing.T) {
	m, w := even("fairy", 8, 100, 60, 20)
	p := ring(m, w, 8, 2000).Plan(Goal{})
	held := map[kevlard.NodeID]int{}
	for i, r := range p.Models[0].Ranges {
		if want := (kevlard.Layers{Lo: 2 * i, Hi: 2*i + 2}); r.Layers != want || len(r.Holders) != 2 {
			t.Errorf("range %v with %d holders, want %v with 2", r.Layers, len(r.Holders), want)
		}
		for _, h := range r.Holders {
			held[h.Node]++
		}
	}
	if len(p.Models[0].Ranges) != 4 || len(held) != 8 || p.Models[0].Pipelines != 2 {
		t.Errorf("not two pipelines of four stages on eight nodes: %v", p)
	}
}

// TestNoMemoryIsSaid: a plan that leaves layers out says what they take and what is
// free, if memory is what they miss and nothing else is.
func TestNoMemoryIsSaid(t *testing.T) {
	m, w := even("fairy", 8, 100, 60, 20)
	const whole = 8*(100+20) + 2*60
	other, otherWeights := even("big", 8, 200, 60, 20)
	for name, tc := range map[string]struct {
		change      func(v *View)
		budget      int64
		needs, free int64
	}{
		"room":        {func(*View) {}, whole, 0, 0},
		"a byte less": {func(*View) {}, whole - 1, whole, whole - 1},
		"none":        {func(*View) {}, 0, whole, 0},
		"not here":    {func(v *View) { v.Nodes[0].Local = nil }, whole - 1, 0, 0},
		"damaged": {func(v *View) {
			v.Nodes[0].Failed = []Failed{{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Hi: 8}}}}
		}, whole - 1, 0, 0},
		"another of enough, which may not": {func(v *View) {
			n := auto("n001", m, w, 2*whole)
			n.Serve = []Serve{{Name: "llama"}}
			v.Nodes = append(v.Nodes, n)
		}, whole - 1, whole, whole - 1},
		"another model has it": {func(v *View) {
			n := &v.Nodes[0]
			n.Models, n.Weights = append(n.Models, other), append(n.Weights, otherWeights)
			n.Local = append(n.Local, Local{Model: other.ID, Layers: []kevlard.Layers{{Hi: 8}}})
			n.Serve = []Serve{{Name: "big", Weight: 2}, {Name: "fairy", Weight: 1}}
		}, 8*(200+20) + 2*60 + 50, whole, 50},
	} {
		v := ring(m, w, 1, tc.budget)
		tc.change(&v)
		for _, p := range v.Plan(Goal{}).Models {
			if p.Model.Name == "fairy" && (p.Needs != tc.needs || p.Free != tc.free) {
				t.Errorf("%s: needs %d with %d free, want %d and %d", name, p.Needs, p.Free, tc.needs, tc.free)
			}
		}
	}
}
