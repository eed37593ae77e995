package daemon

import (
	"context"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// takeOver makes this node the owner of a session that nobody alive owns; then it is
// paused here. It also returns nil when the owner turned out to live. Other errors are
// *kevlard.Failure: session_not_found (404), session_busy and session_no_quorum (409),
// overloaded (429), draining (503).
func (d *Daemon) takeOver(ctx context.Context, id kevlard.SessionID) error {
	number, answer := d.takeovers.add()
	defer d.takeovers.remove(number)
	if !d.post(node.TakeOver{Session: id, Number: number}) {
		return stopping()
	}
	select {
	case t := <-answer:
		if t.Err != nil {
			return t.Err
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-d.ended:
		return stopping()
	}
}

// takeovers are the requests to the loop that wait for their answers. They are as many
// as the clients that come back.
type takeovers struct {
	mu   sync.Mutex
	last uint64
	wait map[uint64]chan node.TakenOver
}

func (t *takeovers) add() (uint64, <-chan node.TakenOver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wait == nil {
		t.wait = map[uint64]chan node.TakenOver{}
	}
	t.last++
	c := make(chan node.TakenOver, 1)
	t.wait[t.last] = c
	return t.last, c
}

func (t *takeovers) remove(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.wait, number)
}

// answer never blocks.
func (t *takeovers) answer(e node.TakenOver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.wait[e.Number]; c != nil {
		c <- e
		delete(t.wait, e.Number)
	}
}
