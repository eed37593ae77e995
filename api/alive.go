package api

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// connContext is the key of a request's connection in its context.
type connContext struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connContext{}, c)
}

// alive finds out whether the client still takes what it is sent. A connection whose
// other side is gone without a word, as after a change of networks, looks open for many
// minutes; but what is written to it stays unacknowledged.
func (s *sse) alive(ctx context.Context) bool {
	conn, ok := ctx.Value(connContext{}).(net.Conn)
	if !ok {
		return true
	}
	if s.mu.TryLock() { // else a write is under way, which will do
		if !s.ended {
			s.write([]byte(": still there?\n\n"))
		}
		broken := s.err != nil
		s.mu.Unlock()
		if broken {
			return false
		}
	}
	limit := time.After(aliveWithin)
	for unacknowledged(conn) > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-limit:
			return false
		case <-time.After(aliveEvery):
		}
	}
	return ctx.Err() == nil
}
