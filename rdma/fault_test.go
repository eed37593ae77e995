package rdma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/prefer"
	"github.com/kevlard/kevlard/kvstream/tcp"
	"github.com/kevlard/kevlard/rdma/rail"
)

// TestTooLittleMemory: what cannot be locked is an error that says so, when the mover is
// made and when a connection is, and nothing stays locked.
func TestTooLittleMemory(t *testing.T) {
	net := newTestNet(t)
	net.fabric.lock = 1 << 20
	_, err := New(Config{
		Self: "a", Devices: []Device{net.device("a")}, Handler: &counter{}, Known: func(kevlard.NodeID) bool { return true },
		Exchange: func(context.Context, kevlard.NodeID, []byte) ([]byte, error) { return nil, nil },
	})
	if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "card of a") || !strings.Contains(err.Error(), "may lock 1048576 bytes") {
		t.Errorf("New: %v", err)
	}
	if len(net.fabric.keys) != 0 {
		t.Errorf("%d regions are left", len(net.fabric.keys))
	}
	net.fabric.limit(0)
	a := net.start("a", &counter{})
	net.start("b", &counter{})
	net.fabric.limit(1000)
	if err := a.Probe(t.Context(), "b"); !errors.Is(err, mover.ErrUnreachable) || !errors.Is(err, ErrMemory) {
		t.Errorf("Probe: %v", err)
	}
	net.fabric.limit(0)
	until(t, "it works when the limit is raised", func() bool { return a.Probe(t.Context(), "b") == nil })
}

// twoMovers is a node that has RDMA and TCP, as a daemon has them.
type twoMovers struct {
	*prefer.Mover
	rdma    *Mover
	changes chan prefer.Change
}

// lostFirst tells the chooser first, as the daemon does.
type lostFirst struct {
	mover.Handler
	chooser *atomic.Pointer[prefer.Mover]
}

func (l lostFirst) Lost(to kevlard.NodeID, err error) {
	l.chooser.Load().Lost(to, err)
	l.Handler.Lost(to, err)
}

