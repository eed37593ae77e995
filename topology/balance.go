package topology

import (
	"cmp"
	"math"
	"slices"
)

// move is a copy that would weigh less elsewhere.
type move struct {
	it       *item
	from, to int
	free     bool // no weights are loaded that would not be loaded anyway
	fetch    int64
	after    int64
	hash     uint64
}

// before orders moves away from one bin: what costs nothing, then where it weighs
// least, then the fewest bytes from peers, then the fewest at all; what costs nothing
// makes the most room.
func (a move) before(b move) bool {
	return cmp.Or(
		cmp.Compare(flag(!a.free), flag(!b.free)),
		cmp.Compare(a.after, b.after),
		cmp.Compare(a.fetch, b.fetch),
		cmp.Compare(a.bytes(), b.bytes()),
		cmp.Compare(b.hash, a.hash),
		a.it.layers.Compare(b.it.layers),
		cmp.Compare(a.to, b.to),
	) < 0
}

// bytes is what a move costs, with the room that it makes where it costs nothing.
func (a move) bytes() int64 {
	if a.free {
		return -a.it.need
	}
	return a.it.need
}

// balance moves copies from the most loaded devices to others, as long as that makes
// the slowest of those concerned faster: at all where nothing has to be loaded for it, by
// the goal's gain where weights have to move. Each step lowers the sorted list of loads,
// so it ends.
func (p *planner) balance() {
	placed := make([][]*item, len(p.bins))
	moves := 0
	for i := range p.models {
		for _, it := range p.models[i].items {
			moves += len(it.copies)
			for _, b := range it.copies {
				placed[b] = append(placed[b], it)
			}
		}
	}
	order := make([]int, len(p.bins))
	for i := range order {
		order[i] = i
	}
	for moves = 4*moves + 16; moves > 0; moves-- { // in steps of whole moves
		slices.SortFunc(order, func(a, b int) int {
			return cmp.Or(cmp.Compare(p.bins[b].load, p.bins[a].load), cmp.Compare(a, b))
		})
		if len(order) == 0 {
			return
		}
		chain := p.freeChain(order, placed)
		if chain == nil {
			m, ok := p.bestMove(order, placed)
			if !ok {
				return
			}
			chain = []move{m}
			if !m.free {
				m.it.moved = append(m.it.moved, m.to)
			}
		}
		for _, m := range chain {
			p.unplace(m.it, m.from)
			p.place(m.it, m.to)
			placed[m.from] = slices.DeleteFunc(placed[m.from], func(it *item) bool { return it == m.it })
			placed[m.to] = append(placed[m.to], m.it)
		}
	}
}

// freeChain finds copies that can be moved from a loaded bin to a less loaded one, over
// others in between that take one and pass another on, all without loading more: to bins
// that hold the range already, or of ranges that are new where they are. After a
// partition has healed nearly everything is held twice, and the right half of it has to
// stay; after a death with several ranges, who adopts which can only be told from all of
// them. The moves come in an order in which each fits.
func (p *planner) freeChain(order []int, placed [][]*item) []move {
	least, quickest := p.bins[order[len(order)-1]].load, int64(math.MaxInt64)
	for _, items := range placed {
		for _, it := range items {
			quickest = min(quickest, it.unit*1000/p.fastest)
		}
	}
	steps := maxSteps
	for _, from := range order {
		top := p.bins[from].load
		if least+quickest >= top {
			return nil // nowhere would anything be faster
		}
		came := map[int]move{from: {}}
		for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			x, by := &p.bins[at], came[at].it
			for _, it := range placed[at] {
				if by != nil && (x.load+x.time(by)-x.time(it) >= top || x.used+by.need-it.need > x.budget) {
					continue // it could not take the one for the other
				}
				for _, to := range p.freeTargets(it, at) {
					if steps--; steps < 0 {
						return nil
					}
					y := &p.bins[to]
					if _, seen := came[to]; seen || it.on[y.node] || p.zonesLost(it, x.zone, y.zone) {
						continue
					}
					came[to] = move{it: it, from: at, to: to}
					queue = append(queue, to)
					if y.load+y.time(it) < top && y.used+it.need <= y.budget {
						var out []move
						for b := to; b != from; b = came[b].from {
							out = append(out, came[b])
						}
						return out
					}
				}
			}
		}
	}
	return nil
}

// freeTargets lists the bins to which a copy can move for nothing.
func (p *planner) freeTargets(it *item, from int) (out []int) {
	for _, h := range it.holders {
		out = append(out, h.bin)
	}
	if !p.holds(it, from) {
		for _, c := range it.candidates {
			out = append(out, c.bin)
		}
	}
	return out
}

// bestMove finds the best move from the most loaded bin that has one.
func (p *planner) bestMove(order []int, placed [][]*item) (best move, found bool) {
	least := p.bins[order[len(order)-1]].load
	for _, from := range order {
		u := &p.bins[from]
		if u.load == 0 {
			break
		}
		for _, it := range placed[from] {
			if least+it.unit*1000/p.fastest >= u.load {
				continue // nowhere would it be faster
			}
			held := p.holds(it, from)
			for _, c := range p.targets(it) {
				x := &p.bins[c.bin]
				after := x.load + x.time(it)
				if it.on[x.node] || x.used+it.need > x.budget || after >= u.load || p.zonesLost(it, u.zone, x.zone) {
					continue
				}
				free := p.holds(it, c.bin) || !held
				if !free && after*int64(1000+p.goal.Gain) > u.load*1000 {
					continue
				}
				if m := (move{it, from, c.bin, free, c.fetch, after, c.hash}); !found || m.before(best) {
					best, found = m, true
				}
			}
		}
		if found {
			return best, true
		}
	}
	return best, false
}

// targets lists where a range could be: candidates, and who holds it already.
func (p *planner) targets(it *item) []candidate {
	if len(it.holders) <= len(it.copies) && !slices.ContainsFunc(it.holders, func(h resident) bool { return !p.bins[h.bin].open }) {
		return it.candidates
	}
	out := slices.Clone(it.candidates)
	for _, h := range it.holders {
		if !slices.ContainsFunc(it.candidates, func(c candidate) bool { return c.bin == h.bin }) {
			out = append(out, candidate{bin: h.bin})
		}
	}
	return out
}

func (p *planner) holds(it *item, b int) bool {
	return slices.ContainsFunc(it.holders, func(h resident) bool { return h.bin == b })
}

// zonesLost reports whether a move would leave a range in fewer zones.
func (p *planner) zonesLost(it *item, from, to int) bool {
	return from != to && it.zones[from] == 1 && it.zones[to] > 0
}
