package index

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// BlockTokens returns the positions of one block.
func (x *Index) BlockTokens() int { return x.cfg.BlockTokens }

// Has reports whether a block of that name is stored.
func (x *Index) Has(stage kevlard.StageKey, name Name) bool {
	p := x.pools[stage]
	return p != nil && p.names[name] != nil
}

// Keep gives rows that a stage of this node computed their places; without room it
// returns none, and they are to be dropped. Rows begin with a block, which follows the
// one named Before. They are cached under their names when they are stored, and no
// session holds them.
func (x *Index) Keep(piece uint64, r protocol.Rows) []Run {
	size := x.cfg.BlockTokens
	p := x.pools[r.Stage]
	switch {
	case r.Pos%size != 0 || p != nil && p.cellBytes != r.CellBytes:
		return nil
	case p == nil:
		p = newPool(r.Stage, r.CellBytes, size)
		x.pools[r.Stage] = p
	}
	p.copies++ // what alloc evicts may be all that it has
	defer func() {
		p.copies--
		x.settlePool(p)
	}()
	a := &arrival{piece: piece, sums: r.Sums, before: r.Before, tokens: r.Tokens}
	var runs []Run
	for at := 0; at < len(r.Tokens); at += size {
		b := x.alloc(p)
		if b == nil {
			for _, b := range a.blocks {
				x.unuse(b)
			}
			return nil
		}
		a.blocks = append(a.blocks, b)
		runs = append(runs, Run{Slot: b.slot, N: min(size, len(r.Tokens)-at)})
	}
	x.pieces[piece] = a
	return runs
}

// keep names the blocks of what was kept.
func (x *Index) keep(a *arrival) {
	size, before := x.cfg.BlockTokens, a.before
	x.counters.Kept += uint64(len(a.tokens))
	for i, b := range a.blocks {
		at := i * size
		tokens := a.tokens[at:min(at+size, len(a.tokens))]
		if len(tokens) < size {
			x.end(b, before, tokens)
			return
		}
		b.open = a.sums[at : at+size]
		b = x.seal(b, before, tokens)
		before = b.name
		x.unuse(b)
	}
}
