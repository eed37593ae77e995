package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
)

// tlsHandshake is the first byte of a TLS connection.
const tlsHandshake = 0x16

// accept takes connections until Close.
func (m *Mover) accept() {
	for {
		c, err := m.listener.AcceptTCP()
		if m.conns.Life().Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			// Out of descriptors, most likely: those in use will be given back.
			m.cfg.Log.Warn("cannot accept bulk connections", "addr", m.Addr(), "err", err)
			select {
			case <-m.conns.Life().Done():
			case <-time.After(conns.BackoffMin):
			}
			continue
		}
		if !m.enter(c) {
			c.Close()
		}
	}
}

// enter gives a new connection one of maxStrangers places.
func (m *Mover) enter(c *net.TCPConn) bool {
	if m.strangers.Add(1) <= maxStrangers && m.conns.Spawn(func() { m.serve(c) }) {
		return true
	}
	m.strangers.Add(-1)
	return false
}

// serve does the acceptor's part of a connection's life.
func (m *Mover) serve(c *net.TCPConn) {
	s := newSocket(c, m.cfg.Stall)
	defer s.reset()
	g, err := m.handshake(s)
	m.strangers.Add(-1)
	if err != nil {
		if m.conns.Life().Err() == nil {
			m.cfg.Log.Warn("bulk connection refused", "addr", c.RemoteAddr(), "err", err)
		}
		return
	}
	m.cfg.Log.Debug("bulk connection accepted", "peer", g.Node, "slot", g.Slot, "addr", c.RemoteAddr())
	in := newInput(g.stream, readBuffer)
	in.from, in.summed, in.handler, in.counts = g.Node, m.cfg.summed(), m.cfg.Handler, &m.counts
	in.busy = func(b bool) { s.busy = b }
	err = in.run()
	if err == nil {
		s.Close() // in peace: the dialler learns that all was handed on
	} else if m.conns.Life().Err() == nil {
		m.cfg.Log.Debug("bulk connection from a peer broke", "peer", g.Node, "slot", g.Slot, "err", err)
	}
	m.conns.Depart(&g.Guest)
}

// handshake returns a guest that has been welcomed and registered.
func (m *Mover) handshake(s *socket) (g *guest, err error) {
	ctx, cancel := context.WithTimeoutCause(m.conns.Life(), conns.HandshakeTimeout, fmt.Errorf("no complete greeting within %v", conns.HandshakeTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, s.reset)
	defer func() {
		if !stop() {
			err = errors.Join(context.Cause(ctx), err)
			if g != nil {
				m.conns.Depart(&g.Guest)
			}
		}
	}()
	if err := setOptions(s.TCPConn, m.cfg.Stall); err != nil {
		return nil, err
	}
	stream, id, err := m.secured(ctx, s)
	if err != nil {
		return nil, err
	}
	g, err = m.admit(ctx, s, stream, id)
	if err != nil {
		stream.Write(refusal(err.Error())) // the peer may be gone: the error is told here anyway
		return nil, err
	}
	if _, err := stream.Write(greeting{version, kindWelcome, nil}.encode()); err != nil {
		m.conns.Depart(&g.Guest)
		return nil, err
	}
	return g, nil
}

// secured returns the stream on s and the peer ID that it proves, "" in plain mode.
func (m *Mover) secured(ctx context.Context, s *socket) (io.ReadWriter, string, error) {
	first, err := s.peek()
	if err != nil {
		return nil, "", err
	}
	if m.cfg.Plain {
		if first == tlsHandshake {
			return nil, "", errors.New("the peer speaks TLS, this node plain TCP: set mesh.plain alike on both")
		}
		return s, "", nil
	}
	if first != tlsHandshake {
		err := errors.New("the peer speaks plain TCP, this node TLS: set mesh.plain alike on both")
		s.Write(refusal(err.Error()))
		return nil, "", err
	}
	conf, proved := m.identity.server()
	secure := tls.Server(s, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, "", fmt.Errorf("TLS: %w", err)
	}
	id, err := proved()
	return secure, id, err
}

// admit reads the opening, decides whether the peer may come in, and registers it.
func (m *Mover) admit(ctx context.Context, s *socket, stream io.ReadWriter, id string) (*guest, error) {
	first, err := readGreeting(stream)
	if err != nil {
		return nil, err
	}
	fields, err := first.expect(kindOpen)
	if err != nil {
		return nil, err
	}
	o, err := decodeOpening(fields)
	if err != nil {
		return nil, err
	}
	if o.to != m.cfg.Self {
		return nil, fmt.Errorf("this is node %q, not %q", m.cfg.Self, o.to)
	}
	if want := m.cfg.transport(); o.transport != want {
		return nil, fmt.Errorf("the peer uses transport %d (1 TLS, 2 plain, 3 plain without checksums), this node %d", o.transport, want)
	}
	if m.cfg.Plain {
		err = m.challenge(ctx, stream, o.from, first.encode())
	} else {
		err = m.known(o.from, id)
	}
	if err != nil {
		return nil, err
	}
	g := &guest{socket: s, stream: stream}
	g.Guest = conns.Guest{Node: o.from, Slot: o.slot, Number: o.number, Incarnation: o.incarnation, End: func(error) { s.reset() }}
	return g, m.conns.Register(ctx, &g.Guest)
}

// known checks the name that goes with a proved peer ID.
func (m *Mover) known(from kevlard.NodeID, id string) error {
	node, ok := m.cfg.Admitted(id)
	if !ok {
		return fmt.Errorf("peer %s is not admitted to the mesh of %s (yet)", id, m.cfg.Self)
	}
	if node != from {
		return fmt.Errorf("peer %s is node %q in the mesh, not %q", id, node, from)
	}
	return nil
}

// challenge proves this node's half of the secret and checks the dialler's.
func (m *Mover) challenge(ctx context.Context, stream io.ReadWriter, from kevlard.NodeID, open []byte) error {
	secret, err := m.secret(ctx, from)
	if err != nil {
		return err
	}
	nonce := newNonce()
	fields := append(nonce[:], ticket(secret, "acceptor", open, nonce[:])...)
	if _, err := stream.Write(greeting{version, kindChallenge, fields}.encode()); err != nil {
		return err
	}
	g, err := readGreeting(stream)
	if err != nil {
		return err
	}
	proof, err := g.expect(kindProof)
	if err != nil {
		return err
	}
	if !hmac.Equal(proof, ticket(secret, "dialler", open, nonce[:])) {
		return fmt.Errorf("the ticket of %q is not of the secret that it shares with %s", from, m.cfg.Self)
	}
	return nil
}
