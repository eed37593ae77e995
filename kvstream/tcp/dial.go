package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
)

// dial makes a connection that the peer has welcomed.
func (m *Mover) dial(to kevlard.NodeID, slot int) (_ *outgoing, err error) {
	p, ok := m.cfg.Resolve(to)
	if !ok {
		return nil, fmt.Errorf("node %s has no bulk address any more", to)
	}
	ctx, cancel := context.WithTimeoutCause(m.conns.Life(), conns.HandshakeTimeout, fmt.Errorf("no welcome within %v", conns.HandshakeTimeout))
	defer cancel()
	defer func() {
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = fmt.Errorf("dial %s at %s: %w", to, p.Addr, err)
	}()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", p.Addr)
	if err != nil {
		return nil, err
	}
	s := newSocket(raw.(*net.TCPConn), m.cfg.Stall)
	stop := context.AfterFunc(ctx, s.reset)
	secure, err := m.greet(ctx, s, p, to, slot)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.reset()
		return nil, err
	}
	return newOutgoing(m, to, slot, s, secure), nil
}

// greet does the dialler's part of the handshake. secure is nil in plain mode.
func (m *Mover) greet(ctx context.Context, s *socket, p Peer, to kevlard.NodeID, slot int) (secure *tls.Conn, err error) {
	if err := setOptions(s.TCPConn, m.cfg.Stall); err != nil {
		return nil, err
	}
	o := opening{transport: m.cfg.transport(), slot: uint8(slot), number: m.attempts.Add(1), incarnation: m.incarnation, nonce: newNonce(), from: m.cfg.Self, to: to}
	var stream io.ReadWriter = s
	if !m.cfg.Plain {
		conf, err := m.identity.client(p.ID)
		if err != nil {
			return nil, err
		}
		secure = tls.Client(s, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS: %w (does the peer have mesh.plain = true, this node false?)", err)
		}
		stream = secure
	}
	open := o.encode()
	if _, err := stream.Write(open); err != nil {
		return nil, err
	}
	if m.cfg.Plain {
		if err := m.prove(ctx, stream, to, open); err != nil {
			return nil, err
		}
	}
	g, err := readGreeting(stream)
	if err != nil {
		return nil, err
	}
	_, err = g.expect(kindWelcome)
	return secure, err
}

// prove checks the acceptor's ticket and shows this node's.
func (m *Mover) prove(ctx context.Context, stream io.ReadWriter, to kevlard.NodeID, open []byte) error {
	g, err := readGreeting(stream)
	if err != nil {
		return err
	}
	fields, err := g.expect(kindChallenge)
	if err != nil {
		return err
	}
	if len(fields) != nonceLen+macLen {
		return fmt.Errorf("challenge of %d bytes, want %d", len(fields), nonceLen+macLen)
	}
	secret, err := m.secret(ctx, to)
	if err != nil {
		return err
	}
	challenge, mac := fields[:nonceLen], fields[nonceLen:]
	if !hmac.Equal(mac, ticket(secret, "acceptor", open, challenge)) {
		return errors.New("the peer's ticket is not of this pair's secret")
	}
	_, err = stream.Write(greeting{version, kindProof, ticket(secret, "dialler", open, challenge)}.encode())
	return err
}

// secret returns the key of a plain connection.
func (m *Mover) secret(ctx context.Context, node kevlard.NodeID) ([]byte, error) {
	secret, err := m.cfg.Secret(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("secret shared with %s: %w", node, err)
	}
	if len(secret) < minSecret {
		return nil, fmt.Errorf("secret shared with %s has %d bytes: want at least %d", node, len(secret), minSecret)
	}
	return secret, nil
}
