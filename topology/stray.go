package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// Strays lists the models whose name means another model: weights that some node has
// by mistake, such as another revision or quantization. A name means the models of
// that name whose layers all have holders, of whatever state, on nodes that have not
// left; where none has, the one whose layers have most.
func (v View) Strays() []Model {
	models := v.Models() // sorted by name
	var out []Model
	for len(models) > 0 {
		n := 1
		for n < len(models) && models[n].Name == models[0].Name {
			n++
		}
		if n > 1 {
			out = append(out, v.strays(models[:n])...)
		}
		models = models[n:]
	}
	return out
}

// strays is Strays for models of one name.
func (v View) strays(models []Model) []Model {
	held := make([]int, len(models)) // layers with a holder
	copies := make([]int, len(models))
	whole := false
	for i, m := range models {
		held[i], copies[i] = v.holders(m)
		whole = whole || held[i] == m.Layers
	}
	best := 0
	for i := range models { // the least ID first
		if cmp.Or(cmp.Compare(held[i], held[best]), cmp.Compare(copies[i], copies[best])) > 0 {
			best = i
		}
	}
	var out []Model
	for i, m := range models {
		if held[i] < m.Layers && (whole || i != best) {
			out = append(out, m)
		}
	}
	return out
}

// holders counts the layers of m that some node holds, and the stages that do.
func (v View) holders(m Model) (layers, stages int) {
	var ranges []kevlard.Layers
	for _, n := range v.Nodes {
		if n.State == Left {
			continue
		}
		for _, s := range n.Stages {
			if s.Key.Model == m.ID && valid(s.Key.Layers) {
				ranges = append(ranges, s.Key.Layers)
			}
		}
	}
	layers = m.Layers
	for _, gap := range Uncovered(ranges, m.Layers) {
		layers -= gap.Len()
	}
	return layers, len(ranges)
}

// Holders lists the nodes that have not left and hold stages of a model, by ID.
func (v View) Holders(model kevlard.Digest) []kevlard.NodeID {
	var out []kevlard.NodeID
	for _, n := range v.Nodes {
		if n.State != Left && slices.ContainsFunc(n.Stages, func(s Stage) bool { return s.Key.Model == model }) {
			out = append(out, n.ID)
		}
	}
	return out
}
