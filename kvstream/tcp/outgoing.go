package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

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
	slot   *slot
	queue  *queue
	socket *socket
	secure *tls.Conn // nil: plain
	out    *output
	made   time.Time

	carried int64 // bytes, of the writer

	finished atomic.Bool   // this direction is closed
	broken   chan struct{} // closed by fail
	failOnce sync.Once
	cause    error         // of fail
	gone     chan struct{} // closed at the end of run
}

func newOutgoing(m *Mover, s *slot, sock *socket, secure *tls.Conn) *outgoing {
	c := &outgoing{
		mover: m, slot: s, socket: sock, secure: secure, made: time.Now(),
		queue:  newQueue(s.to, m.cfg.Plain, &m.blocks),
		broken: make(chan struct{}), gone: make(chan struct{}),
	}
	c.out = newOutput(sock, secure, m.chunk(), c.pace)
	return c
}

// run sends until the connection ends.
func (c *outgoing) run() {
	watched := make(chan struct{})
	c.mover.work.Go(func() {
		defer close(watched)
		c.watch()
	})
	c.write()
	if c.finished.Load() {
		timer := time.NewTimer(closeGrace)
		select {
		case <-watched:
		case <-timer.C:
			c.fail(errors.New("the peer did not close the connection in time"))
		}
		timer.Stop()
	}
	c.socket.reset()
	<-watched
	c.abandon()
	select {
	case <-c.broken:
		c.mover.lost(c)
	default:
	}
	c.slot.left(c)
	close(c.gone)
}

// write sends what is queued until the queue ends or something breaks.
func (c *outgoing) write() {
	idle := time.NewTimer(c.mover.cfg.Idle)
	defer idle.Stop()
	var items []*work
	for {
		select {
		case <-c.queue.wake:
		case <-idle.C:
			c.queue.end(errIdle)
		case <-c.broken:
			return
		}
		var ended error
		items, ended = c.queue.take(items)
		if err := c.batch(items); err != nil {
			c.fail(err)
			return
		}
		clear(items)
		switch {
		case ended == nil:
			idle.Reset(c.mover.cfg.Idle)
			if c.carried > connBytes {
				c.queue.end(errIdle)
			}
		case len(items) == 0:
			c.finished.Store(true)
			if err := c.out.finish(); err != nil {
				c.fail(err)
			}
			return
		default:
			c.queue.stir() // look once more, then finish
		}
	}
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
			c.queue.release(w)
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
	return c.out.flush()
}

// abandon answers for what will not be sent.
func (c *outgoing) abandon() {
	items, err := c.queue.take(nil)
	select {
	case <-c.broken:
		err = c.cause
	default:
	}
	for _, w := range items {
		if w.block != nil {
			c.queue.release(w)
		} else {
			w.done <- err
		}
	}
}

// pace waits until n more bytes may leave this node.
func (c *outgoing) pace(n int) error {
	c.carried += int64(n)
	wait := c.mover.take(n)
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
		c.fail(errors.New("the peer sent bytes where none belong"))
	case !c.finished.Load() || err != io.EOF:
		c.fail(fmt.Errorf("closed by the peer: %w", err))
	}
}

// fail breaks the connection; the first cause stays.
func (c *outgoing) fail(cause error) {
	c.failOnce.Do(func() {
		c.cause = cause
		c.queue.end(fmt.Errorf("send to %s: %w: %w", c.slot.to, mover.ErrBroken, cause))
		close(c.broken)
		c.socket.reset()
	})
}
