package topology

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/kevlard/kevlard"
)

// bin is one device that the plan may fill.
type bin struct {
	node, device, zone  int
	open                bool // may be given stages that it does not hold
	budget, used, soft  int64
	speed, load, leaned int64
	// used and load are of copies that are placed; soft and leaned are of what the bin
	// holds and will probably keep, but is not placed yet.
}

// item is one range of a model, to be held several times.
type item struct {
	layers     kevlard.Layers
	need, unit int64 // bytes of a budget; load of one copy on a device of speed 1000
	want       int
	pinned     int // holders that the plan cannot move
	holders    []resident
	candidates []candidate
	copies     []int  // bins where it is placed
	on         []bool // by node
	zones      []int  // copies by zone
	moved      []int  // bins where it is only for the balance
}

// resident is a bin that holds a range now, and how little of a reason it is to keep
// it there: 0 is ready.
type resident struct {
	bin, rank, stages int
	leaning           bool // counted in soft and leaned
}

// candidate is a bin that could be given a range, and the bytes it would have to get
// from peers.
type candidate struct {
	bin   int
	fetch int64
	hash  uint64
}

// time is what a copy adds to the load of a bin.
func (b *bin) time(it *item) int64 { return max(1, it.unit*1000/b.speed) }

func (p *planner) place(it *item, b int) {
	x := &p.bins[b]
	x.used += it.need
	x.load += x.time(it)
	it.copies = append(it.copies, b)
	it.on[x.node] = true
	it.zones[x.zone]++
}

func (p *planner) unplace(it *item, b int) {
	x := &p.bins[b]
	x.used -= it.need
	x.load -= x.time(it)
	it.copies = slices.DeleteFunc(it.copies, func(c int) bool { return c == b })
	it.on[x.node] = false
	it.zones[x.zone]--
}

// lean counts a holder as one that will probably be kept, or no longer.
func (p *planner) lean(it *item, b int, sign int64) {
	x := &p.bins[b]
	x.soft += sign * it.need
	x.leaned += sign * x.time(it)
}

// keep places a range where it is, on the best of its holders.
func (p *planner) keep(it *item) bool {
	best := -1
	for i, h := range it.holders {
		x := &p.bins[h.bin]
		if it.on[x.node] || x.used+it.need > x.budget {
			continue
		}
		if best < 0 || p.keepBefore(it, h, it.holders[best]) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	h := &it.holders[best]
	if h.leaning {
		p.lean(it, h.bin, -1)
		h.leaning = false
	}
	p.place(it, h.bin)
	return true
}

// keepBefore orders holders: another zone first, then the readiest, then those with
// the fewest other stages.
func (p *planner) keepBefore(it *item, a, b resident) bool {
	x, y := &p.bins[a.bin], &p.bins[b.bin]
	return cmp.Or(
		cmp.Compare(min(it.zones[x.zone], 1), min(it.zones[y.zone], 1)),
		cmp.Compare(a.rank, b.rank),
		cmp.Compare(a.stages, b.stages),
		cmp.Compare(a.bin, b.bin),
	) < 0
}

// adopt places a range on a bin that does not hold it. The order of the comparisons is
// the policy; see the package comment.
func (p *planner) adopt(it *item) bool {
	best := -1
	var chosen candidate
	bound := max(p.fair, it.unit*1000/p.fastest) * int64(1000+p.goal.Gain) / 1000
	var key, top [7]int64
	var speed, time int64 // of the bin before: most are alike, and divisions are slow
	for _, c := range it.candidates {
		x := &p.bins[c.bin]
		if it.on[x.node] || x.used+it.need > x.budget {
			continue
		}
		if x.speed != speed {
			speed, time = x.speed, x.time(it)
		}
		after := x.load + x.leaned + time
		key[0] = flag(x.used+x.soft+it.need > x.budget) // something there would have to go
		key[1] = int64(min(it.zones[x.zone], 1))
		key[2] = flag(after > bound)
		key[3] = c.fetch
		key[4] = after
		if best >= 0 && worse(&key, &top) {
			continue
		}
		key[5] = -min(8, (x.budget-x.used-x.soft-it.need)/it.need)
		key[6] = -int64(p.together[x.zone])
		if best < 0 || cmp.Or(slices.Compare(key[:], top[:]), cmp.Compare(chosen.hash, c.hash), cmp.Compare(c.bin, best)) < 0 {
			best, chosen, top = c.bin, c, key
		}
	}
	if best < 0 {
		return false
	}
	p.place(it, best)
	p.together[p.bins[best].zone]++
	p.adopted++
	return true
}

// worse compares the first five, which decide nearly always.
func worse(a, b *[7]int64) bool {
	for i := range 5 {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// newItem prepares a range for placing.
func (p *planner) newItem(model int, l kevlard.Layers) *item {
	m := &p.models[model]
	it := &item{layers: l, need: m.need(l), on: make([]bool, len(p.v.Nodes)), zones: make([]int, p.zones)}
	it.unit = m.cost(l) * m.weight / int64(m.want)
	key := kevlard.StageKey{Model: m.ID, Layers: l}
	for _, h := range m.held[l] {
		if h.bin >= 0 {
			h.leaning = true
			it.holders = append(it.holders, h)
			continue
		}
		n := -h.bin - 1
		it.pinned++
		it.on[n] = true
		it.zones[p.zone[n]]++
	}
	if !m.available(l) {
		return it
	}
	var seed [64]byte
	copy(seed[:], m.ID[:])
	binary.BigEndian.PutUint32(seed[32:], uint32(l.Lo))
	binary.BigEndian.PutUint32(seed[36:], uint32(l.Hi))
	base := mix(seed[:40], 14695981039346656037)
	for i := range p.bins {
		b := &p.bins[i]
		n := &p.v.Nodes[b.node]
		if !b.open || b.budget < it.need || !m.serves[b.node] || failed(n, key) {
			continue
		}
		it.candidates = append(it.candidates, candidate{i, m.fetch(n, l), finish(mix([]byte(n.ID), base) + uint64(b.device))})
	}
	return it
}

// mix is FNV-1a, and finish the last step of splitmix64: together a hash by which each
// range has its own order of nodes, so that nodes whose views differ by a node choose
// alike for nearly all ranges.
func mix(b []byte, h uint64) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func finish(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// failed reports whether a node gave up a load of any of these layers.
func failed(n *Node, key kevlard.StageKey) bool {
	return slices.ContainsFunc(n.Failed, func(f Failed) bool {
		return f.Key.Model == key.Model && f.Key.Layers.Lo < key.Layers.Hi && key.Layers.Lo < f.Key.Layers.Hi
	})
}