// both starts two nodes with both movers.
func both(t *testing.T, net *testNet, handlers map[kevlard.NodeID]mover.Handler) map[kevlard.NodeID]*twoMovers {
	t.Helper()
	var mu sync.Mutex
	addrs := map[kevlard.NodeID]string{}
	out := map[kevlard.NodeID]*twoMovers{}
	for node, h := range handlers {
		gate := prefer.NewGate(h)
		other, err := tcp.New(tcp.Config{
			Self: node, Listen: "127.0.0.1:0", Plain: true, Handler: gate,
			Resolve: func(to kevlard.NodeID) (tcp.Peer, bool) {
				mu.Lock()
				defer mu.Unlock()
				addr, ok := addrs[to]
				return tcp.Peer{Addr: addr}, ok
			},
			Secret: func(context.Context, kevlard.NodeID) ([]byte, error) { return []byte("0123456789abcdef"), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		addrs[node] = other.Addr()
		mu.Unlock()
		chooser := &atomic.Pointer[prefer.Mover]{}
		m := &twoMovers{rdma: net.start(node, lostFirst{gate, chooser}), changes: make(chan prefer.Change, 100)}
		m.Mover = prefer.New(prefer.Config{
			Better: prefer.Choice{Name: "rdma", Mover: m.rdma}, Other: prefer.Choice{Name: "tcp", Mover: other},
			Probe: m.rdma.Probe, Handler: gate, Changed: func(c prefer.Change) { m.changes <- c },
		})
		chooser.Store(m.Mover)
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		out[node] = m
	}
	return out
}

// order is a Handler that notes pieces by the number in their header, and fails the test
// when one comes twice or after a later one.
type order struct {
	counter
	t    *testing.T
	mu   sync.Mutex
	last int
}

func (h *order) Received(from kevlard.NodeID, header, body []byte) {
	var n int
	if _, err := fmt.Sscan(string(header), &n); err != nil {
		h.t.Errorf("header %q", header)
	}
	for i, b := range body {
		if b != byte(n) {
			h.t.Errorf("piece %d is damaged at byte %d", n, i)
			break
		}
	}
	h.mu.Lock()
	if n <= h.last {
		h.t.Errorf("piece %d came after %d", n, h.last)
	}
	h.last = n
	h.mu.Unlock()
	h.counter.Received(from, header, body)
}

// TestThereAndBack: whatever fails in RDMA, pieces go on over TCP, the reason is told
// once, and when the fault is over they go over RDMA again, in order all the while.
func TestThereAndBack(t *testing.T) {
	errCard := errors.New("status 10: the peer does not let us write there")
	for name, c := range map[string]struct {
		// fault begins it, and cure ends it.
		fault, cure func(t *testing.T, net *testNet, a *Mover)
		spoil       func(w *Work) error // of what a's card does, while it is faulty
		want        string              // in the reason
	}{
		"a write completes with an error": {
			spoil: func(w *Work) error {
				if w.Bytes == writeBytes {
					return errCard
				}
				return nil
			},
			want: errCard.Error(),
		},
		"a key is refused": {
			spoil: func(w *Work) error {
				if w.Bytes > 0 {
					w.RKey++
				}
				return nil
			},
			want: "does not open",
		},
		"the sender's queue pairs fail": {
			fault: func(t *testing.T, _ *testNet, a *Mover) {
				for _, q := range dialled(t, a) {
					_ = q.Fail() // it may have ended
				}
			},
			spoil: func(*Work) error { return errCard },
			want:  "flushed",
		},
		"the receiver's queue pairs fail": {
			fault: func(_ *testing.T, net *testNet, _ *Mover) { net.cut("b") },
			spoil: func(*Work) error { return errNoAnswer },
			want:  errNoAnswer.Error(),
		},
		"the port goes down": {
			fault: func(_ *testing.T, net *testNet, _ *Mover) { net.devices["a"].(*fakeDevice).down.Store(true) },
			cure:  func(_ *testing.T, net *testNet, _ *Mover) { net.devices["a"].(*fakeDevice).down.Store(false) },
			spoil: func(*Work) error { return errNoAnswer },
			want:  errNoAnswer.Error(),
		},
		"no more memory may be locked": {
			fault: func(_ *testing.T, net *testNet, _ *Mover) { net.fabric.limit(1000); net.cut("b") },
			cure:  func(_ *testing.T, net *testNet, _ *Mover) { net.fabric.limit(0) },
			spoil: func(*Work) error { return nil },
			want:  errNoAnswer.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newTestNet(t)
			var faulty atomic.Bool
			net.device = func(node kevlard.NodeID) Device {
				d := net.fabric.device(fmt.Sprintf("card of %s", node))
				if node == "a" {
					d.spoil = func(_ *fakeQueue, w *Work) error {
						if !faulty.Load() {
							return nil
						}
						return c.spoil(w)
					}
				}
				return d
			}
			h := &order{t: t, last: -1}
			nodes := both(t, net, map[kevlard.NodeID]mover.Handler{"a": &counter{}, "b": h})
			a, n := nodes["a"], 0
			send := func() {
				body := make([]byte, 1+n%2*3_000_000)
				for i := range body {
					body[i] = byte(n)
				}
				err := a.Send(t.Context(), "b", 0, []byte(fmt.Sprint(n)), body)
				if err != nil && !errors.Is(err, mover.ErrBroken) {
					t.Fatal(err)
				}
				n++
			}
			// change sends until the next change of mover, and then some.
			change := func(using, why string) {
				t.Helper()
				for {
					select {
					case c := <-a.changes:
						if c.Using != using || why != "" && (c.Why == nil || !strings.Contains(c.Why.Error(), why)) || why == "" && c.Why != nil {
							t.Fatalf("%+v, want %s because of %q", c, using, why)
						}
						for range 4 {
							send()
						}
						got := h.received.Load()
						until(t, "pieces arrive by "+using, func() bool { send(); return h.received.Load() > got+2 })
						return
					default:
						send()
					}
				}
			}
			change("rdma", "")
			faulty.Store(true)
			if c.fault != nil {
				c.fault(t, net, a.rdma)
			}
			change("tcp", c.want)
			if c.cure != nil {
				c.cure(t, net, a.rdma)
			}
			faulty.Store(false)
			b := nodes["b"].rdma
			before := b.Stats().Received
			until(t, "pieces arrive over RDMA again", func() bool { send(); return b.Stats().Received > before+4 })
			if n := a.rdma.Stats().Broken; n == 0 {
				t.Error("no connection broke")
			}
		})
	}
}

// dialled returns the queue pairs of a node's own connections.
func dialled(t *testing.T, m *Mover) (out []Queue) {
	for lane := range mover.Lane(m.cfg.Conns) {
		c, err := m.conns.Get(t.Context(), "b", lane)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c.queue)
	}
	return out
}

// named is a card of which a node has several.
type named struct {
	*fakeDevice
	name string
}

func (n named) Name() string { return n.name }

func (n named) Rail() (rail.Rail, error) {
	r, err := n.fakeDevice.Rail()
	r.Device = n.name
	return r, err
}

// TestDeadCard: a card that cannot be asked any more leaves the other rail working; when
// none can be asked, the error says so.
func TestDeadCard(t *testing.T) {
	net := newTestNet(t)
	cards := map[kevlard.NodeID][]named{}
	net.tune = func(c *Config) {
		c.Devices = nil
		for _, name := range []string{"fake0", "fake1"} {
			d := named{net.fabric.device(string(c.Self) + name), name}
			cards[c.Self] = append(cards[c.Self], d)
			c.Devices = append(c.Devices, d)
		}
	}
	a := net.start("a", &counter{})
	net.start("b", &counter{})
	cards["b"][0].dead.Store(true)
	if c := open(t, a, "b"); c.rail != 1 {
		t.Errorf("a connection uses rail %d", c.rail)
	}
	cards["a"][0].dead.Store(true)
	cards["a"][1].dead.Store(true)
	a.Forget("b")
	if err := a.Probe(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("no card: %v", err)
	}
}

// TestHelloIsLarge: where no packet of a piece's size gets through, or no key opens, no
// connection is made. Words alone would get through, and every piece be lost.
func TestHelloIsLarge(t *testing.T) {
	for _, large := range []uint32{4096, 1} {
		net := newTestNet(t)
		net.device = func(node kevlard.NodeID) Device {
			d := net.fabric.device(string(node))
			d.spoil = func(_ *fakeQueue, w *Work) error {
				if w.Bytes >= large {
					return errNoAnswer
				}
				return nil
			}
			return d
		}
		a := net.start("a", &counter{})
		net.start("b", &counter{})
		if err := a.Probe(t.Context(), "b"); !errors.Is(err, mover.ErrUnreachable) || !errors.Is(err, errNoAnswer) {
			t.Errorf("writes of %d bytes fail: %v", large, err)
		}
	}
}
