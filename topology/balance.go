package topology

import (
	"cmp"
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
// least, then the fewest bytes from peers.
func (a move) before(b move) bool {
	return cmp.Or(
		cmp.Compare(flag(!a.free), flag(!b.free)),
		cmp.Compare(a.after, b.after),
		cmp.Compare(a.fetch, b.fetch),
		cmp.Compare(b.it.need, a.it.need),
		cmp.Compare(b.hash, a.hash),
		a.it.layers.Compare(b.it.layers),
		cmp.Compare(a.to, b.to),
	) < 0
}

// balance moves copies from the most loaded devices to others, as long as that makes
// the pair's slower one faster: at all where nothing has to be loaded for it, by the
// goal's gain where weights have to move. Each move lowers the sorted list of loads, so
// it ends.
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
		m, ok := p.bestMove(order, placed)
		if !ok {
			return
		}
		p.unplace(m.it, m.from)
		p.place(m.it, m.to)
		placed[m.from] = slices.DeleteFunc(placed[m.from], func(it *item) bool { return it == m.it })
		placed[m.to] = append(placed[m.to], m.it)
	}
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
