package node

import (
	"cmp"
	"container/heap"

	"github.com/kevlard/kevlard"
)

// timers is a priority queue of the sessions' deadlines. The zero value is
// empty.
type timers struct {
	h  timerHeap
	by map[kevlard.SessionID]*timer
}

type timer struct {
	id    kevlard.SessionID
	at    kevlard.Instant
	index int
}

// set moves a session's deadline; Never removes it.
func (t *timers) set(id kevlard.SessionID, at kevlard.Instant) {
	if t.by == nil {
		t.by = map[kevlard.SessionID]*timer{}
	}
	x := t.by[id]
	switch {
	case x == nil && at == kevlard.Never:
	case x == nil:
		x = &timer{id: id, at: at}
		t.by[id] = x
		heap.Push(&t.h, x)
	case at == kevlard.Never:
		heap.Remove(&t.h, x.index)
		delete(t.by, id)
	default:
		x.at = at
		heap.Fix(&t.h, x.index)
	}
}

// next returns the earliest deadline.
func (t *timers) next() kevlard.Instant {
	if len(t.h) == 0 {
		return kevlard.Never
	}
	return t.h[0].at
}

// pop takes one session whose deadline is not after now.
func (t *timers) pop(now kevlard.Instant) (kevlard.SessionID, bool) {
	if t.next() > now {
		return "", false
	}
	x := heap.Pop(&t.h).(*timer)
	delete(t.by, x.id)
	return x.id, true
}

// timerHeap implements heap.Interface, ordered by time, then session.
type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }

func (h timerHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].id, h[j].id)) < 0
}

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
