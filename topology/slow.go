package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// A pipeline is as fast as its slowest stage. Speeds are compared where they are measured,
// and told to people; the plan does not use them: on hosts that have other work to do, or
// share a machine, layers would move to and fro.

// Slowness compares a stage with others of its model.
type Slowness struct {
	Node     kevlard.NodeID
	Key      kevlard.StageKey
	Permille int // of the time that others take for a row; 2000 is twice as long
	Others   int // stages compared with
}

// Slow is from where on a stage is called slow, and Even up to where it is not any more.
const (
	Slow = 2000 // permille
	Even = 1500
)

// timed is a stage whose time for a row is known.
type timed struct {
	node kevlard.NodeID
	key  kevlard.StageKey
	took int64 // for a row, in microseconds
	each int64 // the same by what a row costs there, in any unit
}

// Compare says how ready stages compare with others, by node and key: those whose time is
// known and that have others. A stage is measured against those of the same layers on
// other nodes, one or more, and against all others of the model if they are two or more:
// there it has to take longer both as it is and for what it has to do, since small stages
// take longer than their share. The worse counts.
func (v View) Compare() []Slowness {
	models, costs := map[kevlard.Digest][]timed{}, map[kevlard.Digest]func(kevlard.Layers) int64{}
	for _, n := range v.Nodes {
		if n.State != Alive && n.State != Draining {
			continue
		}
		for _, s := range n.Stages {
			m, known := v.Model(s.Key.Model)
			if l := s.Key.Layers; s.State == Ready && s.RowMicros > 0 && known && 0 <= l.Lo && l.Lo < l.Hi && l.Hi <= m.Layers {
				id, took := s.Key.Model, int64(s.RowMicros)
				if costs[id] == nil {
					costs[id] = v.costOf(id)
				}
				models[id] = append(models[id], timed{n.ID, s.Key, took, took * work / costs[id](s.Key.Layers)})
			}
		}
	}
	var out []Slowness
	for _, all := range models {
		took, each := newMedians(all, func(t timed) int64 { return t.took }), newMedians(all, func(t timed) int64 { return t.each })
		ranges := map[kevlard.Layers][]timed{}
		for _, t := range all {
			ranges[t.key.Layers] = append(ranges[t.key.Layers], t)
		}
		for _, alike := range ranges {
			same := newMedians(alike, func(t timed) int64 { return t.took })
			for _, t := range alike {
				s := Slowness{Node: t.node, Key: t.key}
				if len(alike) > 1 {
					s.Others, s.Permille = len(alike)-1, ratio(t.took, same.without(t.took))
				}
				if len(all) > 2 {
					s.Others = len(all) - 1
					s.Permille = max(s.Permille, min(ratio(t.took, took.without(t.took)), ratio(t.each, each.without(t.each))))
				}
				if s.Others > 0 {
					out = append(out, s)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Slowness) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Key.Compare(b.Key)) })
	return out
}

// costOf says what a row costs in ranges of a model's layers, in a unit of the model.
func (v View) costOf(id kevlard.Digest) func(kevlard.Layers) int64 {
	m, known := v.Model(id)
	if known && m.Layers <= maxLayers {
		for _, n := range v.Nodes {
			for _, w := range n.Weights {
				if w.Model == id && w.Check(m.Layers) {
					s := newSizes(w)
					return s.cost
				}
			}
		}
	}
	return func(l kevlard.Layers) int64 { return int64(max(1, l.Len())) }
}

func ratio(a, b int64) int { return int(min(a*1000/max(1, b), 1_000_000)) }

// medians is sorted values.
type medians []int64

func newMedians(all []timed, of func(timed) int64) medians {
	m := make(medians, 0, len(all))
	for _, t := range all {
		m = append(m, of(t))
	}
	slices.Sort(m)
	return m
}

// without is the median of the others than one whose value is v; of two the larger.
func (m medians) without(v int64) int64 {
	i, _ := slices.BinarySearch(m, v)
	mid := (len(m) - 1) / 2
	if mid >= i {
		mid++
	}
	return m[min(mid, len(m)-1)]
}
