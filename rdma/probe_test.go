package rdma

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestProbe: a connection that nobody has used since its peer's card went away proves nothing.
func TestProbe(t *testing.T) {
	n := newTestNet(t)
	a := n.start("a", &counter{})
	n.start("b", &counter{})
	probe := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return a.Probe(ctx, "b")
	}
	if err := probe(); err != nil {
		t.Fatal(err)
	}
	made := a.Stats().Dials
	if err := probe(); err != nil || a.Stats().Dials != made {
		t.Errorf("a probe of what works made %d connections: %v", a.Stats().Dials-made, err)
	}
	n.devices["b"].(*fakeDevice).down.Store(true)
	for _, q := range n.guestsOf("b") {
		n.silence(q)
	}
	for range 3 {
		if err := probe(); err == nil {
			t.Fatal("it reaches a peer whose card is away")
		}
	}
	n.devices["b"].(*fakeDevice).down.Store(false)
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = probe(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// TestBrokenTakesNothing: what broke is no choice of a sender while it is being taken down.
func TestBrokenTakesNothing(t *testing.T) {
	n := newTestNet(t)
	a := n.start("a", &counter{})
	n.start("b", &counter{})
	c := open(t, a, "b")
	c.mu.Lock() // so that run cannot end
	c.Fail(errors.New("planted"))
	c.mu.Unlock()
	if c.Open() {
		t.Error("it takes pieces")
	}
}
