package index

import "container/heap"

// Blocks are found through the blocks before them, so what is evicted is an end: a leaf
// is a cached block that no block follows. The leaf that was used least recently goes
// first, and then the block before it, if it has become one.

// leaves is a heap of blocks by their last use. It implements heap.Interface.
type leaves []*block

func (l leaves) Len() int           { return len(l) }
func (l leaves) Less(i, j int) bool { return l[i].used < l[j].used }

func (l leaves) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].leaf, l[j].leaf = i+1, j+1
}

// Push implements heap.Interface.
func (l *leaves) Push(x any) {
	b := x.(*block)
	*l = append(*l, b)
	b.leaf = len(*l)
}

// Pop implements heap.Interface.
func (l *leaves) Pop() any {
	old := *l
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	b.leaf = 0
	return b
}

// leafed puts a block among the leaves, or takes it out, as it should be. nil is no
// block.
func (x *Index) leafed(b *block) {
	if b == nil {
		return
	}
	is := b.linked && (!b.named() || len(b.pool.after[b.name]) == 0)
	switch {
	case is && b.leaf == 0:
		heap.Push(&x.leaves, b)
	case is:
		heap.Fix(&x.leaves, b.leaf-1)
	case b.leaf > 0:
		heap.Remove(&x.leaves, b.leaf-1)
	}
}

// push caches a block as the one used last.
func (x *Index) push(b *block) {
	x.uses++
	b.used = x.uses
	x.cache.push(b)
	x.leafed(b)
}

// remove takes a block out of the cache.
func (x *Index) remove(b *block) {
	x.cache.remove(b)
	x.leafed(b)
}

// oldest returns the block that is to be evicted next, nil if none is cached: the leaf
// used least recently, or, where all that follow are in use, the block used least recently.
func (x *Index) oldest() *block {
	if len(x.leaves) > 0 {
		return x.leaves[0]
	}
	return x.cache.front()
}
