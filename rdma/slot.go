package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// slot is the place of one connection to a peer.
type slot struct {
	mover *Mover
	to    kevlard.NodeID
	index int

	mu      sync.Mutex
	current *outgoing     // until it is gone; it may be ending
	dialled chan struct{} // closed when the dial under way has ended; nil: none is
	lastErr error         // of the last dial or connection
	next    time.Time     // no dial before
	wait    time.Duration // before the dial after the next failure
	removed error         // the slot is used no more
}

// get returns a connection that takes pieces, dialling if there is none.
func (s *slot) get(ctx context.Context) (*outgoing, error) {
	for {
		c, wait, err := s.look()
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("send to %s: connecting: %w", s.to, context.Cause(ctx))
		}
	}
}

// look returns a connection, or what to wait for before looking again, or why there
// is none.
func (s *slot) look() (*outgoing, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed != nil {
		return nil, nil, s.removed
	}
	if c := s.current; c != nil {
		if c.open() {
			return c, nil, nil
		}
		select {
		case <-c.gone:
			s.leftLocked(c)
		default:
			return nil, c.gone, nil
		}
	}
	if s.dialled != nil {
		return nil, s.dialled, nil
	}
	if left := time.Until(s.next); left > 0 {
		return nil, nil, fmt.Errorf("send to %s: %w: %w (next dial in %v; another route or a later try may do)", s.to, mover.ErrUnreachable, s.lastErr, left.Round(time.Millisecond))
	}
	dialled := make(chan struct{})
	s.dialled = dialled
	started := s.mover.spawn(func() {
		defer close(dialled)
		s.dial()
	})
	if !started {
		s.dialled = nil
		return nil, nil, fmt.Errorf("send to %s: %w", s.to, mover.ErrClosed)
	}
	return nil, dialled, nil
}

// dial makes one attempt.
func (s *slot) dial() {
	c, err := s.mover.dial(s)
	if err == nil {
		if !s.mover.spawn(c.run) {
			c.fail(mover.ErrClosed)
			c.run()
			err = mover.ErrClosed
		} else if err = c.greeted(s.mover.life); err != nil {
			c.fail(err)
			<-c.gone
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialled = nil
	if err != nil {
		s.lastErr, s.next = err, time.Now().Add(s.backoffLocked())
		s.mover.cfg.Log.Debug("RDMA dial failed", "peer", s.to, "slot", s.index, "err", err)
		return
	}
	s.mover.counts.dials.Add(1)
	s.mover.cfg.Log.Debug("RDMA connection made", "peer", s.to, "slot", s.index, "device", c.device.Name())
	if s.removed != nil {
		c.end(s.removed)
	}
	select {
	case <-c.gone: // already
		s.leftLocked(c)
	default:
		s.current = c
	}
}

// left is called when a connection has ended.
func (s *slot) left(c *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.leftLocked(c)
	}
}

func (s *slot) leftLocked(c *outgoing) {
	s.current = nil
	if time.Since(c.made) >= steadyAfter {
		s.wait = 0
	}
	if err := c.cause(); err != nil {
		s.lastErr, s.next = err, time.Now().Add(s.backoffLocked())
	}
}

func (s *slot) backoffLocked() time.Duration {
	s.wait = min(max(2*s.wait, backoffMin), backoffMax)
	return s.wait*4/5 + rand.N(s.wait*2/5)
}

// end closes the slot for good: what was accepted is sent within the grace.
func (s *slot) end(err error) *outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = err
	if s.current != nil {
		s.current.end(err)
	}
	return s.current
}

// errIdle ends a connection that nobody needs; a Send that meets it takes the next.
var errIdle = errors.New("connection is idle")
