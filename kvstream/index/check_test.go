package index

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// check compares everything that the index believes with itself and with the memory.
func (m *model) check(t *rapid.T) {
	refs, pins := map[*block]int{}, map[*block]int{}
	for _, c := range m.x.copies {
		for _, b := range c.blocks {
			refs[b]++
		}
		m.checkCopy(t, c)
	}
	for _, a := range m.x.pieces {
		for _, b := range a.blocks {
			if a.tokens != nil {
				refs[b]++
			} else {
				pins[b]++
			}
		}
	}
	for _, l := range m.loads {
		k := 0
		for i, run := range l.pinned.Runs {
			pins[l.pinned.blocks[i]]++
			for at := range run.N {
				if got := m.memory[place{l.stage, run.Slot, run.At + at}].content; got != l.values[k] {
					t.Fatalf("slot %d position %d changed under a load: %x, want %x", run.Slot, run.At+at, got, l.values[k])
				}
				k++
			}
		}
	}
	cached := map[*block]bool{}
	for b := m.x.cache.first; b != nil; b = b.next {
		cached[b] = true
	}
	var used int64
	for stage, p := range m.x.pools {
		for slot, b := range p.slots {
			if b == nil {
				if !slices.Contains(p.free, slot) {
					t.Fatalf("slot %d is neither free nor in use", slot)
				}
				continue
			}
			used += p.blockBytes
			if b.slot != slot || slices.Contains(p.free, slot) || b.pool != p {
				t.Fatalf("slot %d is owned twice", slot)
			}
			if b.refs != refs[b] || b.pins != pins[b] {
				t.Fatalf("slot %d: %d copies and %d pins, counted as %d and %d", slot, refs[b], pins[b], b.refs, b.pins)
			}
			if b.idle() != cached[b] || b.idle() && !b.found {
				t.Fatalf("slot %d: idle %v, cached %v", slot, b.idle(), cached[b])
			}
			if leaf := cached[b] && (!b.named() || len(p.after[b.name]) == 0); leaf != (b.leaf > 0) || leaf && m.x.leaves[b.leaf-1] != b {
				t.Fatalf("slot %d: a leaf %v, listed as %d", slot, leaf, b.leaf)
			}
			m.checkNamed(t, stage, b)
			m.checkFound(t, p, b)
		}
		for before, all := range p.after {
			for _, b := range all {
				if !b.found || b.before != before || p.slots[b.slot] != b {
					t.Fatalf("slot %d follows a name that it should not", b.slot)
				}
			}
		}
		for name, b := range p.names {
			if b.name != name || p.slots[b.slot] != b {
				t.Fatalf("a name of slot %d stands for another block", b.slot)
			}
		}
	}
	if used != m.x.used || used > m.limit && (!m.shrunk || len(cached) > 0) {
		t.Fatalf("%d bytes are in slots, %d counted, %d allowed, %d blocks cached", used, m.x.used, m.limit, len(cached))
	}
	if n := m.x.counters.Diverged; n > 0 {
		t.Fatalf("%d blocks diverged", n)
	}
}

func (m *model) checkCopy(t *rapid.T, c *copied) {
	if c.stored > len(c.tokens) || (len(c.tokens)+m.size-1)/m.size != len(c.blocks) {
		t.Fatalf("%v: %d stored of %d in %d blocks", c.key, c.stored, len(c.tokens), len(c.blocks))
	}
	salt := ""
	for _, s := range m.talkers {
		if s.id == c.key.session {
			salt = s.salt
		}
	}
	for i := range c.stored {
		b := c.blocks[i/m.size]
		if (i/m.size+1)*m.size <= c.stored != b.named() {
			t.Fatalf("%v: block %d of %d positions has a name: %v", c.key, i/m.size, c.stored, b.named())
		}
		got, want := m.memory[place{c.key.stage, b.slot, i % m.size}].content, content(c.key.stage, salt, c.tokens[:i+1])
		if got != want {
			t.Fatalf("%v: position %d of %d stored holds %x, want %x", c.key, i, c.stored, got, want)
		}
	}
	if rest := c.stored % m.size; rest > 0 && len(c.blocks[c.stored/m.size].open) != rest {
		t.Fatalf("%v: %d sums of %d positions of the open block", c.key, len(c.blocks[c.stored/m.size].open), rest)
	}
}

// checkFound checks that a block is found by its tokens exactly if it should be.
func (m *model) checkFound(t *rapid.T, p *pool, b *block) {
	if listed := slices.Contains(p.after[b.before], b); listed != b.found {
		t.Fatalf("slot %d: found %v, listed %v", b.slot, b.found, listed)
	}
	switch {
	case !b.found:
	case b.named() != (len(b.tokens) == m.size) || len(b.tokens) == 0:
		t.Fatalf("slot %d has %d tokens, named %v", b.slot, len(b.tokens), b.named())
	case b.named() && (p.names[b.name] != b || b.name != Chain(b.before, b.tokens)):
		t.Fatalf("slot %d has another's name", b.slot)
	}
}

// checkNamed compares a named block's bytes with the sum that it was named with.
func (m *model) checkNamed(t *rapid.T, stage kevlard.StageKey, b *block) {
	if !b.named() || b.pool.names[b.name] != b {
		return
	}
	sum := uint64(14695981039346656037)
	for at := range m.size {
		sum = (sum ^ m.memory[place{stage, b.slot, at}].content) * 1099511628211
	}
	if sum != b.sum {
		t.Fatalf("slot %d has a name and other bytes", b.slot)
	}
}
