package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/rdma/flow"
)

// errIdle ends a connection that nobody needs; a Send that meets it takes the next.
var errIdle = errors.New("connection is idle")

// outgoing is one dialled connection. Its life:
//
//	new --- hello ---> open --- idle, Close ---> ending: asks end, bye, the peer's parted
//	  |                  |                         |
//	  |  error           |  error                  |  error, no parted in time
//	  +------------------+-------------------------+--> broken (Lost, if it was open)
type outgoing struct {
	*end
	slot int

	ready chan struct{} // closed at the peer's hello
	gone  chan struct{} // closed at the end of Run

	mu      sync.Mutex // guards end.out, heard and grace too
	flow    flow.Sending
	asks    map[uint32]asking // of those whose callers wait
	places  map[int]place     // staging in use, by offset
	room    chan struct{}     // closed when waiting senders are to look again
	waiting int               // senders
	uses    uint64
	ended   error // nothing is accepted any more
	ending  chan struct{}
	byed    bool
	parted  bool
}

// answer is what became of an ask.
type answer struct {
	granted bool
	place   flow.Place
}

func newOutgoing(e *end, slot int) *outgoing {
	return &outgoing{
		end: e, slot: slot, ready: make(chan struct{}), gone: make(chan struct{}), ending: make(chan struct{}),
		asks: map[uint32]asking{}, places: map[int]place{}, room: make(chan struct{}),
	}
}

// Open implements conns.Conn. A connection that broke takes no pieces, though its end is not
// done yet.
func (c *outgoing) Open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended == nil && c.cause() == nil
}

// reach waits until the peer's card has acknowledged a write of nothing.
func (c *outgoing) reach(ctx context.Context) error {
	done := make(chan struct{})
	c.mu.Lock()
	err := c.say(0, func() { close(done) })
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("send to %s: %w: %w", c.node, mover.ErrBroken, err)
	}
	select {
	case <-done:
		return nil
	case <-c.gone:
		return c.explain()
	case <-ctx.Done():
		return fmt.Errorf("send to %s: its card does not answer: %w", c.node, context.Cause(ctx))
	}
}

// Gone implements conns.Conn.
func (c *outgoing) Gone() <-chan struct{} { return c.gone }

// Broke implements conns.Conn.
func (c *outgoing) Broke() error { return c.cause() }

// End implements conns.Conn.
func (c *outgoing) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.ended = err
	close(c.ending)
	c.stirLocked()
	c.queue.Wake()
}

// stirLocked wakes all senders that wait.
func (c *outgoing) stirLocked() {
	close(c.room)
	c.room = make(chan struct{})
}

// Run listens until the connection ends, and takes it down.
func (c *outgoing) Run() {
	used, idle := uint64(0), time.Now()
	var endBy time.Time
	var dones [pollBatch]Done
	for c.cause() == nil {
		until := c.deadline(idle, endBy)
		n, err := c.queue.Wait(until, dones[:])
		if err == nil {
			err = c.take(dones[:n])
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.overdue(time.Now())
		}
		if err != nil {
			c.Fail(err)
			break
		}
		c.mu.Lock()
		if c.uses != used || c.waiting > 0 || len(c.asks) > 0 {
			used, idle = c.uses, time.Now()
		}
		c.mu.Unlock()
		if time.Since(idle) >= c.mover.cfg.Idle {
			c.End(errIdle)
		}
		if parted, err := c.part(&endBy); err != nil {
			c.Fail(err)
		} else if parted {
			break
		}
	}
	c.takeDown()
}

