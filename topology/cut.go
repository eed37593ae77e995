package topology

import (
	"cmp"
	"math"
	"slices"

	"github.com/kevlard/kevlard"
)

// slot is what a stage is cut for: the slowest and the smallest of the devices that
// are to hold it.
type slot struct{ speed, budget int64 }

// cut splits a model's layers over slots in order so that the slowest stage is as fast
// as can be, and then the stages as alike as can be. It returns nil when some range
// would not fit its slot.
func (s *sizes) cut(slots []slot) []kevlard.Layers {
	type best struct {
		worst, squares int64
		from           int
	}
	const none = math.MaxInt64
	n := s.layers
	if len(slots) == 0 || len(slots) > n {
		return nil
	}
	rows := make([][]best, len(slots)+1) // rows[k][i]: the first i layers in the first k slots
	for k := range rows {
		rows[k] = make([]best, n+1)
		for i := range rows[k] {
			rows[k][i].worst = none
		}
	}
	rows[0][0].worst = 0
	for k, slot := range slots {
		last := len(slots) - k - 1 // slots after this one, a layer each at least
		for hi := k + 1; hi <= n-last; hi++ {
			if last == 0 && hi < n {
				continue
			}
			to := &rows[k+1][hi]
			for lo := hi - 1; lo >= k; lo-- {
				l := kevlard.Layers{Lo: lo, Hi: hi}
				if s.need(l) > slot.budget {
					break // a longer one needs more, but for the embedding, which only adds
				}
				t := s.cost(l) * 1000 / slot.speed
				if t > to.worst {
					break
				}
				from := rows[k][lo]
				if from.worst == none {
					continue
				}
				c := best{max(from.worst, t), from.squares + (t>>4)*(t>>4), lo}
				if cmp.Or(cmp.Compare(c.worst, to.worst), cmp.Compare(c.squares, to.squares)) < 0 {
					*to = c
				}
			}
		}
	}
	if rows[len(slots)][n].worst == none {
		return nil
	}
	out := make([]kevlard.Layers, len(slots))
	for k, hi := len(slots), n; k > 0; k-- {
		lo := rows[k][hi].from
		out[k-1] = kevlard.Layers{Lo: lo, Hi: hi}
		hi = lo
	}
	return out
}

// slots forms n slots of devices, which are the fastest first: each of as many as make
// full pipelines, or, where there are fewer devices than wanted stages, equal ones,
// since devices then take several.
func slots(bins []bin, n, replicas int) []slot {
	out := make([]slot, n)
	if len(bins) < n*replicas {
		largest := int64(0)
		for _, b := range bins {
			largest = max(largest, b.budget)
		}
		for i := range out {
			out[i] = slot{1000, largest}
		}
		return out
	}
	sorted := slices.Clone(bins)
	slices.SortFunc(sorted, func(a, b bin) int {
		return cmp.Or(cmp.Compare(b.speed, a.speed), cmp.Compare(b.budget, a.budget))
	})
	each := len(sorted) / n
	for i := range out {
		out[i] = slot{math.MaxInt64, math.MaxInt64}
		for _, b := range sorted[i*each : (i+1)*each] {
			out[i].speed = min(out[i].speed, b.speed)
			out[i].budget = min(out[i].budget, b.budget)
		}
	}
	return out
}

// pace is how long the slowest stage of a cut takes when the largest goes to the
// fastest slot, and so on.
func (s *sizes) pace(ranges []kevlard.Layers, slots []slot) int64 {
	costs := make([]int64, len(ranges))
	for i, l := range ranges {
		costs[i] = s.cost(l)
	}
	slices.SortFunc(costs, func(a, b int64) int { return cmp.Compare(b, a) })
	worst := int64(0)
	for i, c := range costs {
		worst = max(worst, c*1000/slots[min(i, len(slots)-1)].speed)
	}
	return worst
}

// standing is a range that some node holds, and how much it counts.
type standing struct {
	layers kevlard.Layers
	value  int64 // bytes held, those of live holders four times
	live   bool
}

// stand finds the chain of ranges from layer 0 to the end that keeps the most of what
// is held: gaps between them are part of it, new for everybody. It returns nil when
// nothing is held by anyone alive.
func (s *sizes) stand(held []standing) (out []kevlard.Layers, fresh []bool) {
	points := []int{0, s.layers}
	live := false
	for _, h := range held {
		points = append(points, h.layers.Lo, h.layers.Hi)
		live = live || h.live
	}
	if !live {
		return nil, nil
	}
	slices.Sort(points)
	points = slices.Compact(points)
	type best struct {
		value, parts int64
		from         int // index into points
		gap          bool
		ok           bool
	}
	at := make([]best, len(points))
	at[0].ok = true
	take := func(from, to int, value, parts int64, gap bool) {
		c := best{at[from].value + value, at[from].parts + parts, from, gap, true}
		t := &at[to]
		if !t.ok || cmp.Or(cmp.Compare(c.value, t.value), cmp.Compare(t.parts, c.parts), cmp.Compare(c.from, t.from)) > 0 {
			*t = c
		}
	}
	for i, lo := range points {
		if !at[i].ok {
			continue
		}
		for j := i + 1; j < len(points); j++ {
			take(i, j, 0, 2, true) // a gap is worse than any range, and two are worse than one
		}
		for _, h := range held {
			if h.layers.Lo == lo {
				j, _ := slices.BinarySearch(points, h.layers.Hi)
				take(i, j, h.value, 1, false)
			}
		}
	}
	for i := len(points) - 1; i > 0; i = at[i].from {
		out = append(out, kevlard.Layers{Lo: points[at[i].from], Hi: points[i]})
		fresh = append(fresh, at[i].gap)
	}
	slices.Reverse(out)
	slices.Reverse(fresh)
	return out, fresh
}

// fill cuts the gaps of a chain into parts no slower than a stage of n is and no larger
// than a budget.
func (s *sizes) fill(ranges []kevlard.Layers, fresh []bool, n int, budget int64) (out []kevlard.Layers) {
	part := s.cost(kevlard.Layers{Lo: 0, Hi: s.layers}) / int64(n)
	for i, r := range ranges {
		if !fresh[i] {
			out = append(out, r)
			continue
		}
		parts := min(max(1, int((s.cost(r)+part/2)/max(1, part))), r.Len())
		for ; parts < r.Len() && s.need(kevlard.Layers{Lo: r.Lo, Hi: r.Lo + (r.Len()+parts-1)/parts}) > budget; parts++ {
		}
		for k := range parts {
			l := kevlard.Layers{Lo: r.Lo + k*r.Len()/parts, Hi: r.Lo + (k+1)*r.Len()/parts}
			out = append(out, l)
		}
	}
	return out
}
