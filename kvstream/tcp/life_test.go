package tcp

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
)

func until(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 30 s")
		}
	}
}

// counter is a Handler that counts and may stand still.
type counter struct {
	entered, received, aborted, lost atomic.Int64
	hold                             chan struct{} // if set, Received waits for it
}

func (h *counter) Buffer(_ kevlard.NodeID, _ []byte, n int) []byte { return make([]byte, n) }
func (h *counter) Received(kevlard.NodeID, []byte, []byte) {
	h.entered.Add(1)
	if h.hold != nil {
		<-h.hold
	}
	h.received.Add(1)
}
func (h *counter) Aborted(kevlard.NodeID, []byte, []byte) { h.aborted.Add(1) }
func (h *counter) Lost(kevlard.NodeID, error)             { h.lost.Add(1) }

// TestManyTransfersUseFewConnections (K43) sends what a busy minute does (50,000 transfers)
// without a new connection for any of them.
func TestManyTransfersUseFewConnections(t *testing.T) {
	eachMode(t, func(t *testing.T, net *testNet) {
		const senders, each = 10, 5000
		h := &counter{}
		a := net.start("a", &counter{})
		net.start("b", h)
		var all sync.WaitGroup
		for lane := range mover.Lane(senders) {
			all.Go(func() {
				body := make([]byte, 2000)
				for range each {
					if err := a.Send(t.Context(), "b", lane, []byte("header"), body); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		until(t, func() bool { return h.received.Load() == senders*each })
		if s := a.Stats(); s.Dials != defaultConns || s.Broken != 0 || s.Sent != senders*each {
			t.Errorf("statistics %+v, want %d dials", s, defaultConns)
		}
	})
}

// TestIdleConnectionsEndInPeace: they are closed, nobody is told of a loss, and the
// next piece finds a new one.
func TestIdleConnectionsEndInPeace(t *testing.T) {
	eachMode(t, func(t *testing.T, net *testNet) {
		net.tune = func(c *Config) { c.Idle, c.Conns = 20*time.Millisecond, 1 }
		ha, hb := &counter{}, &counter{}
		a := net.start("a", ha)
		b := net.start("b", hb)
		for i := range int64(5) {
			if err := a.Send(t.Context(), "b", 0, nil, make([]byte, 100_000)); err != nil {
				t.Fatal(err)
			}
			until(t, func() bool { return hb.received.Load() == i+1 && connections(a)+connections(b) == 0 })
		}
		if s := a.Stats(); s.Broken != 0 || s.Dials < 5 || ha.lost.Load() != 0 || hb.aborted.Load() != 0 {
			t.Errorf("statistics %+v, lost %d, aborted %d", s, ha.lost.Load(), hb.aborted.Load())
		}
	})
}

// connections counts those in use, both ways.
func connections(m *Mover) int { return m.conns.Len() }

// TestIdleWithSenders: connections that end for idleness all the time lose nothing.
func TestIdleWithSenders(t *testing.T) {
	net := newTestNet(t, true)
	net.tune = func(c *Config) { c.Idle = time.Microsecond }
	h := &counter{}
	a := net.start("a", &counter{})
	net.start("b", h)
	var all sync.WaitGroup
	const each = 100
	for lane := range mover.Lane(4) {
		all.Go(func() {
			for i := range each {
				if err := a.Send(t.Context(), "b", lane, nil, make([]byte, 1+i*700)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	until(t, func() bool { return h.received.Load() == 4*each })
}

// TestDamageOnTheWay flips a bit of a body (a bad card): the piece is dropped and
// counted, and what follows comes over a new connection.
func TestDamageOnTheWay(t *testing.T) {
	for name, test := range map[string]struct{ plain bool }{"tls": {false}, "plain": {true}} {
		t.Run(name, func(t *testing.T) {
			net := newTestNet(t, test.plain)
			ha, hb := &counter{}, &counter{}
			a := net.start("a", ha)
			b := net.start("b", hb)
			p := net.proxy("b")
			if err := a.Send(t.Context(), "b", 0, nil, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			until(t, func() bool { return hb.received.Load() == 1 })
			seen := 0
			p.mu.Lock()
			p.change = func(b []byte) {
				if seen < 100_000 && seen+len(b) >= 100_000 {
					b[len(b)-1] ^= 4
				}
				seen += len(b)
			}
			p.mu.Unlock()
			err := a.Send(t.Context(), "b", 0, nil, make([]byte, 1<<20))
			if err != nil && !errors.Is(err, mover.ErrBroken) {
				t.Error(err)
			}
			until(t, func() bool { return hb.aborted.Load() == 1 && ha.lost.Load() == 1 })
			until(t, func() bool { return a.Send(t.Context(), "b", 0, nil, make([]byte, 1000)) == nil })
			until(t, func() bool { return hb.received.Load() == 2 })
			if got := b.Stats().Corrupt; test.plain && got != 1 {
				t.Errorf("%d damaged pieces counted, want 1", got)
			}
		})
	}
}

// TestBackoff: a peer that is not there is dialled seldom, and senders learn at once.
func TestBackoff(t *testing.T) {
	net := newTestNet(t, true)
	a := net.start("a", &counter{})
	gone := net.start("b", &counter{})
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	var last error
	for range 2000 {
		if last = a.Send(t.Context(), "b", 0, nil); last == nil {
			t.Fatal("sent to a closed peer")
		}
	}
	if !errors.Is(last, mover.ErrUnreachable) {
		t.Errorf("got %v", last)
	}
	if n := net.proxy("b").accepted.Load(); n > 50 {
		t.Errorf("%d dials", n)
	}
}

func TestForget(t *testing.T) {
	net := newTestNet(t, false)
	ha, hb := &counter{}, &counter{}
	a := net.start("a", ha)
	b := net.start("b", hb)
	if err := a.Send(t.Context(), "b", 0, nil); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return hb.received.Load() == 1 })
	b.Forget("a") // ends what a dialled
	until(t, func() bool { return ha.lost.Load() == 1 && connections(a)+connections(b) == 0 })
	until(t, func() bool { return a.Send(t.Context(), "b", 0, nil) == nil })
	a.Forget("b") // ends what a dialled, too
	until(t, func() bool { return connections(a)+connections(b) == 0 })
	if err := a.Send(t.Context(), "b", 0, nil, make([]byte, 50_000)); err != nil {
		t.Errorf("after Forget: %v", err)
	}
}

// TestBandwidth: the cap is the node's, over all peers and connections. The bound is on
// bytes, for the time that really passed.
func TestBandwidth(t *testing.T) {
	eachMode(t, func(t *testing.T, net *testNet) {
		const rate = 4 << 20
		pacer, err := pace.New(rate)
		if err != nil {
			t.Fatal(err)
		}
		net.tune = func(c *Config) { c.Pacer = pacer }
		h := &counter{}
		a := net.start("a", &counter{})
		net.start("b", h)
		net.start("c", h)
		began := time.Now()
		var all sync.WaitGroup
		for lane := range mover.Lane(4) {
			all.Go(func() {
				for range 4 {
					to := kevlard.NodeID("b")
					if lane%2 == 0 {
						to = "c"
					}
					if err := a.Send(t.Context(), to, lane, nil, make([]byte, 256<<10)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		until(t, func() bool { return h.received.Load() == 16 })
		// 4 MiB at 4 MiB/s, less what may be saved up.
		if took := time.Since(began); took < time.Second-100*time.Millisecond {
			t.Errorf("4 MiB took %v at 4 MiB/s", took)
		}
	})
}

// TestReplacedConnection: when the sender's end of a connection has gone, and the
// receiver does not know yet, the next one waits until the old one's reader has ended.
func TestReplacedConnection(t *testing.T) {
	net := newTestNet(t, true)
	net.tune = func(c *Config) { c.Conns = 1 }
	h := &counter{hold: make(chan struct{})}
	a := net.start("a", &counter{})
	b := net.start("b", h)
	release := sync.OnceFunc(func() { close(h.hold) })
	t.Cleanup(release)
	if err := a.Send(t.Context(), "b", 0, nil); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return h.entered.Load() == 1 })
	a.Forget("b")
	sent := make(chan error, 1)
	go func() { sent <- a.Send(t.Context(), "b", 0, nil) }()
	until(t, func() bool {
		return b.strangers.Load() == 1 // the new one waits
	})
	if n := h.received.Load(); n != 0 {
		t.Errorf("%d pieces received by a handler that stands still", n)
	}
	release()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return h.received.Load() == 2 })
}
