package topology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
)

// Pipeline is a chain of stages that covers all layers of a model, for display:
// sessions are routed over any mixture of stages that fit together.
type Pipeline struct {
	ID     string
	Stages []PipelineStage
}

// PipelineStage is one stage of a pipeline. Shared says that an earlier pipeline
// uses the same stage, because its own holder is missing.
type PipelineStage struct {
	Layers kevlard.Layers
	Node   kevlard.NodeID
	State  StageState
	Shared bool
}

// Shortage is a range of layers with fewer ready holders than wanted.
type Shortage struct {
	Layers      kevlard.Layers
	Ready, Want int
}

// Layout is one model's pipelines and shortages in a view.
type Layout struct {
	Model     Model
	Pipelines []Pipeline
	Shortages []Shortage
	Missing   []kevlard.Layers // layers that nobody serves now
}

// Layout groups the stages of a model, of any state on nodes that have not left,
// into pipelines: the k-th pipeline takes the k-th holder of each range.
func (v View) Layout(m Model) Layout {
	l := Layout{Model: m}
	holders := map[kevlard.Layers][]PipelineStage{}
	replaced := map[kevlard.Layers][]PipelineStage{} // of the dead, whose stages others take on
	for _, n := range v.Nodes {
		if n.State == Left {
			continue
		}
		for _, s := range n.Stages {
			if s.Key.Model != m.ID || !valid(s.Key.Layers) {
				continue
			}
			state := s.State
			if n.State == Dead {
				state = Cold
			}
			to := holders
			if n.State == Dead && n.Auto {
				to = replaced
			}
			to[s.Key.Layers] = append(to[s.Key.Layers], PipelineStage{Layers: s.Key.Layers, Node: n.ID, State: state})
		}
	}
	fill(holders, replaced)
	ranges := make([]kevlard.Layers, 0, len(holders))
	width := 0
	for r, h := range holders {
		ranges = append(ranges, r)
		width = max(width, len(h))
	}
	slices.SortFunc(ranges, kevlard.Layers.Compare)
	var ready []kevlard.Layers
	for _, r := range ranges {
		n := 0
		for _, h := range holders[r] {
			if h.State == Ready {
				n++
			}
		}
		if n > 0 {
			ready = append(ready, r)
		}
		if n < width {
			l.Shortages = append(l.Shortages, Shortage{r, n, width})
		}
	}
	l.Missing = Uncovered(ready, m.Layers)
	for k := range width {
		p := Pipeline{ID: fmt.Sprintf("p%d", k)}
		for at := 0; at < m.Layers; {
			i := slices.IndexFunc(ranges, func(r kevlard.Layers) bool { return r.Lo == at })
			if i < 0 {
				break
			}
			h := holders[ranges[i]]
			s := h[k%len(h)]
			s.Shared = k >= len(h)
			p.Stages = append(p.Stages, s)
			at = ranges[i].Hi
		}
		l.Pipelines = append(l.Pipelines, p)
	}
	return l
}

// fill shows the dead where nobody has replaced them yet: a range with fewer holders than
// others, or a cut that no living node has.
func fill(holders, dead map[kevlard.Layers][]PipelineStage) {
	width := 0
	for _, h := range holders {
		width = max(width, len(h))
	}
	var living []kevlard.Layers
	for r := range holders {
		living = append(living, r)
	}
	for r, h := range dead {
		if gaps := Uncovered(living, r.Hi); len(holders[r]) == 0 && !slices.ContainsFunc(gaps, func(g kevlard.Layers) bool { return g.Lo < r.Hi && r.Lo < g.Hi }) {
			continue // its layers are served in another cut
		}
		for _, s := range h {
			if n := len(holders[r]); n == 0 || n < width {
				holders[r] = append(holders[r], s)
			}
		}
	}
}

// Uncovered returns the parts of [0,n) that no range covers.
func Uncovered(ranges []kevlard.Layers, n int) []kevlard.Layers {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b kevlard.Layers) int { return cmp.Compare(a.Lo, b.Lo) })
	var out []kevlard.Layers
	at := 0
	for _, r := range sorted {
		if r.Lo > at && at < n {
			out = append(out, kevlard.Layers{Lo: at, Hi: min(r.Lo, n)})
		}
		at = max(at, r.Hi)
		if at >= n {
			return out
		}
	}
	if at < n {
		out = append(out, kevlard.Layers{Lo: at, Hi: n})
	}
	return out
}
