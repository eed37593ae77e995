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
