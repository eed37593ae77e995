package api

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
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

// delivery is what the kernel says of what was written to a connection.
type delivery struct {
	waiting int           // bytes that the other side has not acknowledged
	acked   uint64        // bytes that it has, since the connection began
	trip    time.Duration // within which acknowledgements come: the round trip and its variation
}

// pulse is what is known of a client from its acknowledgements. A long way makes them
// late, and loss later, but as long as they come there is somebody. The zero value knows
// nothing.
type pulse struct {
	mu    sync.Mutex
	known bool
	acked uint64
	since time.Time // when bytes waited and acked was this for the first time
}

// begin notes where acknowledgements stand before a sign of life is waited for.
func (p *pulse) begin(now time.Time, d delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known || d.acked != p.acked {
		p.known, p.acked, p.since = true, d.acked, now
	}
}

// look reports whether the client has shown since then that it is there, or must be taken
// for gone. Neither: nobody can know yet.
func (p *pulse) look(now time.Time, d delivery) (there, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case d.waiting == 0:
		p.known = false
		return true, false
	case !p.known || d.acked != p.acked:
		p.known, p.acked, p.since = true, d.acked, now
		return true, false
	}
	return false, now.Sub(p.since) >= min(max(aliveWithin, 3*d.trip), aliveMost)
}

// alive finds out whether the client still takes what it is sent. A connection whose
// other side is gone without a word, as after a change of networks, looks open for many
// minutes; but what is written to it stays unacknowledged. Who is so far away that nothing
// can be known yet counts as there.
func (s *sse) alive(ctx context.Context) bool {
	conn, ok := ctx.Value(connContext{}).(net.Conn)
	if !ok {
		return true
	}
	if d, ok := deliveryOf(conn); ok {
		s.pulse.begin(time.Now(), d)
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
	limit := time.After(aliveAsk)
	for {
		d, ok := deliveryOf(conn)
		if !ok {
			return ctx.Err() == nil
		}
		if there, gone := s.pulse.look(time.Now(), d); there || gone {
			return there && ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-limit:
			return true
		case <-time.After(aliveEvery):
		}
	}
}
