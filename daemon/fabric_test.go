package daemon_test

import (
	"bytes"
	"context"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// fabric moves KV between the daemons of a test, in memory. It is a mover.Mover for
// each of them.
type fabric struct {
	mu      sync.Mutex
	members map[kevlard.NodeID]*port
	// meddle changes a piece on its way, or has it lost (false). nil: nothing happens.
	meddle func(from, to kevlard.NodeID, header, body []byte) bool
}

// port is one daemon's end of a fabric.
type port struct {
	fabric  *fabric
	self    kevlard.NodeID
	handler mover.Handler
	lanes   [4]sync.Mutex // pieces of one lane arrive one at a time

	mu     sync.RWMutex // held for reading while a piece is handed over
	closed bool
}

func newFabric() *fabric { return &fabric{members: map[kevlard.NodeID]*port{}} }

// join returns what Deps.Mover of a daemon is.
func (f *fabric) join(self kevlard.NodeID) func(mover.Handler) (mover.Mover, string, error) {
	return func(h mover.Handler) (mover.Mover, string, error) {
		p := &port{fabric: f, self: self, handler: h}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.members[self] = p
		return p, "", nil
	}
}

func (f *fabric) setMeddle(m func(from, to kevlard.NodeID, header, body []byte) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meddle = m
}

// Send implements mover.Mover.
func (p *port) Send(_ context.Context, to kevlard.NodeID, lane mover.Lane, header []byte, body ...[]byte) error {
	p.fabric.mu.Lock()
	peer, meddle, open := p.fabric.members[to], p.fabric.meddle, p.fabric.members[p.self] == p
	p.fabric.mu.Unlock()
	if !open {
		return mover.ErrClosed
	}
	if peer == nil {
		return mover.ErrUnknownPeer
	}
	piece := bytes.Join(body, nil)
	if meddle != nil && !meddle(p.self, to, header, piece) {
		return nil
	}
	return peer.take(p.self, lane, header, piece)
}

func (p *port) take(from kevlard.NodeID, lane mover.Lane, header, body []byte) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return mover.ErrUnreachable
	}
	order := &p.lanes[lane%mover.Lane(len(p.lanes))]
	order.Lock()
	defer order.Unlock()
	if buf := p.handler.Buffer(from, header, len(body)); buf != nil {
		copy(buf, body)
		p.handler.Received(from, header, buf)
	}
	return nil
}

// Stats implements mover.Mover.
func (p *port) Stats() mover.Stats { return mover.Stats{} }

// Close implements mover.Mover.
func (p *port) Close() error {
	p.fabric.mu.Lock()
	if p.fabric.members[p.self] == p {
		delete(p.fabric.members, p.self)
	}
	p.fabric.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}
