package mesh

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

// noEvents fails on an event of the kinds that has come by now.
func (n *testNode) noEvents(t testing.TB, what string) {
	t.Helper()
	for {
		select {
		case e := <-n.events:
			if strings.Contains(what, e.what) {
				t.Fatalf("%s: unexpected %+v", n.cfg.Self, e)
			}
		default:
			return
		}
	}
}

// A peer that ends is seen by its reset, long before any keep-alive, and is
// connected again when it is back, under its new boot and at the same address.
func TestRestartAtSameAddress(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	cfg := testConfig(t, "b")
	b := start(t, cfg)
	connect(t, a, b)
	for boot := 2; boot <= 4; boot++ {
		cfg.Listen = b.Addr()
		old := cfg.Boot
		cfg.Boot = kevlard.BootID(fmt.Sprintf("b-boot-%d", boot))
		b.stop(t)
		e := a.next(t, "down", "up")
		if e.what != "down" || e.peer.Boot != old {
			t.Fatalf("after the end of %s: %+v", old, e)
		}
		if silence(e.err) {
			t.Fatalf("the loss was seen by silence: %v", e.err)
		}
		b = start(t, cfg)
		b.SetPeers([]Address{a.at()})
		// The set of a still names the first boot: what is proved counts.
		if e := a.next(t, "down", "up"); e.what != "up" || e.peer.Boot != cfg.Boot {
			t.Fatalf("after the start of %s: %+v", cfg.Boot, e)
		}
		b.next(t, "up")
		if err := a.Data("b", fmt.Appendf(nil, "to %d", boot)); err != nil {
			t.Fatal(err)
		}
		if e := b.next(t, "data"); string(e.head) != fmt.Sprintf("to %d", boot) {
			t.Fatalf("the new boot got %q", e.head)
		}
		// The ring's view catches up with what the link knows: nothing happens.
		a.SetPeers([]Address{b.at()})
		if err := a.Data("b", []byte("same link")); err != nil {
			t.Fatal(err)
		}
		b.next(t, "data")
		a.noEvents(t, "up down")
	}
}

// Only the peer's own connections break: it is a loss, reported once, and as our
// link is healthy Up follows. Neither side's recovery breaks the other's.
func TestPeersOwnConnectionsBreak(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	way := startProxy(t, a.Addr())
	a.SetPeers([]Address{b.at()})
	b.SetPeers([]Address{way.at(a)})
	a.next(t, "up")
	b.next(t, "up")
	// b's frames must have come through before the cut counts as a loss to a.
	if err := errors.Join(b.Control("a", nil), b.Data("a", nil)); err != nil {
		t.Fatal(err)
	}
	a.next(t, "control", "data")
	a.next(t, "control", "data")
	for range 3 {
		way.cut()
		for _, n := range []*testNode{a, b} {
			if e := n.next(t, "up", "down"); e.what != "down" {
				t.Fatalf("%s: %+v, want down first", n.cfg.Self, e)
			}
			if e := n.next(t, "up", "down"); e.what != "up" {
				t.Fatalf("%s: %+v, want up after down", n.cfg.Self, e)
			}
		}
		if err := errors.Join(b.Control("a", []byte("x")), b.Data("a", nil), a.Data("b", nil)); err != nil {
			t.Fatal(err)
		}
		b.next(t, "data")
		a.next(t, "control", "data")
		a.next(t, "control", "data")
		a.noEvents(t, "up down")
		b.noEvents(t, "up down")
	}
}

// A path that swallows everything is found by keep-alives.
func TestBlackholeIsFound(t *testing.T) {
	t.Parallel()
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	way := startProxy(t, b.Addr())
	a.SetPeers([]Address{way.at(b)})
	a.next(t, "up")
	began := time.Now()
	way.freeze()
	if e := a.next(t, "down"); !silence(e.err) {
		t.Errorf("found by %v", e.err)
	}
	if d, limit := time.Since(began), keepAliveEvery+2*writeTimeout; d > limit {
		t.Fatalf("found after %v, want at most %v", d, limit)
	}
}

