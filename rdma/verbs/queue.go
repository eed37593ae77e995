package verbs

import (
	"context"
	"fmt"
	"sync"
)

// Queue is a completion queue with a channel to wait on. One goroutine polls and
// waits; any may close it.
type Queue struct {
	mu      sync.Mutex // guards the handles against Close; never held while waiting
	closed  bool
	handle  queueHandle
	channel channelHandle
	events  *channelFile
	raw     [maxBatch]rawCompletion
}

// NewQueue makes a queue for depth completions. It must have room for all requests
// that can be under way on its queue pairs: one that overruns fails them all.
func (c *Context) NewQueue(depth int) (*Queue, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return nil, ErrClosed
	}
	fail := func(what string, err error) error {
		return fmt.Errorf("make a completion queue of %d on %s: %s: %w", depth, c.device, what, err)
	}
	ch, fd, err := createChannel(c.handle)
	if err != nil {
		return nil, fail("channel", err)
	}
	q := &Queue{channel: ch}
	if q.events, err = pollable(fd, "RDMA completions of "+c.device); err != nil {
		_ = destroyChannel(ch) // the first error counts
		return nil, fail("poller", err)
	}
	if q.handle, err = createQueue(c.handle, depth, ch); err != nil {
		q.events.close()
		_ = destroyChannel(ch) // the first error counts
		return nil, fail("queue", err)
	}
	return q, nil
}

// Poll takes up to len(out) completions, at most 64, without waiting.
func (q *Queue) Poll(out []Completion) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, ErrClosed
	}
	if len(out) == 0 {
		return 0, nil
	}
	n, err := pollQueue(q.handle, &q.raw, min(len(out), maxBatch))
	if err != nil {
		return 0, fmt.Errorf("poll RDMA completions: %w", err)
	}
	for i, r := range q.raw[:n] {
		out[i] = Completion{
			ID: r.id, Status: Status(r.status), Kind: Kind(r.op), Vendor: r.vendor, Bytes: r.bytes, QP: r.qp,
			// Soft-RoCE marks what was sent, too.
			HasImmediate: r.status == 0 && Kind(r.op)&Received != 0 && r.flags&withImmediate != 0,
		}
		if out[i].HasImmediate {
			out[i].Immediate = r.imm
		}
	}
	return n, nil
}

// withImmediate marks a raw completion that has an immediate.
const withImmediate = 2

// Wait takes up to len(out) completions, at most 64, and sleeps until there is one.
// Its errors are ErrClosed, why ctx ended, or what the card says.
func (q *Queue) Wait(ctx context.Context, out []Completion) (int, error) {
	for {
		if n, err := q.Poll(out); n > 0 || err != nil {
			return n, err
		}
		// What came between the poll and the arming raises no event: look again.
		if err := q.arm(); err != nil {
			return 0, err
		}
		if n, err := q.Poll(out); n > 0 || err != nil {
			return n, err
		}
		if err := q.events.wait(ctx, q.take); err != nil {
			return 0, err
		}
	}
}

func (q *Queue) arm() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if err := armQueue(q.handle); err != nil {
		return fmt.Errorf("arm RDMA completions: %w", err)
	}
	return nil
}

func (q *Queue) take() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	return takeQueueEvent(q.channel)
}

// Close ends a Wait with ErrClosed and destroys the queue. Its queue pairs must be
// closed before: with EBUSY it stays open, and Close may be called again.
func (q *Queue) Close() error {
	if done, err := q.destroy(); done || err != nil {
		return err
	}
	// Without the lock: closing the file waits for who is in take, and take for the lock.
	q.events.close()
	if err := destroyChannel(q.channel); err != nil {
		return fmt.Errorf("close a completion channel: %w", err)
	}
	return nil
}

// destroy reports whether the queue was closed before.
func (q *Queue) destroy() (done bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true, nil
	}
	if err := destroyQueue(q.handle); err != nil {
		return false, fmt.Errorf("close a completion queue: %w", err)
	}
	q.closed = true
	return false, nil
}
