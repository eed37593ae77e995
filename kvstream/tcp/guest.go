package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kevlard/kevlard"
)

// guest is an accepted connection that was welcomed.
type guest struct {
	key         guestKey
	number      uint64
	incarnation [16]byte
	socket      *socket
	stream      io.ReadWriter
	done        chan struct{} // closed when its reader has ended
}

// guestKey names what there is one connection of.
type guestKey struct {
	node kevlard.NodeID
	slot uint8
}

// register makes g the connection of its key. The reader of the one before ends first:
// its pieces are older.
func (m *Mover) register(ctx context.Context, g *guest) (*guest, error) {
	for {
		m.mu.Lock()
		old := m.guests[g.key]
		switch {
		case m.closed:
			m.mu.Unlock()
			return nil, errors.New("this node is stopping")
		case old == nil && len(m.guests) >= maxGuests:
			m.mu.Unlock()
			return nil, fmt.Errorf("too many connections (%d)", maxGuests)
		case old == nil:
			m.guests[g.key] = g
			m.mu.Unlock()
			return g, nil
		}
		m.mu.Unlock()
		if old.incarnation == g.incarnation && g.number <= old.number {
			return nil, fmt.Errorf("connection %d came after connection %d of the same slot", g.number, old.number)
		}
		old.socket.reset()
		select {
		case <-old.done:
		case <-ctx.Done():
			return nil, errors.New("the connection before is still being read: its handler is slow")
		}
	}
}

// depart ends g's registration.
func (m *Mover) depart(g *guest) {
	m.mu.Lock()
	delete(m.guests, g.key)
	m.mu.Unlock()
	close(g.done)
}
