package rdma

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
)

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// counter is a Handler that counts.
type counter struct{ buffers, received, empty, aborted, lost atomic.Int64 }

func (h *counter) Buffer(_ kevlard.NodeID, _ []byte, n int) []byte {
	h.buffers.Add(1)
	return make([]byte, n)
}

func (h *counter) Received(_ kevlard.NodeID, _, body []byte) {
	if len(body) == 0 {
		h.empty.Add(1)
	}
	h.received.Add(1)
}
func (h *counter) Aborted(kevlard.NodeID, []byte, []byte) { h.aborted.Add(1) }
func (h *counter) Lost(kevlard.NodeID, error)             { h.lost.Add(1) }

// open makes m's connections to a node and returns that of lane 0.
func open(t *testing.T, m *Mover, to kevlard.NodeID) *outgoing {
	t.Helper()
	if err := m.Probe(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	c, err := m.conns.Get(t.Context(), to, 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRingOutlivesComposing: who composes a message in the ring holds the connection's
// lock, and a connection that breaks meanwhile does not unmap the ring before it
// refuses all others under that lock.
func TestRingOutlivesComposing(t *testing.T) {
	net := newTestNet(t)
	var c atomic.Pointer[outgoing]
	var early atomic.Bool
	net.device = func(node kevlard.NodeID) Device {
		d := net.fabric.device("card of " + string(node))
		d.release = func(mem []byte) {
			if c := c.Load(); c != nil && &mem[0] == &c.mem.mem[0] {
				c.mu.Lock()
				defer c.mu.Unlock()
				early.Store(c.ended == nil)
			}
		}
		return d
	}
	a := net.start("a", &counter{})
	net.start("b", &counter{})
	c.Store(open(t, a, "b"))
	net.cut("b")
	if err := c.Load().queue.Fail(); err != nil {
		t.Fatal(err)
	}
	<-c.Load().gone
	if early.Load() {
		t.Error("the ring was unmapped while senders might still write to it")
	}
}

// TestCloseWaitsForSenders: a sender that copies a body to staging memory is not
// interrupted by its unmapping, which would end the process.
func TestCloseWaitsForSenders(t *testing.T) {
	for range 20 {
		net := newTestNet(t)
		a := net.start("a", &counter{})
		net.start("b", &counter{})
		open(t, a, "b")
		body := make([]byte, mover.MaxBody)
		sent := make(chan error, 1)
		go func() { sent <- a.Send(t.Context(), "b", 0, nil, body) }()
		for a.outgo.used() == 0 {
			runtime.Gosched()
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil && !errors.Is(err, mover.ErrClosed) && !errors.Is(err, mover.ErrBroken) {
			t.Error(err)
		}
	}
}

// TestCloseWaitsForAnswers: after Close nothing of the mover is left on the cards.
func TestCloseWaitsForAnswers(t *testing.T) {
	net := newTestNet(t)
	var m atomic.Pointer[Mover]
	closed := make(chan error, 1)
	net.device = func(node kevlard.NodeID) Device {
		d := net.fabric.device("card of " + string(node))
		d.register = func(mem []byte) {
			b := m.Load()
			if node != "b" || b == nil {
				return
			}
			go func() { closed <- b.Close() }() // while b is about to answer
			until(t, "Close has begun", func() bool { return b.conns.Life().Err() != nil })
			select {
			case err := <-closed:
				closed <- err
				t.Error("Close returned while a peer was being answered")
			case <-time.After(50 * time.Millisecond): // the longer, the surer a fault is found
			}
		}
		return d
	}
	a := net.start("a", &counter{})
	m.Store(net.start("b", &counter{}))
	if err := a.Probe(t.Context(), "b"); err == nil {
		t.Error("a node that stops has answered")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	net.fabric.mu.Lock()
	defer net.fabric.mu.Unlock()
	for _, q := range net.fabric.queues {
		if q.device == net.devices["b"] {
			t.Error("b has a queue pair after Close")
		}
	}
}

// TestForgetEndsBothWays: a node that was removed from the mesh can no longer send here.
func TestForgetEndsBothWays(t *testing.T) {
	net := newTestNet(t)
	b := &counter{}
	a := net.start("a", &counter{})
	m := net.start("b", b)
	if err := a.Send(t.Context(), "b", 0, nil, []byte("x")); err != nil {
		t.Fatal(err)
	}
	until(t, "it arrives", func() bool { return b.received.Load() == 1 })
	m.Forget("c")
	if m.conns.Len() == 0 {
		t.Error("another node was forgotten, and a's connection ended")
	}
	m.Forget("a")
	until(t, "the connections from a end", func() bool { return m.conns.Len() == 0 })
}

// TestIdleEndsInPeace: nobody is told of a loss, and the next piece finds a new connection.
func TestIdleEndsInPeace(t *testing.T) {
	net := newTestNet(t)
	net.tune = func(c *Config) { c.Idle, c.Conns = 20*time.Millisecond, 1 }
	ha, hb := &counter{}, &counter{}
	a := net.start("a", ha)
	b := net.start("b", hb)
	for i := range int64(5) {
		if err := a.Send(t.Context(), "b", 0, nil, make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
		until(t, "it arrives, and the connection ends", func() bool { return hb.received.Load() == i+1 && b.conns.Len() == 0 })
	}
	if s := a.Stats(); s.Broken != 0 || s.Dials < 5 || ha.lost.Load() != 0 {
		t.Errorf("%+v, %d lost", s, ha.lost.Load())
	}
}

// TestEndingIsNotBusy: an idle connection whose peer does not part waits, and does not ask
// its queue over and over.
func TestEndingIsNotBusy(t *testing.T) {
	net := newTestNet(t)
	a := net.start("a", &counter{})
	net.start("b", &counter{})
	c := open(t, a, "b")
	c.End(errIdle)
	now := time.Now()
	if until := c.deadline(now.Add(-time.Hour), now.Add(conns.CloseGrace)); until.Before(now) {
		t.Errorf("it looks again at once: %v before now", now.Sub(until))
	}
}

// TestSecondCloseWaits: whoever calls Close finds nothing running when it returns.
func TestSecondCloseWaits(t *testing.T) {
	net := newTestNet(t)
	var releasing atomic.Int64
	first, second := make(chan error, 1), make(chan error, 1)
	var m *Mover
	net.device = func(node kevlard.NodeID) Device {
		d := net.fabric.device(fmt.Sprintf("card of %s", node))
		d.release = func([]byte) {
			if releasing.Add(1) == 1 {
				go func() { second <- m.Close() }()
				select {
				case err := <-second:
					second <- err
					t.Error("the second Close returned while the first was at work")
				case <-time.After(50 * time.Millisecond): // the longer, the surer a fault is found
				}
			}
		}
		return d
	}
	m = net.start("a", &counter{})
	go func() { first <- m.Close() }()
	if err := <-first; err != nil {
		t.Error(err)
	}
	<-second
}

// TestBandwidth: the cap is the node's, over all peers, connections and movers that share
// it. The bound is on bytes, for the time that really passed.
func TestBandwidth(t *testing.T) {
	const rate, size = 4 << 20, 256 << 10
	pacer, err := pace.New(rate)
	if err != nil {
		t.Fatal(err)
	}
	net := newTestNet(t)
	net.tune = func(c *Config) { c.Pacer = pacer }
	h := &counter{}
	a := net.start("a", &counter{})
	net.start("b", h)
	net.start("c", h)
	began := time.Now()
	var all sync.WaitGroup
	for lane := range mover.Lane(4) {
		all.Go(func() {
			for i := range 4 {
				if err := a.Send(t.Context(), []kevlard.NodeID{"b", "c"}[i%2], lane, nil, make([]byte, size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	until(t, "all arrives", func() bool { return h.received.Load() == 16 })
	// 4 MiB at 4 MiB/s, less what may be saved up, and the last piece.
	if took := time.Since(began); took < time.Second-100*time.Millisecond-time.Second*size/rate {
		t.Errorf("4 MiB took %v at 4 MiB/s", took)
	}
}

// TestPacedSendsEnd: who waits for bandwidth is let go by the end of a context, and by Close.
func TestPacedSendsEnd(t *testing.T) {
	pacer, err := pace.New(pace.MinRate)
	if err != nil {
		t.Fatal(err)
	}
	net := newTestNet(t)
	net.tune = func(c *Config) { c.Pacer = pacer }
	a := net.start("a", &counter{})
	net.start("b", &counter{})
	if err := a.Send(t.Context(), "b", 0, nil, make([]byte, mover.MaxBody)); err != nil { // minutes' worth
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := a.Send(ctx, "b", 0, nil, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the context has ended: %v", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- a.Send(t.Context(), "b", 0, nil, []byte("x")) }()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-sent; !errors.Is(err, mover.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
