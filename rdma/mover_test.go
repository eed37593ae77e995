package rdma

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/mover/movertest"
)

// testNet is a few movers on a fabric in memory.
type testNet struct {
	t      *testing.T
	fabric *fabric
	tune   func(*Config)

	mu      sync.Mutex
	movers  map[kevlard.NodeID]*Mover
	devices map[kevlard.NodeID]Device
	guests  map[Queue]kevlard.NodeID
	// device makes a node's; silence makes a queue pair swallow what comes in.
	device  func(kevlard.NodeID) Device
	silence func(Queue)
	frozen  map[kevlard.NodeID]bool
}

func newTestNet(t *testing.T) *testNet {
	f := newFabric()
	return &testNet{
		t: t, fabric: f, tune: func(*Config) {},
		movers: map[kevlard.NodeID]*Mover{}, devices: map[kevlard.NodeID]Device{}, frozen: map[kevlard.NodeID]bool{}, guests: map[Queue]kevlard.NodeID{},
		device:  func(node kevlard.NodeID) Device { return f.device(fmt.Sprintf("card of %s", node)) },
		silence: func(q Queue) { q.(*fakeQueue).silence() },
	}
}

// mover returns a node's, nil if there is none.
func (n *testNet) mover(node kevlard.NodeID) *Mover {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.movers[node]
}

func (n *testNet) start(node kevlard.NodeID, h mover.Handler) *Mover {
	n.t.Helper()
	d := n.device(node)
	cfg := Config{
		Self: node, Devices: []Device{watched{d, n, node}}, Handler: h, Staging: 2 * maxPlace, Options: conns.Options{Stall: 20 * time.Second},
		Known: func(to kevlard.NodeID) bool { return n.mover(to) != nil },
		Exchange: func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error) {
			n.mu.Lock()
			m, frozen := n.movers[to], n.frozen[to]
			n.mu.Unlock()
			if frozen {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return m.Answer(ctx, node, request)
		},
	}
	n.tune(&cfg)
	m, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			n.t.Error(err)
		}
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.movers[node], n.devices[node] = m, d
	return m
}

// watched notes the queue pairs of accepted connections.
type watched struct {
	Device
	net  *testNet
	node kevlard.NodeID
}

func (w watched) Queue(send, receive int, source Source) (Queue, error) {
	q, err := w.Device.Queue(send, receive, source)
	if err != nil || send != guestDepth {
		return q, err
	}
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	w.net.guests[q] = w.node
	return watchedQueue{q, w.net}, nil
}

type watchedQueue struct {
	Queue
	net *testNet
}

func (w watchedQueue) Close() error {
	w.net.mu.Lock()
	delete(w.net.guests, w.Queue)
	w.net.mu.Unlock()
	return w.Queue.Close()
}

// guestsOf returns the queue pairs of connections that a node accepted.
func (n *testNet) guestsOf(node kevlard.NodeID) (out []Queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for q, of := range n.guests {
		if of == node {
			out = append(out, q)
		}
	}
	return out
}

// cut breaks the connections to a node as its card would.
func (n *testNet) cut(node kevlard.NodeID) {
	for _, q := range n.guestsOf(node) {
		if err := q.Fail(); err != nil {
			n.t.Error(err)
		}
	}
}

func (n *testNet) freeze(node kevlard.NodeID) {
	n.mu.Lock()
	n.frozen[node] = true
	n.mu.Unlock()
	for _, q := range n.guestsOf(node) {
		n.silence(q)
	}
}

func (n *testNet) network() movertest.Network {
	return movertest.Network{
		Start: func(node kevlard.NodeID, h mover.Handler) mover.Mover { return n.start(node, h) },
		Cut:   n.cut, Freeze: n.freeze,
	}
}

func TestConformance(t *testing.T) {
	for _, unsummed := range []bool{false, true} {
		t.Run(fmt.Sprintf("unsummed=%t", unsummed), func(t *testing.T) {
			movertest.Run(t, func(t *testing.T, stall time.Duration) movertest.Network {
				net := newTestNet(t)
				net.tune = func(c *Config) { c.Unsummed, c.Stall = unsummed, stall }
				return net.network()
			})
		})
	}
}
