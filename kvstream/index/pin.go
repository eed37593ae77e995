package index

import (
	"slices"

	"github.com/kevlard/kevlard"
)

// Pinned is stored KV that a load reads. It stays where it is until Unpin.
type Pinned struct {
	N    int // leading positions
	Runs []Run

	blocks []*block
}

// Pin finds the stored KV of a session's leading tokens from position from on,
// by the session's own copy or by name, whichever reaches further, and pins it. N
// is the end of it, at most len(tokens); from when there is nothing.
func (x *Index) Pin(stage kevlard.StageKey, class, salt string, id kevlard.SessionID, tokens []kevlard.Token, from int) Pinned {
	p := x.pools[stage]
	if p == nil {
		return Pinned{N: from}
	}
	size := x.cfg.BlockTokens
	seed := Seed(stage, class, salt)
	blocks, n := p.chain(seed, tokens, size)
	if c := x.copies[copyKey{id, stage}]; c != nil && c.seed == seed {
		if own := commonPrefix(c.tokens[:c.stored], tokens); own > n {
			n, blocks = own, c.blocks[:(own+size-1)/size]
		}
	}
	if n <= from {
		return Pinned{N: from}
	}
	out := Pinned{N: n}
	for at := from; at < n; {
		b := blocks[at/size]
		k := min(n, (at/size+1)*size) - at
		out.Runs = append(out.Runs, Run{b.slot, at % size, k})
		out.blocks = append(out.blocks, b)
		x.pin(b)
		at += k
	}
	return out
}

// Split cuts pinned KV in two that are unpinned on their own: the first n positions of
// its runs, and the rest. n is where a run ends.
func (p Pinned) Split(n int) (head, rest Pinned) {
	from := p.N
	for _, r := range p.Runs {
		from -= r.N
	}
	at, i := 0, 0
	for i < len(p.Runs) && at < n {
		at += p.Runs[i].N
		i++
	}
	head = Pinned{N: from + at, Runs: p.Runs[:i:i], blocks: p.blocks[:i:i]}
	return head, Pinned{N: p.N, Runs: p.Runs[i:], blocks: p.blocks[i:]}
}

// Unpin ends a load. good is how many of its positions, counted from the first
// run, were whole: the block that holds the next one is never used again.
func (x *Index) Unpin(p Pinned, good int, damaged bool) {
	for i, b := range p.blocks {
		if damaged && good >= 0 && good < p.Runs[i].N {
			x.counters.Damaged++
			x.condemn(b)
			good = -1
		} else if good >= 0 {
			good -= p.Runs[i].N
		}
	}
	for _, b := range slices.Backward(p.blocks) { // the first is the latest used
		x.unpin(b)
	}
}

// condemn takes a damaged block out of its name and out of every copy that holds it.
func (x *Index) condemn(b *block) {
	x.unname(b)
	for _, c := range x.sorted() {
		for i, o := range c.blocks {
			if o == b {
				x.abandon(c)
				x.truncateBlocks(c, i)
				break
			}
		}
	}
}

// truncateBlocks keeps the first n blocks of a copy.
func (x *Index) truncateBlocks(c *copied, n int) {
	if n > len(c.blocks) {
		return
	}
	for _, b := range c.blocks[n:] {
		x.unuse(b)
	}
	c.blocks = c.blocks[:n]
	n = min(len(c.tokens), n*x.cfg.BlockTokens)
	c.tokens = c.tokens[:n:n]
	c.stored = min(c.stored, len(c.tokens))
}
