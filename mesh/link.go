package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// link keeps one peer of the set connected. run owns its life:
//
//	           both connections admitted: Up
//	dialling ---------------------------------> connected <--+
//	   ^  ^                                      |       |   | the probe is answered: Up
//	   |  +--- broke, moved or removed: Down ----+       |   |
//	   |                                                 v   |
//	   |       broke                guests broke: Down   probing
//	   +-------------------------------------------------+
type link struct {
	mesh *Mesh
	wake chan struct{} // capacity 1: address changed, or the peer shows life

	mu      sync.Mutex
	addr    Address
	pair    *pair     // nil while not connected
	since   time.Time // of pair
	peer    Peer      // as last proved
	lastErr error
}

func newLink(m *Mesh, a Address) *link {
	return &link{mesh: m, addr: a, wake: make(chan struct{}, 1)}
}

func (l *link) address() Address {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// move gives the link another address; nothing happens if it is the same.
func (l *link) move(a Address) {
	l.mu.Lock()
	same := l.addr == a
	l.addr = a
	l.mu.Unlock()
	if !same {
		l.stir()
	}
}

// stir makes the link look at its address and, if it is waiting, dial at once.
func (l *link) stir() {
	select {
	case l.wake <- struct{}{}:
	default: // run has not yet looked
	}
}

// connected returns the pair to send on.
func (l *link) connected() (*pair, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pair == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotConnected, l.addr.Node)
	}
	return l.pair, nil
}

func (l *link) status() PeerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := PeerStatus{Peer: l.peer, Addr: l.addr.Addr, Connected: l.pair != nil}
	if l.pair != nil {
		s.RTT, s.Since = l.pair.control.session.RTT(), l.since
	}
	if s.Peer.ID != l.addr.ID {
		s.Peer = Peer{Node: l.addr.Node, ID: l.addr.ID, Boot: l.addr.Boot}
	}
	if l.lastErr != nil {
		s.LastError = l.lastErr.Error()
	}
	return s
}

// set publishes the pair, nil when it is lost, and the error of the last loss or
// dial, which a success leaves standing.
func (l *link) set(p *pair, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pair = p
	if p != nil {
		l.peer, l.since = p.peer, time.Now()
	}
	if err != nil {
		l.lastErr = err
	}
}

// run dials and holds until ctx ends.
func (l *link) run(ctx context.Context) {
	var wait backoff
	for ctx.Err() == nil {
		a := l.address()
		p, err := l.mesh.dialPair(ctx, a, l.mesh.dials.Add(1))
		if err != nil {
			l.set(nil, err)
			l.mesh.reportRefusal(string(a.Node), a.Addr, err)
			if ctx.Err() == nil {
				l.mesh.log.Debug("mesh dial failed", "node", a.Node, "addr", a.Addr, "err", err)
			}
			l.sleep(ctx, &wait)
			continue
		}
		since := time.Now()
		l.set(p, nil)
		l.mesh.log.Info("mesh peer up", "node", p.peer.Node, "peer", p.peer.ID, "boot", p.peer.Boot, "addr", a.Addr)
		l.mesh.cfg.Handler.Up(p.peer)
		err, told := l.hold(ctx, p)
		l.set(nil, err)
		leaving := errors.Is(err, ErrRemoved) || errors.Is(err, ErrMoved)
		l.mesh.ended.Go(func() { p.close(leaving) })
		if ctx.Err() == nil || leaving {
			l.mesh.log.Info("mesh peer down", "node", p.peer.Node, "peer", p.peer.ID, "boot", p.peer.Boot, "err", err)
			if !told {
				l.mesh.cfg.Handler.Down(p.peer, err)
			}
		}
		if leaving || time.Since(since) >= steadyAfter {
			wait = backoff{}
		} else {
			l.sleep(ctx, &wait) // a link that breaks as soon as it is up must not spin
		}
	}
}

// hold watches a connected pair and returns why it ended; told says that Down has
// been called and no Up since.
func (l *link) hold(ctx context.Context, p *pair) (err error, told bool) {
	probe := make(chan error, 1) // capacity 1: at most one probe runs, and hold may be gone by its end
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx), told
		case err := <-p.lost:
			return err, told
		case <-l.wake:
			if a := l.address(); !p.matches(a) {
				return fmt.Errorf("%w: now %s boot %s", ErrMoved, a.Addr, a.Boot), told
			}
		case err := <-p.replaced:
			return err, told
		case err := <-p.guestLost:
			if told {
				continue // the probe is on its way
			}
			told = true
			l.mesh.log.Info("mesh peer's own connections broke", "node", p.peer.Node, "peer", p.peer.ID, "err", err)
			l.mesh.cfg.Handler.Down(p.peer, err)
			p.ended.Go(func() { probe <- p.ping() })
		case err := <-probe:
			if err != nil {
				return fmt.Errorf("probe after the peer's connections broke: %w", err), told
			}
			told = false
			l.mesh.cfg.Handler.Up(p.peer)
		}
	}
}

// sleep waits for the next dial, or less if the link is stirred.
func (l *link) sleep(ctx context.Context, wait *backoff) {
	timer := time.NewTimer(wait.next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-l.wake:
		*wait = backoff{}
	}
}

// backoff is the next wait between dials; zero starts at backoffMin.
type backoff struct{ wait time.Duration }

func (b *backoff) next() time.Duration {
	b.wait = min(max(2*b.wait, backoffMin), backoffMax)
	return b.wait*4/5 + rand.N(b.wait*2/5)
}
