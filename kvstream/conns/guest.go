package conns

import (
	"context"
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
)

// Guest is what there is to know of an accepted connection.
type Guest struct {
	Node kevlard.NodeID // that dialled
	Slot uint8          // there
	// Number grows with each dial of a mover, which is told from others by Incarnation.
	Number      uint64
	Incarnation [16]byte
	// End breaks the connection; what it is taking is handed on first.
	End func(err error)
	// Bye ends it because this node stops. nil: End does.
	Bye func(err error)

	gone chan struct{} // closed when it is no longer registered
}

type guestKey struct {
	node kevlard.NodeID
	slot uint8
}

func (g *Guest) key() guestKey { return guestKey{g.Node, g.Slot} }

func (g *Guest) bye(err error) {
	if g.Bye == nil {
		g.End(err)
		return
	}
	g.Bye(err)
}

// Register makes g the connection of its slot. The one before ends first: its pieces are
// older.
func (s *Set[C]) Register(ctx context.Context, g *Guest) error {
	g.gone = make(chan struct{})
	for {
		old, err := s.place(g)
		if old == nil || err != nil {
			return err
		}
		old.End(errors.New("the peer made a new connection"))
		select {
		case <-old.gone:
		case <-ctx.Done():
			return errors.New("the connection before is still being read: its handler is slow")
		}
	}
}

// place registers g, unless there is one that must end first, or g may not come in.
func (s *Set[C]) place(g *Guest) (old *Guest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.guests[g.key()]
	switch {
	case s.closed:
		return nil, errors.New("this node is stopping")
	case old == nil && len(s.guests) >= s.cfg.MaxGuests:
		return nil, fmt.Errorf("too many connections (%d)", s.cfg.MaxGuests)
	case old == nil:
		s.guests[g.key()] = g
	case old.Incarnation == g.Incarnation && g.Number <= old.Number:
		return nil, fmt.Errorf("connection %d came after connection %d of the same slot", g.Number, old.Number)
	}
	return old, nil
}

// Depart ends g's registration: all that it took was handed on.
func (s *Set[C]) Depart(g *Guest) {
	s.mu.Lock()
	delete(s.guests, g.key())
	s.mu.Unlock()
	close(g.gone)
}

// all returns the guests.
func (s *Set[C]) all() (out []*Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.guests {
		out = append(out, g)
	}
	return out
}
