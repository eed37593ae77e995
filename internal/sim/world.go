package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// world is one run: the clock, the queue of what happens next, and everything
// that exists.
type world struct {
	sc    Scenario
	plant Plant
	now   kevlard.Instant
	queue queue
	seq   uint64
	rng   *rand.Rand
	// copyRNG draws all that has to do with copies.
	copyRNG *rand.Rand
	// goneRNG draws when clients go and come back.
	goneRNG *rand.Rand
	// ownRNG draws when clients come back, and where.
	ownRNG *rand.Rand
	kills  int
	// promises are those that a planted bug makes again.
	promises map[kevlard.SessionID]*protocol.Record
	codec    *protocol.Codec // nil: messages are handed over as they are

	model  topology.Model
	models []topology.Model // that alone, for views
	hosts  []*host          // sorted by name
	byID   map[kevlard.NodeID]*host
	names  []kevlard.NodeID // sorted
	pairs  map[[2]int]*pair
	news   uint64 // version of the ring's truth

	lastRows kevlard.Instant // when KV last arrived somewhere

	judge  *judge
	trace  io.Writer // nil: none
	digest uint64
	events int
}

// happening is one entry of the queue; equal times keep the order of entry.
type happening struct {
	at  kevlard.Instant
	seq uint64
	do  func()
}

// queue is a heap of what happens, the earliest at 0. (container/heap would allocate for
// each entry.)
type queue []happening

func (q queue) less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *queue) push(x happening) {
	*q = append(*q, x)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() happening {
	h := *q
	x, n := h[0], len(h)-1
	h[0], h[n] = h[n], happening{}
	h = h[:n]
	*q = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return x
		}
		if down+1 < n && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			return x
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// at makes something happen at an instant, not before now.
func (w *world) at(t kevlard.Instant, do func()) {
	w.seq++
	w.queue.push(happening{max(t, w.now), w.seq, do})
}

// after makes something happen in d.
func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// between draws a time.
func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

// chance is true once in n.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// run lets the world go on until an instant, or until stop says so.
func (w *world) run(until kevlard.Instant, stop func() bool) {
	for len(w.queue) > 0 && w.queue[0].at <= until {
		if stop != nil && stop() {
			return
		}
		if w.events++; w.events > maxEvents {
			w.judge.fail("more than %d events", maxEvents)
			return
		}
		x := w.queue.pop()
		w.now = x.at
		x.do()
	}
	w.now = max(w.now, until)
}

// fold adds words to the trace's hash.
func (w *world) fold(words ...uint64) {
	for _, v := range words {
		w.digest = (w.digest ^ v) * 0x100000001b3
		w.digest ^= w.digest >> 29
	}
}

func (w *world) foldText(s string) {
	for i := range len(s) {
		w.digest = (w.digest ^ uint64(s[i])) * 0x100000001b3
	}
}

// say writes one line of the trace: time in seconds, node, what, details.
func (w *world) say(node kevlard.NodeID, what, format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%10.4f %-4s %-10s %s\n", time.Duration(w.now).Seconds(), node, what, fmt.Sprintf(format, args...))
	}
}
