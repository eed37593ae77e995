package index

import (
	"slices"

	"github.com/kevlard/kevlard"
)

// A tail is a block that was open when its session ended here: it is not full, has no
// name, and never changes. Tails and named blocks are found by the name before them
// and their tokens; of both, the leading positions are of use to a session whose
// tokens go on otherwise in the middle of a block.

// maxSiblings is how many blocks that follow one other block are compared with a
// session's tokens, the latest first. Full blocks that match are found whatever their
// number is.
const maxSiblings = 256

// seal names a full block. If the name is taken, the older bytes stay, and a
// difference is counted.
func (x *Index) seal(b *block, before Name, tokens []kevlard.Token) *block {
	sum := uint64(14695981039346656037) // FNV-1a over the positions' sums
	for _, s := range b.open {
		sum = (sum ^ s) * 1099511628211
	}
	name := Chain(before, tokens)
	if old := b.pool.names[name]; old != nil {
		if old.sum != sum {
			x.counters.Diverged++
		}
		x.use(old)
		x.unuse(b)
		return old
	}
	b.name, b.sum, b.open = name, sum, nil
	b.pool.names[name] = b
	x.find(b, before, tokens)
	return b
}

// end makes the open block that one copy has left a tail, and lets go of it. One that
// says nothing new is freed.
func (x *Index) end(b *block, before Name, tokens []kevlard.Token) {
	if len(tokens) > 0 && !x.covered(b.pool, before, tokens) {
		b.open = nil
		x.find(b, before, tokens)
	}
	x.unuse(b)
}

// covered reports whether a block begins with all of tokens.
func (x *Index) covered(p *pool, before Name, tokens []kevlard.Token) bool {
	_, n := p.longest(before, tokens)
	return n == len(tokens)
}

// find lets a block be found by its tokens. Tails that it begins with are of no more use.
func (x *Index) find(b *block, before Name, tokens []kevlard.Token) {
	b.found, b.before, b.tokens = true, before, slices.Clone(tokens)
	var shorter []*block
	for _, o := range b.pool.recent(before) {
		if !o.named() && commonPrefix(o.tokens, tokens) == len(o.tokens) {
			shorter = append(shorter, o)
		}
	}
	for _, o := range shorter {
		x.unname(o)
		if o.linked {
			x.uncache(o)
			x.free(o)
		}
	}
	b.pool.after[before] = append(b.pool.after[before], b)
	x.leafed(b.pool.names[before])
}

// unname makes a block one that is not found any more.
func (x *Index) unname(b *block) {
	p := b.pool
	if !b.found {
		return
	}
	b.found = false
	if b.named() {
		delete(p.names, b.name)
	}
	if rest := slices.DeleteFunc(p.after[b.before], func(o *block) bool { return o == b }); len(rest) > 0 {
		p.after[b.before] = rest
	} else {
		delete(p.after, b.before)
		x.leafed(p.names[b.before])
	}
}

// recent returns the latest blocks that follow a name.
func (p *pool) recent(before Name) []*block {
	all := p.after[before]
	return all[max(0, len(all)-maxSiblings):]
}

// longest finds the block after a name that has the most leading tokens in common
// with tokens, and how many these are.
func (p *pool) longest(before Name, tokens []kevlard.Token) (best *block, n int) {
	for _, b := range slices.Backward(p.recent(before)) {
		if k := commonPrefix(b.tokens, tokens); k > n {
			best, n = b, k
		}
	}
	return best, n
}

// chain returns the blocks that hold the leading tokens, found by their names, and how
// many positions these are. The last one may be of use in part.
func (p *pool) chain(seed Name, tokens []kevlard.Token, size int) (blocks []*block, n int) {
	name := seed
	for n+size <= len(tokens) {
		next := Chain(name, tokens[n:n+size])
		b := p.names[next]
		if b == nil {
			break
		}
		blocks, name = append(blocks, b), next
		n += size
	}
	if b, k := p.longest(name, tokens[n:]); k > 0 {
		blocks, n = append(blocks, b), n+k
	}
	return blocks, n
}

// Held returns how many leading positions of tokens are stored under their names.
func (x *Index) Held(stage kevlard.StageKey, class, salt string, tokens []kevlard.Token) int {
	p := x.pools[stage]
	if p == nil {
		return 0
	}
	_, n := p.chain(Seed(stage, class, salt), tokens, x.cfg.BlockTokens)
	return n
}

// Touch counts the blocks of a session that ended as used now, the first one last: of
// what is not used, ends go before beginnings.
func (x *Index) Touch(stage kevlard.StageKey, class, salt string, tokens []kevlard.Token) {
	p := x.pools[stage]
	if p == nil {
		return
	}
	blocks, _ := p.chain(Seed(stage, class, salt), tokens, x.cfg.BlockTokens)
	for _, b := range slices.Backward(blocks) {
		if b.linked {
			x.remove(b)
			x.push(b)
		}
	}
}
