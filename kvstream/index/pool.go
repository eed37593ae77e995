package index

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// pool is the block memory of one stage: slots of one block each, numbered from 0,
// the lowest free one first.
type pool struct {
	stage      kevlard.StageKey
	cellBytes  int
	blockBytes int64
	slots      []*block // nil: free
	free       []int    // numbers of free slots below len(slots), the lowest last
	names      map[Name]*block
	after      map[Name][]*block // the named blocks and tails, by the name before them
	copies     int
}

func newPool(stage kevlard.StageKey, cellBytes, blockTokens int) *pool {
	return &pool{stage: stage, cellBytes: cellBytes, blockBytes: int64(cellBytes) * int64(blockTokens), names: map[Name]*block{}, after: map[Name][]*block{}}
}

// block is one slot in use.
type block struct {
	pool *pool
	slot int
	name Name   // zero while the block is open
	sum  uint64 // over the sums of its positions, once it has a name
	refs int    // copies that hold it
	pins int    // loads that read it, rows on their way into it

	// Of a block that is found by its tokens: one with a name, or a tail.
	found  bool
	before Name // of the block before it, or the seed
	tokens []kevlard.Token

	open []uint64 // sums of the positions of an open block
	link          // in the cache while idle
	used uint64   // when it was cached or touched last
	leaf int      // 1 + its place among the leaves; 0: it is none
}

func (b *block) named() bool { return b.name != Name{} }

// idle reports whether only the block's name holds it.
func (b *block) idle() bool { return b.refs == 0 && b.pins == 0 }

// alloc takes a slot, evicting cached blocks when the memory is used up. It
// returns nil if there is no room.
func (x *Index) alloc(p *pool) *block {
	for x.used+p.blockBytes > x.cfg.Bytes {
		if !x.evict() {
			return nil
		}
	}
	b := &block{pool: p, refs: 1}
	if n := len(p.free); n > 0 {
		b.slot = p.free[n-1]
		p.free = p.free[:n-1]
		p.slots[b.slot] = b
	} else {
		b.slot = len(p.slots)
		p.slots = append(p.slots, b)
	}
	x.used += p.blockBytes
	delete(x.freed, slotKey{p.stage, b.slot})
	return b
}

// evict frees the end that was used least recently.
func (x *Index) evict() bool {
	b := x.oldest()
	if b == nil {
		return false
	}
	x.counters.Evicted++
	x.uncache(b)
	x.free(b)
	return true
}

func (x *Index) free(b *block) {
	p := b.pool
	x.unname(b)
	p.slots[b.slot] = nil
	at, _ := slices.BinarySearchFunc(p.free, b.slot, func(f, slot int) int { return cmp.Compare(slot, f) })
	p.free = slices.Insert(p.free, at, b.slot)
	x.used -= p.blockBytes
	x.freed[slotKey{p.stage, b.slot}] = struct{}{}
	x.settlePool(p)
}

// settlePool forgets a stage of which nothing is held: peers choose the names.
func (x *Index) settlePool(p *pool) {
	if p.copies == 0 && len(p.free) == len(p.slots) {
		delete(x.pools, p.stage)
	}
}

// uncache takes an idle block that is about to be used or freed out of the cache.
func (x *Index) uncache(b *block) {
	if b.linked {
		x.cached -= b.pool.blockBytes
		x.remove(b)
	}
}

func (x *Index) use(b *block) {
	if b.idle() {
		x.uncache(b)
	}
	b.refs++
}

func (x *Index) unuse(b *block) {
	b.refs--
	x.settle(b)
}

func (x *Index) pin(b *block) {
	if b.idle() {
		x.uncache(b)
	}
	b.pins++
	x.pins++
}

func (x *Index) unpin(b *block) {
	b.pins--
	x.pins--
	x.settle(b)
}

// settle frees or caches a block that nothing refers to any more. Over the limit,
// which may have fallen meanwhile, nothing is cached.
func (x *Index) settle(b *block) {
	switch {
	case !b.idle():
	case b.found && x.used <= x.cfg.Bytes:
		x.push(b)
		x.cached += b.pool.blockBytes
	default:
		x.free(b)
	}
}

// list is a doubly linked list of blocks.
type list struct{ first, last *block }

type link struct {
	prev, next *block
	linked     bool
}

func (l *list) front() *block { return l.first }

func (l *list) push(b *block) {
	b.link = link{prev: l.last, linked: true}
	if l.last != nil {
		l.last.next = b
	} else {
		l.first = b
	}
	l.last = b
}

func (l *list) remove(b *block) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.last = b.prev
	}
	b.link = link{}
}
