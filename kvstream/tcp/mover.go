package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Mover is a mover.Mover over TCP.
type Mover struct {
	cfg         Config
	identity    *identity // nil when plain
	listener    *net.TCPListener
	incarnation [16]byte
	blocks      sync.Pool // *[]byte, blockBytes of capacity
	conns       *conns.Set[*outgoing]
	counts      conns.Counts
	attempts    atomic.Uint64 // greetings sent: the numbers of connections
	strangers   atomic.Int64  // accepted and not yet welcome
}

var _ mover.Mover = (*Mover)(nil)

// errGivenUp breaks a connection whose sender took a piece back in the middle.
var errGivenUp = errors.New("a sender gave up in the middle of a piece")

// New listens and returns a mover that works until Close.
func New(cfg Config) (*Mover, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Mover{cfg: cfg}
	m.blocks.New = func() any {
		b := make([]byte, 0, blockBytes)
		return &b
	}
	rand.Read(m.incarnation[:]) // crypto/rand ends the process if it cannot
	if !cfg.Plain {
		var err error
		if m.identity, err = newIdentity(cfg.Key); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for bulk transfers: %w: free the port, or set another mesh.bulk_port", err)
	}
	m.listener = l.(*net.TCPListener)
	m.conns = conns.New(conns.Config[*outgoing]{
		Options: cfg.Options, Name: "tcp", Dial: m.dial, MaxGuests: maxGuests, Counts: &m.counts,
		Known: func(to kevlard.NodeID) bool { _, ok := cfg.Resolve(to); return ok },
	})
	m.conns.Spawn(m.accept)
	return m, nil
}

// Addr returns where the mover listens, as host:port.
func (m *Mover) Addr() string { return m.listener.Addr().String() }

// Stats implements mover.Mover.
func (m *Mover) Stats() mover.Stats { return m.counts.Stats() }

// Send implements mover.Mover.
func (m *Mover) Send(ctx context.Context, to kevlard.NodeID, lane mover.Lane, header []byte, body ...[]byte) error {
	size, err := mover.Size(header, body)
	if err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send to %s: %w", to, context.Cause(ctx))
	}
	for {
		c, err := m.conns.Get(ctx, to, lane)
		if err != nil {
			return err
		}
		w, now, err := c.queue.put(ctx, header, body, size)
		switch {
		case now:
			err = c.direct(ctx, w)
		case w != nil:
			err = c.await(ctx, w)
		}
		if errors.Is(err, errIdle) {
			continue // it ended just now, with nothing of ours in it
		}
		if err == nil {
			m.counts.Sent.Add(1)
			m.counts.SentBytes.Add(uint64(len(header) + size))
		}
		return err
	}
}

// Forget ends all connections to and from a peer, because it left or is no longer
// admitted. A later Send dials anew.
func (m *Mover) Forget(node kevlard.NodeID) {
	for _, c := range m.conns.Forget(node) {
		c.Fail(errors.New("the peer was removed"))
	}
}

// Close implements mover.Mover.
func (m *Mover) Close() error {
	return m.conns.Close(func() error {
		if err := m.listener.Close(); err != nil {
			return fmt.Errorf("close bulk listener %s: %w", m.Addr(), err)
		}
		return nil
	}, func() error { return nil })
}

// chunk is the most bytes of a piece in one write. Without a cap and without a second look at
// the bytes nothing is gained by more than one.
func (m *Mover) chunk() int {
	if m.cfg.Pacer == nil && m.cfg.transport() == transportUnsummed {
		return mover.MaxBody
	}
	return m.cfg.Pacer.Chunk(chunkBytes)
}

// lost counts a broken connection and tells the handler.
func (m *Mover) lost(c *outgoing) {
	m.cfg.Log.Debug("bulk connection broke", "peer", c.to, "slot", c.slot, "err", c.cause)
	if m.conns.Lost() {
		m.cfg.Handler.Lost(c.to, c.cause)
	}
}
