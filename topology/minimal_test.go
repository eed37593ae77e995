package topology

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// TestCoversIffFeasible tries every way to give single layers to nodes: the planner
// finds a cover exactly when there is one, for layers of one size.
func TestCoversIffFeasible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, w := even("m", rapid.IntRange(1, 6).Draw(t, "layers"), int64(rapid.IntRange(1, 20).Draw(t, "layer")), 0, int64(rapid.IntRange(0, 5).Draw(t, "kv")))
		w.Embedding, w.Head, w.Globals = int64(rapid.IntRange(0, 30).Draw(t, "embedding")), int64(rapid.IntRange(0, 30).Draw(t, "head")), int64(rapid.IntRange(0, 4).Draw(t, "globals"))
		v := ring(m, w, rapid.IntRange(1, 4).Draw(t, "nodes"), 0)
		for i := range v.Nodes {
			v.Nodes[i].Devices[0].Budget = int64(rapid.IntRange(0, 100).Draw(t, "budget"))
		}
		p := v.Plan(Goal{})
		checkPlan(t, v, p)
		if got := len(p.Models[0].Missing) == 0; got != feasible(v, w, m.Layers) {
			t.Fatalf("covered: %v, feasible: %v: %v", got, !got, p)
		}
	})
}

// feasible tries all assignments of layers to nodes.
func feasible(v View, w Weights, layers int) bool {
	s := newSizes(w)
	owner := make([]int, layers)
	var try func(at int) bool
	try = func(at int) bool {
		if at < layers {
			for n := range v.Nodes {
				owner[at] = n
				if try(at + 1) {
					return true
				}
			}
			return false
		}
		used := make([]int64, len(v.Nodes))
		for lo, hi := 0, 0; lo < layers; lo = hi {
			for hi = lo; hi < layers && owner[hi] == owner[lo]; hi++ {
			}
			used[owner[lo]] += s.need(kevlard.Layers{Lo: lo, Hi: hi})
		}
		for n, u := range used {
			if u > v.Nodes[n].Devices[0].Budget {
				return false
			}
		}
		return true
	}
	return try(0)
}

// TestDeathMovesWhatWasLost: after a death exactly the holders that are missing are
// added, and nothing else moves; where stages differ in size, what was left may be worth
// a move later.
func TestDeathMovesWhatWasLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, ends := rapid.IntRange(4, 12).Draw(t, "layers"), rapid.IntRange(0, 150).Draw(t, "ends")
		alike := rapid.Bool().Draw(t, "alike")
		if alike {
			layers, ends = layers/4*4, 0
		}
		m, w := even("m", layers, 100, int64(ends), 10)
		v := ring(m, w, rapid.IntRange(3, 14).Draw(t, "nodes"), 10_000)
		for i := range v.Nodes {
			if !alike { // zones may be worth a move too
				v.Nodes[i].Zone = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")
			}
		}
		v = carry(v, v.Plan(Goal{}))
		v.Nodes[rapid.IntRange(0, len(v.Nodes)-1).Draw(t, "dies")].State = Dead
		p := v.Plan(Goal{})
		least := int64(0)
		for _, r := range p.Models[0].Ranges {
			left := v.ready(kevlard.StageKey{Model: m.ID, Layers: r.Layers})
			least += int64(max(0, p.Models[0].Want-left)) * r.Bytes
		}
		load := int64(0)
		for _, r := range p.Models[0].Ranges {
			for _, h := range r.Holders {
				if h.Reason == Death || h.Reason != "" && alike {
					load += r.Bytes
				}
			}
		}
		if load != least {
			t.Fatalf("%d bytes move, %d were lost: %v", load, least, p)
		}
	})
}

// TestJoinsMoveTheLeast grows rings node by node and compares each step with all
// assignments there are. The least is counted among those that spread the copies as
// evenly as can be, which is what a join is for: the bytes of the copies that are not
// where they were.
func TestJoinsMoveTheLeast(t *testing.T) {
	for _, embedding := range []int64{0, 90} {
		for stages := 1; stages <= 4; stages++ {
			m, w := even("m", 2*stages, 100, 0, 10)
			w.Embedding = embedding
			all := ring(m, w, 8, 10_000)
			v := View{Nodes: slices.Clone(all.Nodes[:2])}
			v = carry(v, v.Plan(Goal{Stages: stages}))
			for n := 3; n <= 8; n++ {
				v.Nodes = append(v.Nodes, all.Nodes[n-1])
				p := v.Plan(Goal{Stages: stages})
				load, _ := p.Bytes()
				if p.Models[0].Want > 2 {
					break // there is a further pipeline: all of it is new
				}
				if least := leastMove(v, w, stages); load != least {
					t.Errorf("%d stages, embedding %d, node %d: %d bytes move, the least is %d: %v", stages, embedding, n, load, least, p)
				}
				v = carry(v, p)
			}
		}
	}
}

