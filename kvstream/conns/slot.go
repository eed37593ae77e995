package conns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// slot is the place of one connection to a peer.
type slot[C Conn] struct {
	set   *Set[C]
	to    kevlard.NodeID
	index int

	mu      sync.Mutex
	current C             // zero: none; until it is gone, it may be ending
	made    time.Time     // current
	dialled chan struct{} // closed when the dial under way has ended; nil: none is
	lastErr error         // of the last dial or connection
	next    time.Time     // no dial before
	wait    backoff
	removed error // the slot is used no more
}

// get returns a connection that takes pieces, dialling if there is none.
func (s *slot[C]) get(ctx context.Context) (C, error) {
	for {
		c, wait, err := s.look()
		if wait == nil {
			return c, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return c, fmt.Errorf("send to %s: connecting: %w", s.to, context.Cause(ctx))
		}
	}
}

// look returns a connection, or what to wait for before looking again, or why there
// is none.
func (s *slot[C]) look() (c C, wait <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none C
	if s.removed != nil {
		return none, nil, s.removed
	}
	if c := s.current; c != none {
		if c.Open() {
			return c, nil, nil
		}
		select {
		case <-c.Gone(): // just now
			s.leftLocked()
		default:
			return none, c.Gone(), nil
		}
	}
	if s.dialled != nil {
		return none, s.dialled, nil
	}
	if left := time.Until(s.next); left > 0 {
		return none, nil, fmt.Errorf("send to %s: %w: %w (next dial in %v; another route or a later try may do)", s.to, mover.ErrUnreachable, s.lastErr, left.Round(time.Millisecond))
	}
	dialled := make(chan struct{})
	s.dialled = dialled
	started := s.set.Spawn(func() {
		defer close(dialled)
		s.dial()
	})
	if !started {
		s.dialled = nil
		return none, nil, fmt.Errorf("send to %s: %w", s.to, mover.ErrClosed)
	}
	return none, dialled, nil
}

// dial makes one attempt.
func (s *slot[C]) dial() {
	c, err := s.set.cfg.Dial(s.to, s.index)
	if err == nil {
		err = s.run(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialled = nil
	if err != nil {
		s.lastErr, s.next = err, time.Now().Add(s.wait.next())
		s.set.cfg.Log.Debug("bulk dial failed", "transport", s.set.cfg.Name, "peer", s.to, "slot", s.index, "err", err)
		return
	}
	s.set.cfg.Counts.Dials.Add(1)
	s.set.cfg.Log.Debug("bulk connection made", "transport", s.set.cfg.Name, "peer", s.to, "slot", s.index)
	if s.removed != nil {
		c.End(s.removed)
	}
	s.current, s.made = c, time.Now()
	select {
	case <-c.Gone(): // already
		s.leftLocked()
	default:
	}
}

// run starts a connection, and waits until it is ready.
func (s *slot[C]) run(c C) error {
	started := s.set.Spawn(func() {
		c.Run()
		s.left(c)
	})
	if !started {
		c.Fail(mover.ErrClosed)
		c.Run()
		return mover.ErrClosed
	}
	err := c.Ready()
	if err != nil {
		c.Fail(err)
		<-c.Gone()
	}
	return err
}

// left notes that a connection has ended.
func (s *slot[C]) left(c C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.leftLocked()
	}
}

func (s *slot[C]) leftLocked() {
	var none C
	err := s.current.Broke()
	s.current = none
	s.wait.reset(time.Since(s.made) >= steadyAfter)
	if err != nil {
		s.lastErr, s.next = err, time.Now().Add(s.wait.next())
	}
}

// endAll closes slots for good, and returns the connections that they have.
func endAll[C Conn](slots []*slot[C], err error) (left []C) {
	var none C
	for _, s := range slots {
		s.mu.Lock()
		s.removed = err
		if s.current != none {
			s.current.End(err)
			left = append(left, s.current)
		}
		s.mu.Unlock()
	}
	return left
}

// backoff is the next wait between dials; zero starts at BackoffMin.
type backoff struct{ wait time.Duration }

func (b *backoff) next() time.Duration {
	b.wait = min(max(2*b.wait, BackoffMin), backoffMax)
	return b.wait*4/5 + rand.N(b.wait*2/5)
}

func (b *backoff) reset(steady bool) {
	if steady {
		b.wait = 0
	}
}
