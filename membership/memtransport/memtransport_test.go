package memtransport

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

const a, b = "10.0.0.1:1", "10.0.0.2:1"

func pair(t *testing.T) (*Network, *Transport, *Transport) {
	t.Helper()
	n := NewNetwork(1)
	ta, err := n.Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := n.Listen(b)
	if err != nil {
		t.Fatal(err)
	}
	return n, ta, tb
}

// arrives sends one packet and reports whether it came.
func arrives(t *testing.T, from, to *Transport) bool {
	t.Helper()
	if _, err := from.WriteTo([]byte("x"), to.addr.String()); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-to.PacketCh():
		if string(p.Buf) != "x" || p.From.String() != from.addr.String() {
			t.Fatalf("got %q from %s", p.Buf, p.From)
		}
		return true
	default:
		return false
	}
}

// dials reports whether a dial succeeds, and how long it took.
func dials(t *testing.T, from, to *Transport) (bool, time.Duration) {
	t.Helper()
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case c := <-to.StreamCh():
			if c.RemoteAddr().String() != from.addr.String() {
				t.Errorf("accepted from %s", c.RemoteAddr())
			}
			if _, err := c.Write([]byte("hi")); err != nil {
				t.Error(err)
			}
			c.Close()
		case <-time.After(2 * time.Second):
		}
	}()
	c, err := from.DialTimeout(to.addr.String(), time.Second)
	took := time.Since(start)
	if err == nil {
		if got, rerr := io.ReadAll(c); rerr != nil || string(got) != "hi" {
			t.Errorf("read %q, %v", got, rerr)
		}
		c.Close()
	}
	<-done
	return err == nil, took
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name       string
		fault      func(n *Network)
		ab, ba     bool // packets pass
		dial       bool
		afterwards func(n *Network)
	}{
		{"none", func(*Network) {}, true, true, true, func(*Network) {}},
		{"blackhole", func(n *Network) { n.Blackhole(b, true) }, false, false, false, func(n *Network) { n.Blackhole(b, false) }},
		{"cut one way", func(n *Network) { n.Cut(a, b, true) }, false, true, false, func(n *Network) { n.Cut(a, b, false) }},
		{"packets blocked", func(n *Network) { n.BlockPackets(a, true) }, false, false, true, func(n *Network) { n.BlockPackets(a, false) }},
		{"partition", func(n *Network) { n.Partition([]string{a}) }, false, false, false, func(n *Network) { n.Partition() }},
		{"one group", func(n *Network) { n.Partition([]string{a, b}) }, true, true, true, func(n *Network) { n.Partition() }},
		{"loss", func(n *Network) { n.Loss(1) }, false, false, true, func(n *Network) { n.Loss(0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ta, tb := pair(t)
				c.fault(n)
				if got := arrives(t, ta, tb); got != c.ab {
					t.Errorf("packet there: %v, want %v", got, c.ab)
				}
				if got := arrives(t, tb, ta); got != c.ba {
					t.Errorf("packet back: %v, want %v", got, c.ba)
				}
				ok, took := dials(t, ta, tb)
				if ok != c.dial || !ok && took != time.Second {
					t.Errorf("dial: %v after %v, want %v, failures after 1 s", ok, took, c.dial)
				}
				c.afterwards(n)
				if ok, _ := dials(t, ta, tb); !ok || !arrives(t, ta, tb) {
					t.Error("not healed")
				}
			})
		})
	}
}

func TestCrashAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ta, tb := pair(t)
		if _, err := n.Listen(b); err == nil {
			t.Error("an address given twice")
		}
		if err := tb.Shutdown(); err != nil {
			t.Fatal(err)
		}
		if arrives(t, ta, tb) {
			t.Error("a packet to a dead process arrived")
		}
		if ok, took := dials(t, ta, tb); ok || took != 0 {
			t.Errorf("dial of a dead process: %v after %v, want a refusal at once", ok, took)
		}
		if _, err := tb.WriteTo([]byte("x"), a); err != net.ErrClosed {
			t.Errorf("write after shutdown: %v", err)
		}
		again, err := n.Listen(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := tb.Shutdown(); err != nil { // must not unplug its successor
			t.Fatal(err)
		}
		if !arrives(t, ta, again) {
			t.Error("the restarted process gets nothing")
		}
	})
}

func TestInboxIsBounded(t *testing.T) {
	_, ta, tb := pair(t)
	for range inboxSize + 100 {
		if _, err := ta.WriteTo([]byte("x"), b); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tb.packets); n != inboxSize {
		t.Errorf("%d packets wait, want %d", n, inboxSize)
	}
}