// silence reports whether a loss was found by keep-alives or a write that took too long, and
// not by a reset. How long that took says less on a machine that is busy.
func silence(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// A removed peer is closed politely: the other side loses no link over it.
func TestRemoveAndAddAgain(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	connect(t, a, b)
	for range 3 {
		a.SetPeers(nil)
		e := a.next(t, "up", "down")
		if e.what != "down" {
			t.Fatalf("got %+v", e)
		}
		wantError(t, e.err, ErrRemoved)
		wantError(t, a.Control("b", nil), ErrNoPeer)
		a.SetPeers([]Address{b.at()})
		if e := a.next(t, "up", "down"); e.what != "up" {
			t.Fatalf("got %+v", e)
		}
		if err := a.Control("b", []byte("again")); err != nil {
			t.Fatal(err)
		}
		if e := b.next(t, "control", "up", "down"); e.what != "control" {
			t.Fatalf("b, whose link nobody touched: %+v", e)
		}
		if err := b.Control("a", []byte("all the while")); err != nil {
			t.Fatal(err)
		}
		a.next(t, "control")
	}
	b.noEvents(t, "up down")
}

// A new address moves the link, and so does a new boot that the link has not proved.
func TestMoved(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	way := startProxy(t, b.Addr())
	a.SetPeers([]Address{b.at()})
	a.next(t, "up")
	byBoot := way.at(b)
	byBoot.Boot = "another boot"
	for _, to := range []Address{way.at(b), byBoot} {
		a.SetPeers([]Address{to})
		e := a.next(t, "up", "down")
		if e.what != "down" {
			t.Fatalf("got %+v", e)
		}
		wantError(t, e.err, ErrMoved)
		if e := a.next(t, "up", "down"); e.what != "up" || e.peer.Boot != b.cfg.Boot {
			t.Fatalf("got %+v", e)
		}
		if err := a.Control("b", []byte("moved")); err != nil {
			t.Fatal(err)
		}
		b.next(t, "control")
	}
	anyBoot := byBoot
	anyBoot.Boot = ""
	a.SetPeers([]Address{byBoot})
	a.SetPeers([]Address{anyBoot})
	if err := a.Control("b", []byte("stays")); err != nil {
		t.Fatal(err)
	}
	b.next(t, "control")
	a.noEvents(t, "up down")
}

// A reader that stalls fills its own queue and nothing else; what was accepted
// arrives in order once it goes on.
func TestSlowReader(t *testing.T) {
	cfg := testConfig(t, "slow")
	gate := make(chan struct{})
	got := make(chan string, dataFrames*2)
	cfg.Handler.Data = func(_ Peer, head, _ []byte) {
		<-gate
		got <- string(head)
	}
	slow, a, c := start(t, cfg), start(t, testConfig(t, "a")), start(t, testConfig(t, "c"))
	connect(t, slow, a, c)
	body := make([]byte, maxDataBody)
	sent := 0
	for ; ; sent++ {
		err := a.Data("slow", fmt.Appendf(nil, "%d", sent), body)
		if errors.Is(err, ErrQueueFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if sent > (dataBytes+streamWindow)/maxDataBody+64 {
			t.Fatalf("%d frames accepted without a reader", sent)
		}
	}
	if sent < dataBytes/(maxDataBody+maxDataHeader) {
		t.Fatalf("only %d frames accepted", sent)
	}
	// The same peer's control and the other peers go on meanwhile.
	if err := errors.Join(a.Control("slow", []byte("hi")), a.Data("c", []byte("hi")), c.Data("a", []byte("hi"))); err != nil {
		t.Fatal(err)
	}
	slow.next(t, "control")
	c.next(t, "data")
	a.next(t, "data")
	close(gate)
	for i := range sent {
		select {
		case head := <-got:
			if head != fmt.Sprint(i) {
				t.Fatalf("got frame %s, want %d", head, i)
			}
		case <-time.After(patience):
			t.Fatalf("frame %d of %d does not come", i, sent)
		}
	}
	a.noEvents(t, "down")
}

func TestBackoff(t *testing.T) {
	var b backoff
	for _, want := range []time.Duration{100, 200, 400, 800, 1600, 2000, 2000} {
		want *= time.Millisecond
		if got := b.next(); got < want*4/5 || got > want*6/5 {
			t.Fatalf("wait %v, want %v give or take a fifth", got, want)
		}
	}
}
