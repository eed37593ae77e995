package tcp

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
	wait    backoff
	removed error // the slot is used no more
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
		if c.queue.open() {
			return c, nil, nil
		}
		return nil, c.gone, nil
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
	sock, secure, err := s.mover.dial(s.to, s.index)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialled = nil
	if err == nil && s.removed != nil {
		sock.reset()
		err = s.removed
	}
	if err != nil {
		s.lastErr, s.next = err, time.Now().Add(s.wait.next())
		s.mover.cfg.Log.Debug("bulk dial failed", "peer", s.to, "slot", s.index, "err", err)
		return
	}
	c := newOutgoing(s.mover, s, sock, secure)
	if !s.mover.spawn(c.run) {
		sock.reset()
		return
	}
	s.mover.counts.dials.Add(1)
	s.mover.cfg.Log.Debug("bulk connection made", "peer", s.to, "slot", s.index, "addr", sock.RemoteAddr())
	s.current = c
}

// left is called when a connection has ended.
func (s *slot) left(c *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
	s.wait.reset(time.Since(c.made) >= steadyAfter)
	select {
	case <-c.broken:
		if s.lastErr = c.cause; !errors.Is(c.cause, errGivenUp) {
			s.next = time.Now().Add(s.wait.next())
		}
	default:
	}
}

// end closes the slot for good: what is queued is sent within the grace.
func (s *slot) end(err error) *outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = err
	if s.current != nil {
		s.current.queue.end(err)
	}
	return s.current
}

// backoff is the next wait between dials; zero starts at backoffMin.
type backoff struct{ wait time.Duration }

func (b *backoff) next() time.Duration {
	b.wait = min(max(2*b.wait, backoffMin), backoffMax)
	return b.wait*4/5 + rand.N(b.wait*2/5)
}

func (b *backoff) reset(steady bool) {
	if steady {
		b.wait = 0
	}
}
