package daemon

import (
	"context"
	"sync"

	"github.com/kevlard/kevlard/node"
)

// questions are events to the loop that wait for an answer of type A. They are as many
// as the calls and requests that ask. The zero value has none.
type questions[A any] struct {
	mu   sync.Mutex
	last uint64
	wait map[uint64]chan A
}

// ask posts the event with a number of its own and waits for the answer to that number.
func (q *questions[A]) ask(ctx context.Context, d *Daemon, event func(number uint64) node.Event) (A, error) {
	var none A
	number, answer := q.add()
	defer q.remove(number)
	if !d.post(event(number)) {
		return none, stopping()
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-d.ended:
		return none, stopping()
	}
}

func (q *questions[A]) add() (uint64, <-chan A) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wait == nil {
		q.wait = map[uint64]chan A{}
	}
	q.last++
	c := make(chan A, 1)
	q.wait[q.last] = c
	return q.last, c
}

func (q *questions[A]) remove(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.wait, number)
}

// answer never blocks.
func (q *questions[A]) answer(number uint64, a A) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.wait[number]; c != nil {
		c <- a
		delete(q.wait, number)
	}
}
