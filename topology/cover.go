package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// cover gives each layer of a model one holder: with the cut that stands if that does
// it, else with new ones, the last of them made for exactly the memory that is left.
// A model that can't be covered keeps what it has.
func (p *planner) cover(mi int) {
	m := &p.models[mi]
	room := p.room(m)
	stand := p.standing(m, room)
	before := slices.Clone(p.bins)
	for _, cut := range p.cuts(m, stand, room) {
		if p.coverWith(mi, cut) {
			m.whole, m.resplit = true, len(m.held) > 0 && !slices.Equal(cut, stand)
			return
		}
		copy(p.bins, before)
	}
	m.items = nil // of an attempt that failed
	if cut, bins := p.tight(m, room); cut != nil {
		m.whole, m.resplit = true, len(m.held) > 0
		m.items = p.newItems(mi, cut)
		for i, it := range m.items {
			p.place(it, bins[i])
		}
		return
	}
	if stand != nil {
		p.coverWith(mi, stand)
		p.dropGaps(m)
	}
}

// cuts lists the ways to split a model, the best first.
func (p *planner) cuts(m *planned, stand []kevlard.Layers, room []bin) (out [][]kevlard.Layers) {
	add := func(cut []kevlard.Layers) {
		if cut != nil && !slices.ContainsFunc(out, func(o []kevlard.Layers) bool { return slices.Equal(o, cut) }) {
			out = append(out, cut)
		}
	}
	n := min(cmp.Or(m.stages, p.goal.Stages), m.Layers)
	if stand != nil {
		switch full := len(room) >= len(stand)*m.want; {
		case m.stages > 0 && len(stand) != n:
			add(p.split(m, n, room))
		case full: // the shape is compared only where each stage has devices of its own
			s := slots(room, len(stand), m.want)
			if better := m.cut(s); better != nil && m.pace(stand, s)*1000 > m.pace(better, s)*int64(1000+p.goal.Gain) {
				add(better)
			}
		}
		add(stand)
	}
	for ; ; n *= 2 {
		n = min(n, m.Layers)
		add(p.split(m, n, room))
		if n == m.Layers {
			return out
		}
	}
}

// split cuts a model into n stages for the devices there are.
func (p *planner) split(m *planned, n int, room []bin) []kevlard.Layers {
	if len(room) == 0 {
		return nil
	}
	if cut := m.cut(slots(room, n, m.want)); cut != nil {
		return cut
	}
	return m.cut(slots(room, n, len(room)+1)) // some are too small: equal parts
}

// room lists the devices that could be given a layer of the model, with the budgets
// that other models have left.
func (p *planner) room(m *planned) (out []bin) {
	least := m.need(kevlard.Layers{Lo: 0, Hi: 1})
	for i := range m.Layers {
		least = min(least, m.need(kevlard.Layers{Lo: i, Hi: i + 1}))
	}
	for i, b := range p.bins {
		if b.open && m.serves[b.node] && b.budget-b.used >= least {
			b.budget -= b.used
			b.device = i // its index from here on
			out = append(out, b)
		}
	}
	return out
}

// standing is the cut that keeps most of what is held, with what the dead and the
// draining held where nobody else does.
func (p *planner) standing(m *planned, room []bin) []kevlard.Layers {
	var held []standing
	for _, l := range m.ranges() {
		n := int64(0)
		for _, h := range m.held[l] {
			n += 4 - int64(max(0, h.rank-1))
		}
		held = append(held, standing{l, m.sizes.weight(l) * min(n, 4000), true})
	}
	slices.SortFunc(m.ghosts, kevlard.Layers.Compare)
	for _, l := range slices.Compact(m.ghosts) {
		if len(m.held[l]) == 0 {
			held = append(held, standing{l, m.sizes.weight(l), false})
		}
	}
	chain, fresh := m.stand(held)
	if chain == nil {
		return nil
	}
	largest := int64(0)
	for _, b := range room {
		largest = max(largest, b.budget)
	}
	n := min(cmp.Or(m.stages, p.goal.Stages), m.Layers)
	m.gaps = nil
	for i, l := range chain {
		if fresh[i] {
			m.gaps = append(m.gaps, l)
		}
	}
	return m.fill(chain, fresh, n, largest)
}

func (p *planner) newItems(mi int, cut []kevlard.Layers) []*item {
	out := make([]*item, len(cut))
	for i, l := range cut {
		out[i] = p.newItem(mi, l)
	}
	return out
}

// coverWith places one copy of each range of a cut and reports whether all have one.
// What is held by few is placed first, so that memory goes to whom nobody replaces.
func (p *planner) coverWith(mi int, cut []kevlard.Layers) bool {
	m := &p.models[mi]
	m.items = p.newItems(mi, cut)
	clear(p.together)
	order := slices.Clone(m.items)
	slices.SortStableFunc(order, func(a, b *item) int {
		return cmp.Or(
			cmp.Compare(flag(len(a.holders) == 0), flag(len(b.holders) == 0)),
			cmp.Compare(len(a.holders), len(b.holders)),
			cmp.Compare(b.need, a.need),
		)
	})
	all := true
	for _, it := range order {
		if it.pinned == 0 && !p.keep(it) && !p.adopt(it) {
			all = false
		}
	}
	return all
}

