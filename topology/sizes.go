package topology

import "github.com/kevlard/kevlard"

// sizes answers how large a range of a model's layers is, from sums made once.
type sizes struct {
	layers  int
	sum     []int64 // sum[i]: bytes of the first i layers
	globals int64
	ends    [2]int64 // embedding and head
	kv      int64
}

// work is what a whole model costs to compute, in the units of sizes.cost. Costs are
// relative, so that loads of any model fit an int64 many times.
const work = 1_000_000

func newSizes(w Weights) sizes {
	s := sizes{sum: []int64{0}, globals: w.Globals, ends: [2]int64{w.Embedding, w.Head}, kv: w.KV}
	for _, r := range w.Layers {
		for range r.Count {
			s.sum = append(s.sum, s.sum[len(s.sum)-1]+r.Bytes)
		}
	}
	s.layers = len(s.sum) - 1
	return s
}

// weight is the bytes of a stage's units.
func (s *sizes) weight(l kevlard.Layers) int64 {
	n := s.globals + s.sum[l.Hi] - s.sum[l.Lo]
	if l.Lo == 0 {
		n += s.ends[0]
	}
	if l.Hi == s.layers {
		n += s.ends[1]
	}
	return n
}

// need is what a stage takes of a budget: its weights and the least room for KV.
func (s *sizes) need(l kevlard.Layers) int64 { return s.weight(l) + s.kv*int64(l.Len()) }

// cost is what a step through a stage costs, in millionths of one through the whole
// model. A step reads each weight once, except the embedding, of which it reads a row.
func (s *sizes) cost(l kevlard.Layers) int64 {
	n, all := s.sum[l.Hi]-s.sum[l.Lo], s.sum[s.layers]+s.ends[1]
	if l.Hi == s.layers {
		n += s.ends[1]
	}
	// Divided first: sums reach 2^56.
	return max(1, n/max(1, all/work))
}
