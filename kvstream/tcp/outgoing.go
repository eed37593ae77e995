package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// errIdle ends a connection that nobody needs, or that has carried connBytes; a Send
// that meets it takes the next connection.
var errIdle = errors.New("connection is idle")

// outgoing is one dialled connection. Its life:
//
//	open --- idle, Close ---> finishing: the queue is sent, this direction closed,
//	  |                          |       the peer's close awaited
//	  |  error, cancelled send   |  error, no close in time
//	  +------------------------> broken: Lost      closed by the peer: gone in peace
type outgoing struct {
	mover  *Mover
	to     kevlard.NodeID
	slot   int
	queue  *queue
	socket *socket
	secure *tls.Conn // nil: plain
	out    *output

	carried int64 // bytes; of whoever writes

	finished atomic.Bool   // this direction is closed
	broken   chan struct{} // closed by Fail
	failOnce sync.Once
	cause    error         // of Fail
	gone     chan struct{} // closed at the end of run
}

func newOutgoing(m *Mover, to kevlard.NodeID, slot int, sock *socket, secure *tls.Conn) *outgoing {
	c := &outgoing{
		mover: m, to: to, slot: slot, socket: sock, secure: secure,
		queue:  newQueue(to, m.cfg.summed(), &m.blocks),
		broken: make(chan struct{}), gone: make(chan struct{}),
	}
	c.out = newOutput(sock, secure, m.cfg.summed(), m.chunk(), c.pace)
	return c
}

// Ready implements conns.Conn: the peer's welcome was all.
func (c *outgoing) Ready() error { return nil }

// Open implements conns.Conn.
func (c *outgoing) Open() bool { return c.queue.open() }

// End implements conns.Conn.
func (c *outgoing) End(err error) { c.queue.end(err) }

// Gone implements conns.Conn.
func (c *outgoing) Gone() <-chan struct{} { return c.gone }

// Broke implements conns.Conn. That a sender gave up is not the peer's fault.
func (c *outgoing) Broke() error {
	select {
	case <-c.broken:
		if !errors.Is(c.cause, errGivenUp) {
			return c.cause
		}
	default:
	}
	return nil
}

// Run sends until the connection ends.
func (c *outgoing) Run() {
	watched := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		defer close(watched)
		c.watch()
	})
	c.write()
	if c.finished.Load() {
		timer := time.NewTimer(conns.CloseGrace)
		select {
		case <-watched:
		case <-timer.C:
			c.Fail(errors.New("the peer did not close the connection in time"))
		}
		timer.Stop()
	}
	c.socket.reset()
	watching.Wait()
	c.abandon()
	select {
	case <-c.broken:
		c.mover.lost(c)
	default:
	}
	close(c.gone)
}

// write sends what is queued until the queue ends or something breaks.
func (c *outgoing) write() {
	idle := time.NewTimer(c.mover.cfg.Idle)
	defer idle.Stop()
	var items []*work
	var used uint64
	for {
		select {
		case <-c.queue.wake:
		case <-idle.C:
			now := c.queue.used()
			if now == used {
				c.queue.end(errIdle)
			}
			used = now
			idle.Reset(c.mover.cfg.Idle)
		case <-c.broken:
			return
		}
		var ended error
		items, ended = c.queue.take(items)
		if len(items) == 0 && ended == nil {
			continue
		}
		if err := c.batch(items); err != nil {
			c.Fail(err)
			return
		}
		clear(items)
		if len(items) == 0 { // after the end nothing comes in
			c.finished.Store(true)
			if err := c.out.finish(); err != nil {
				c.Fail(err)
			}
			return
		}
		c.queue.release()
	}
}

// direct sends one large piece in its sender's own goroutine.
func (c *outgoing) direct(ctx context.Context, w *work) error {
	stop := context.AfterFunc(ctx, func() { c.Fail(errGivenUp) })
	err := c.out.piece(w)
	if err == nil {
		err = c.flush()
	}
	if err != nil {
		c.Fail(err)
	}
	taken := !stop()
	c.queue.release()
	if taken {
		return c.givenUp(ctx)
	}
	return c.explain(err)
}

// await returns when the memory of a large piece is its sender's again.
func (c *outgoing) await(ctx context.Context, w *work) error {
	select {
	case err := <-w.done:
		return c.explain(err)
	case <-ctx.Done():
	}
	select {
	case err := <-w.done: // just in time
		return c.explain(err)
	default:
	}
	if !c.queue.drop(w) {
		c.Fail(errGivenUp)
		<-w.done
	}
	return c.givenUp(ctx)
}

// explain makes an error of the connection one of its sender's.
func (c *outgoing) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.broken:
		err = c.cause // err may be only what followed from it
	default:
	}
	return fmt.Errorf("send to %s: %w: %w", c.to, mover.ErrBroken, err)
}

// givenUp is the error of a sender whose context has ended.
func (c *outgoing) givenUp(ctx context.Context) error {
	return fmt.Errorf("send to %s: %w", c.to, context.Cause(ctx))
}

// flush ends a batch, and the connection when it has carried enough.
func (c *outgoing) flush() error {
	if c.carried > connBytes {
		c.queue.end(errIdle)
	}
	return c.out.flush()
}

// batch sends items. Each is answered for exactly once, whatever happens.
func (c *outgoing) batch(items []*work) error {
	var err error
	for _, w := range items {
		switch {
		case w.block != nil:
			if err == nil {
				err = c.out.block(w.block)
			}
			c.queue.recycle(w)
		case err != nil:
			w.done <- err
		case c.queue.begin(w):
			err = c.out.piece(w)
			w.done <- err
		}
	}
	if err != nil {
		return err
	}
	return c.flush()
}

// abandon answers for what will not be sent.
func (c *outgoing) abandon() {
	for _, w := range c.queue.drain() { // none, unless it is broken
		if w.block != nil {
			c.queue.recycle(w)
		} else {
			w.done <- c.cause
		}
	}
}

// pace waits until n more bytes may leave this node.
func (c *outgoing) pace(n int) error {
	c.carried += int64(n)
	wait := c.mover.cfg.Pacer.Take(n)
	if wait <= 0 {
		return nil
	}
	if err := c.out.flush(); err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.broken:
		return c.cause
	}
}

// watch learns of the connection's end; the peer sends nothing else.
func (c *outgoing) watch() {
	var b [1]byte
	var n int
	var err error
	if c.secure != nil {
		n, err = c.secure.Read(b[:])
	} else {
		n, err = c.socket.Read(b[:])
	}
	switch {
	case n > 0:
		c.Fail(errors.New("the peer sent bytes where none belong"))
	case !c.finished.Load() || err != io.EOF:
		c.Fail(fmt.Errorf("closed by the peer: %w", err))
	}
}

// Fail implements conns.Conn; the first cause stays.
func (c *outgoing) Fail(cause error) {
	c.failOnce.Do(func() {
		c.cause = cause
		c.queue.end(fmt.Errorf("send to %s: %w: %w", c.to, mover.ErrBroken, cause))
		close(c.broken)
		c.socket.reset()
	})
}