// dropGaps takes back the parts of a gap that could not be filled as a whole: they
// would serve nobody, and be cut otherwise when there is more memory.
func (p *planner) dropGaps(m *planned) {
	for _, gap := range m.gaps {
		filled := true
		for _, it := range m.items {
			filled = filled && (!gap.Contains(it.layers) || len(it.copies)+it.pinned > 0)
		}
		for _, it := range m.items {
			if gap.Contains(it.layers) && !filled {
				for len(it.copies) > 0 {
					p.unplace(it, it.copies[0])
				}
				it.candidates = nil
			}
		}
	}
}

// tight fills device after device, the largest first. For layers of one size it finds
// a cover whenever there is one: only whole layers can go to waste, at the device that
// also takes the embedding and the one that also takes the head, so those are chosen
// where least is wasted.
func (p *planner) tight(m *planned, room []bin) (cut []kevlard.Layers, bins []int) {
	if !m.available(kevlard.Layers{Lo: 0, Hi: m.Layers}) {
		return nil, nil
	}
	largest := int64(0)
	for i := range m.Layers {
		largest = max(largest, m.sum[i+1]-m.sum[i]+m.kv)
	}
	fit := func(b bin, extra int64) int64 { return max(0, (b.budget-m.globals-extra)/largest) }
	room = slices.DeleteFunc(slices.Clone(room), func(b bin) bool {
		return len(p.v.Nodes[b.node].Failed) > 0 && failed(&p.v.Nodes[b.node], kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Hi: m.Layers}})
	})
	slices.SortStableFunc(room, func(a, b bin) int { return cmp.Compare(fit(b, 0), fit(a, 0)) })
	for _, b := range room {
		if all := (kevlard.Layers{Lo: 0, Hi: m.Layers}); m.need(all) <= b.budget {
			return []kevlard.Layers{all}, []int{b.device}
		}
	}
	// The ends: every pair of the few that lose least is tried.
	first := leastLoss(room, fit, m.ends[0])
	last := leastLoss(room, fit, m.ends[1])
	for _, f := range first {
		for _, l := range last {
			if cut, bins = fillInOrder(m, room, f, l); cut != nil {
				return cut, bins
			}
		}
	}
	// One that takes both ends, in two stages.
	for _, f := range leastLoss(room, fit, m.ends[0]+m.ends[1]+m.globals) {
		if m.Layers < 2 || fit(room[f], m.ends[0]+m.ends[1]+m.globals) < 2 {
			continue
		}
		if cut, bins = fillAround(m, room, f); cut != nil {
			return cut, bins
		}
	}
	return nil, nil
}

// fillAround gives the last layer and as many of the first as fit to one device, and
// what is between to the others.
func fillAround(m *planned, room []bin, ends int) (cut []kevlard.Layers, bins []int) {
	tail := kevlard.Layers{Lo: m.Layers - 1, Hi: m.Layers}
	left := room[ends].budget - m.need(tail)
	at := 0
	for i := -1; i < len(room) && at < tail.Lo; i++ {
		b, budget := ends, left
		if i >= 0 {
			b, budget = i, room[i].budget
		}
		if i == ends {
			continue
		}
		hi := at
		for hi < tail.Lo && m.need(kevlard.Layers{Lo: at, Hi: hi + 1}) <= budget {
			hi++
		}
		if hi > at {
			cut, bins = append(cut, kevlard.Layers{Lo: at, Hi: hi}), append(bins, room[b].device)
			at = hi
		}
	}
	if at < tail.Lo || len(bins) == 0 || bins[0] != room[ends].device {
		return nil, nil
	}
	return append(cut, tail), append(bins, room[ends].device)
}

// leastLoss lists the devices that lose the fewest layers to extra bytes: three of them,
// since the best may be wanted for the other end, or hold too little.
func leastLoss(room []bin, fit func(bin, int64) int64, extra int64) []int {
	var out []int
	for i := range room {
		if fit(room[i], extra) > 0 {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		return cmp.Compare(fit(room[a], 0)-fit(room[a], extra), fit(room[b], 0)-fit(room[b], extra))
	})
	return out[:min(len(out), 3)]
}

// fillInOrder gives layers to devices in order, each as many as fit, from device first
// to device last with the largest of the others between them.
func fillInOrder(m *planned, room []bin, first, last int) (cut []kevlard.Layers, bins []int) {
	order := []int{first}
	for i := range room {
		if i != first && i != last {
			order = append(order, i)
		}
	}
	if first == last {
		return nil, nil
	}
	most := func(b bin, lo, end int) int { // how far a device gets from lo, at most to end
		hi := lo
		for hi < end && m.need(kevlard.Layers{Lo: lo, Hi: hi + 1}) <= b.budget {
			hi++
		}
		return hi
	}
	at := 0
	add := func(i, hi int) {
		if hi > at {
			cut, bins = append(cut, kevlard.Layers{Lo: at, Hi: hi}), append(bins, room[i].device)
			at = hi
		}
	}
	for _, i := range order {
		// The last device takes the end as soon as it can.
		if m.need(kevlard.Layers{Lo: at, Hi: m.Layers}) <= room[last].budget {
			break
		}
		add(i, most(room[i], at, m.Layers-1))
	}
	if m.need(kevlard.Layers{Lo: at, Hi: m.Layers}) > room[last].budget {
		return nil, nil
	}
	add(last, m.Layers)
	return cut, bins
}