// leastMove tries all pairs of holders for each of a number of ranges of two layers.
func leastMove(v View, w Weights, stages int) int64 {
	n := len(v.Nodes)
	sizes := newSizes(w)
	count := make([]int, n)
	most := (2*stages + n - 1) / n // of a node, where all have as many as can be
	var bestSpread []int
	best := int64(0)
	var try func(stage int, moved int64)
	try = func(stage int, moved int64) {
		if slices.Max(count) > most {
			return
		}
		if stage == stages {
			spread := slices.Clone(count)
			slices.SortFunc(spread, func(a, b int) int { return b - a })
			if c := slices.Compare(spread, bestSpread); bestSpread == nil || c < 0 || c == 0 && moved < best {
				bestSpread, best = spread, moved
			}
			return
		}
		lacks := func(i int) int64 {
			if slices.ContainsFunc(v.Nodes[i].Stages, func(s Stage) bool { return s.Key.Layers.Lo == 2*stage }) {
				return 0
			}
			return sizes.weight(kevlard.Layers{Lo: 2 * stage, Hi: 2*stage + 2})
		}
		for a := range n {
			for b := range a {
				count[a]++
				count[b]++
				try(stage+1, moved+lacks(a)+lacks(b))
				count[a]--
				count[b]--
			}
		}
	}
	try(0, 0)
	return best
}

// TestHealMovesNothing: two sides of a partition re-form what they can; once they see
// each other again, all is held already.
func TestHealMovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, w := even("m", 8, 100, 60, 10)
		v := ring(m, w, 8, 10_000)
		v = carry(v, v.Plan(Goal{}))
		side := make([]bool, 8)
		for i := range side {
			side[i] = rapid.Bool().Draw(t, "side")
		}
		healed := View{Nodes: slices.Clone(v.Nodes)}
		for _, here := range []bool{false, true} {
			half := View{Nodes: slices.Clone(v.Nodes)}
			for i := range half.Nodes {
				if side[i] != here {
					half.Nodes[i].State = Dead
				}
			}
			done := carry(half, half.Plan(Goal{}))
			for i := range healed.Nodes {
				if side[i] == here {
					healed.Nodes[i] = done.Nodes[i]
				}
			}
		}
		p := healed.Plan(Goal{})
		if load, _ := p.Bytes(); load != 0 {
			t.Fatalf("%d bytes move: %v", load, p)
		}
		for _, n := range carry(healed, p).Nodes {
			if len(n.Stages) != 1 {
				t.Fatalf("%s holds %d stages: %v", n.ID, len(n.Stages), p)
			}
		}
	})
}

// TestZones: the holders of a range are in different zones, and each zone that can
// holds a whole pipeline.
func TestZones(t *testing.T) {
	m, w := even("m", 8, 100, 60, 10)
	v := ring(m, w, 8, 10_000)
	for i := range v.Nodes {
		v.Nodes[i].Zone = []string{"x", "y"}[i%2]
	}
	p := v.Plan(Goal{})
	for _, r := range p.Models[0].Ranges {
		a, _ := v.Node(r.Holders[0].Node)
		b, _ := v.Node(r.Holders[1].Node)
		if len(r.Holders) != 2 || a.Zone == b.Zone {
			t.Errorf("%v: %v", r.Layers, p)
		}
	}
}

// TestSpeedAndWeights: slow nodes get fewer layers, big heads fewer beside them, and
// models share what is left by weight.
func TestSpeedAndWeights(t *testing.T) {
	m, w := even("m", 8, 100, 0, 10)
	v := ring(m, w, 8, 10_000)
	for i := range v.Nodes[:2] {
		v.Nodes[i].Devices[0].Speed = 500
	}
	p := v.Plan(Goal{})
	for _, r := range p.Models[0].Ranges {
		for _, h := range r.Holders {
			if n, _ := v.Node(h.Node); (n.Devices[0].Speed == 500) != (r.Layers.Len() == 1) {
				t.Errorf("%s of speed %d holds %v: %v", n.ID, n.Devices[0].Speed, r.Layers, p)
			}
		}
	}
	w.Head = 300
	if got := ring(m, w, 8, 10_000).Plan(Goal{}).Models[0].Ranges[3].Layers.Len(); got != 1 {
		t.Errorf("%d layers beside the head of three", got)
	}
	a, wa := even("a", 8, 100, 0, 10)
	b, wb := even("b", 8, 100, 0, 10)
	v = View{}
	for i := range 24 {
		n := auto(string(rune('a'+i)), a, wa, 10_000)
		n.Models, n.Weights = append(n.Models, b), append(n.Weights, wb)
		n.Local = append(n.Local, Local{b.ID, []kevlard.Layers{{Lo: 0, Hi: 8}}})
		n.Serve = []Serve{{Name: "a", Weight: 2}, {Name: "b", Weight: 1}}
		v.Nodes = append(v.Nodes, n)
	}
	p = v.Plan(Goal{})
	if p.Models[0].Pipelines != 4 || p.Models[1].Pipelines != 2 {
		t.Errorf("24 nodes by 2 to 1: %v", p)
	}
}
