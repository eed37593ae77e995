package model

import (
	"container/heap"
	"unicode/utf8"
)

// pairRank says how good it is to join two neighbouring symbols; the lowest rank
// is joined first. ok is false if they must not be joined.
type pairRank func(left, right string) (rank float64, ok bool)

// mergePairs cuts word into characters and joins neighbours, the best pair first
// and the leftmost among equals, until no pair may be joined. It calls emit with
// the symbols that remain, in order.
func mergePairs(word string, rank pairRank, emit func(string)) {
	// Positions fit in an int32: text is bounded by maxEncodeBytes.
	m := merger{word: word, rank: rank}
	for at := 0; at < len(word); {
		_, n := utf8.DecodeRuneInString(word[at:])
		i := int32(len(m.symbols))
		m.symbols = append(m.symbols, symbol{start: int32(at), size: int32(n), prev: i - 1, next: i + 1})
		at += n
	}
	for i := range int32(len(m.symbols)) - 1 {
		m.consider(i, i+1)
	}
	for len(m.queue) > 0 {
		p := heap.Pop(&m.queue).(pair)
		l, r := &m.symbols[p.left], &m.symbols[p.right]
		if l.size == 0 || r.size == 0 || l.size+r.size != p.size {
			continue // one of them was joined to another symbol since
		}
		l.size += r.size
		r.size = 0
		l.next = r.next
		if int(r.next) < len(m.symbols) {
			m.symbols[r.next].prev = p.left
		}
		m.consider(l.prev, p.left)
		m.consider(p.left, l.next)
	}
	for _, s := range m.symbols {
		if s.size > 0 {
			emit(word[s.start : s.start+s.size])
		}
	}
}

// symbol is word[start:start+size], in a chain; size 0 is one that was joined to
// the symbol before it.
type symbol struct{ start, size, prev, next int32 }

// pair is a candidate: two symbols that had size bytes together when it was made.
type pair struct {
	rank              float64
	left, right, size int32
}

type merger struct {
	word    string
	rank    pairRank
	symbols []symbol
	queue   pairQueue
}

func (m *merger) consider(left, right int32) {
	if left < 0 || int(right) >= len(m.symbols) {
		return
	}
	l, r := m.symbols[left], m.symbols[right]
	if rank, ok := m.rank(m.word[l.start:l.start+l.size], m.word[r.start:r.start+r.size]); ok {
		heap.Push(&m.queue, pair{rank, left, right, l.size + r.size})
	}
}

// pairQueue is a heap with the best pair on top.
type pairQueue []pair

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	if q[i].rank != q[j].rank {
		return q[i].rank < q[j].rank
	}
	return q[i].left < q[j].left
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(pair)) }
func (q *pairQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