// deadline is when run has to look again though nothing happened.
func (c *outgoing) deadline(idle, endBy time.Time) time.Time {
	until := idle.Add(c.mover.cfg.Idle)
	if !endBy.IsZero() {
		until = endBy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owedLocked() {
		until = earlier(until, c.heard.Add(c.patienceLocked()))
		until = earlier(until, time.Now().Add(probeEvery))
	}
	return until
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// owedLocked reports whether the peer is to say something.
func (c *outgoing) owedLocked() bool { return c.waiting > 0 || len(c.asks) > 0 }

// patienceLocked is how long the peer may owe. Were it this process that stood still, the
// word is there by now, and is found before the clock is looked at again.
func (c *outgoing) patienceLocked() time.Duration {
	if c.grace {
		return c.mover.cfg.Stall + kevlard.LateGrace
	}
	return c.mover.cfg.Stall
}

// overdue is an error if the peer owes for too long. Before that it looks whether the peer's
// card is there.
func (c *outgoing) overdue(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.owedLocked() {
		return nil
	}
	if now.Sub(c.heard) < c.patienceLocked() {
		return c.out.probe(now, c.word(0))
	}
	if !c.grace {
		c.grace, c.heard = true, now.Add(-c.mover.cfg.Stall)
		return nil
	}
	return fmt.Errorf("no progress for %v: the peer takes nothing and answers nothing", c.mover.cfg.Stall)
}

// part says bye when all was sent, and reports the peer's parted.
func (c *outgoing) part(endBy *time.Time) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		return false, nil
	}
	now := time.Now()
	if endBy.IsZero() {
		*endBy = now.Add(conns.CloseGrace)
	}
	if c.parted {
		return true, nil
	}
	if !now.Before(*endBy) {
		return false, errors.New("the peer did not take all that was sent in time")
	}
	if !c.byed && c.flow.Open() == 0 {
		c.byed = true
		c.flow.Bye()
		return false, c.say(flow.Say(flow.Bye, 0), nil)
	}
	return false, nil
}

// take handles completions.
func (c *outgoing) take(dones []Done) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end.take(dones, func(d Done) error { return c.told(d.Imm) })
}

// told does what the peer says; mu is held.
func (c *outgoing) told(i flow.Imm) error {
	t, err := c.flow.Take(i)
	if err != nil {
		return err
	}
	switch t.Kind {
	case flow.Hello:
		select {
		case <-c.ready:
			return fmt.Errorf("%v: said twice", i)
		default:
			close(c.ready)
		}
	case flow.Credit:
		c.stirLocked()
	case flow.Grant, flow.Refuse:
		return c.answered(t)
	case flow.Parted:
		c.parted = true
	case flow.Gone:
		return errors.New("the peer ended the connection")
	}
	return nil
}

// answered hands an answer to whom it is for; mu is held.
func (c *outgoing) answered(t flow.Told) error {
	c.stirLocked() // the window has room, now or when the body was written
	wait, ok := c.asks[t.Number]
	if !ok {
		return nil // it was withdrawn
	}
	delete(c.asks, t.Number)
	if t.Kind == flow.Refuse {
		wait.ch <- answer{}
		return nil
	}
	at := flow.RingBytes + flow.Slot(t.Number)
	p, err := flow.DecodePlace(c.mem.mem[at:at+flow.GrantBytes], t.Number, wait.size)
	if err != nil {
		return err
	}
	wait.ch <- answer{true, p}
	return nil
}

// takeDown ends everything after the last Wait.
func (c *outgoing) takeDown() {
	err := c.queue.Close() // from here on the card touches nothing
	c.mu.Lock()
	if c.ended == nil {
		c.ended = c.explain()
		close(c.ending)
	}
	for _, p := range c.places {
		c.mover.outgo.put(p)
	}
	clear(c.places)
	c.stirLocked()
	c.mu.Unlock()
	// Nor does a sender: who composes a message holds the lock, and finds the end there.
	err = errors.Join(err, c.mem.close())
	if err != nil {
		c.mover.cfg.Log.Warn("RDMA connection was not taken down cleanly", "peer", c.node, "err", err)
	}
	select {
	case <-c.ready:
		if err := c.cause(); err != nil && c.mover.conns.Lost() {
			c.mover.cfg.Handler.Lost(c.node, fmt.Errorf("RDMA to %s: %w", c.node, err))
		}
	default: // it never was open
	}
	close(c.gone)
}

// explain makes the cause an error of a sender.
func (c *outgoing) explain() error {
	err := c.cause()
	if err == nil {
		err = errIdle
	}
	return fmt.Errorf("send to %s: %w: %w", c.node, mover.ErrBroken, err)
}
