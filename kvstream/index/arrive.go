package index

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Answer is a message to the stage that sends rows.
type Answer struct {
	To      kevlard.NodeID
	Message protocol.Stored
}

// Arrived takes a piece of KV and gives it its place; without one, the piece is to
// be dropped. intact is whether its checksums were right. The answer, if any, goes
// to the sender; what is placed is acknowledged when it is stored.
func (x *Index) Arrived(now kevlard.Instant, from kevlard.NodeID, piece uint64, r protocol.Rows, intact bool) ([]Run, *Answer) {
	key := copyKey{r.Session, r.Stage}
	c := x.copies[key]
	if c == nil {
		if x.tombs.covers(r.Session, r.Stage.Layers.Lo, r.Fence) {
			x.counters.Stale++
			return nil, nil
		}
		return nil, &Answer{from, protocol.Stored{
			Session: r.Session, Fence: r.Fence, Stage: r.Stage, Refusal: protocol.RefusedUnknown, Detail: "no copy of this session is kept here",
		}}
	}
	if r.Fence.Compare(c.fence) < 0 || from != c.source || r.Class != c.class || r.CellBytes != c.pool.cellBytes {
		x.counters.Stale++
		return nil, nil
	}
	c.fence = r.Fence
	if r.Try < c.try { // it was on its way before the sender was told where to go on
		return nil, nil
	}
	again := func() ([]Run, *Answer) {
		x.abandon(c)
		c.try++
		return nil, &Answer{from, protocol.Stored{Session: r.Session, Fence: r.Fence, Stage: r.Stage, Through: c.stored, Again: true, Try: c.try, Number: c.number}}
	}
	if !intact {
		x.counters.Damaged += uint64(len(r.Tokens))
		return again()
	}
	if r.Pos != len(c.tokens) {
		x.counters.Gaps++
		return again()
	}
	runs, blocks, ok := x.place(c, len(r.Tokens))
	if !ok {
		a := x.dismiss(c)
		return nil, &a
	}
	c.tokens = append(c.tokens, r.Tokens...)
	c.lease = now.Add(x.cfg.Lease)
	a := &arrival{piece: piece, copied: c, from: from, fence: r.Fence, end: r.End(), sums: slices.Clone(r.Sums), blocks: blocks}
	for _, b := range blocks {
		x.pin(b)
	}
	c.waiting = append(c.waiting, a)
	x.pieces[piece] = a
	return runs, nil
}

// place finds room for n positions at the end of a copy.
func (x *Index) place(c *copied, n int) (runs []Run, blocks []*block, ok bool) {
	size := x.cfg.BlockTokens
	at := len(c.tokens)
	held := len(c.blocks)
	for n > 0 {
		if at/size == len(c.blocks) {
			b := x.alloc(c.pool)
			if b == nil {
				for _, b := range c.blocks[held:] {
					x.unuse(b)
				}
				c.blocks = c.blocks[:held]
				return nil, nil, false
			}
			c.blocks = append(c.blocks, b)
		}
		b := c.blocks[at/size]
		k := min(n, size-at%size)
		runs = append(runs, Run{b.slot, at % size, k})
		blocks = append(blocks, b)
		at += k
		n -= k
	}
	return runs, blocks, true
}

// Stored notes that a piece is in its place. The answer acknowledges all that is
// stored without a gap.
func (x *Index) Stored(now kevlard.Instant, piece uint64) *Answer {
	a := x.pieces[piece]
	if a == nil {
		return nil
	}
	delete(x.pieces, piece)
	if a.tokens != nil {
		x.keep(a)
		return nil
	}
	defer func() {
		for _, b := range a.blocks {
			x.unpin(b)
		}
	}()
	c := a.copied
	if c == nil {
		return nil
	}
	a.done = true
	before := c.stored
	for len(c.waiting) > 0 && c.waiting[0].done {
		x.commit(c, c.waiting[0])
		c.waiting = c.waiting[1:]
	}
	if c.stored == before {
		return nil
	}
	c.lease = now.Add(x.cfg.Lease)
	return &Answer{c.source, protocol.Stored{Session: c.key.session, Fence: c.fence, Stage: c.key.stage, Through: c.stored, Try: c.try, Number: c.number}}
}

// commit counts a piece as stored and names the blocks that it filled.
func (x *Index) commit(c *copied, a *arrival) {
	size := x.cfg.BlockTokens
	x.counters.Positions += uint64(a.end - c.stored)
	for _, sum := range a.sums {
		i := c.stored / size
		b := c.blocks[i]
		b.open = append(b.open, sum)
		c.stored++
		if c.stored%size == 0 {
			before := c.seed
			if i > 0 {
				before = c.blocks[i-1].name
			}
			c.blocks[i] = x.seal(b, before, c.tokens[i*size:c.stored])
		}
	}
}
