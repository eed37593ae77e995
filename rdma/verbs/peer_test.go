package verbs

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The tests called TestPeer run on two hosts at once (RDMA_GUESTS=2): a listens on
// another network than the cards', b calls.

// role returns a or b, or skips on one host.
func role(t testing.TB) string {
	r := os.Getenv("RDMA_ROLE")
	if r == "" {
		miss(t, "needs two hosts: make test-rdma runs it with RDMA_GUESTS=2")
	}
	return r
}

// meet connects both hosts for one test.
func meet(t *testing.T) net.Conn {
	t.Helper()
	const port = ":7000"
	ctx := patient(t)
	if role(t) == "a" {
		l, err := net.Listen("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "tcp", os.Getenv("RDMA_PEER")+port)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond): // it may not have come to this test yet
		}
	}
}

// TestPeerTransfer moves messages over each rail, in both directions.
func TestPeerTransfer(t *testing.T) {
	r := role(t)
	l, devices := loaded(t)
	c := meet(t)
	for _, d := range devices {
		for _, from := range []string{"a", "b"} {
			if r == from {
				deliver(t, l, d.Name, c, 20, 256<<10)
			} else {
				serve(t, l, d.Name, c, 20, 256<<10)
			}
		}
	}
}

// tc sets what a network card of this host does to what it sends.
func tc(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.CommandContext(patient(t), "tc", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %s: %v: %s", args, err, out)
	}
	return string(out)
}

// TestPeerLoss moves messages over a rail that loses packets: the cards send them again.
func TestPeerLoss(t *testing.T) {
	r := role(t)
	l, devices := loaded(t)
	c := meet(t)
	tc(t, "qdisc add dev eth2 root netem loss 0.5%")
	for _, from := range []string{"a", "b"} {
		if r == from {
			deliver(t, l, devices[1].Name, c, 40, 256<<10)
		} else {
			serve(t, l, devices[1].Name, c, 40, 256<<10)
		}
	}
	lost := regexp.MustCompile(`dropped ([1-9]\d*)`).FindString(tc(t, "-s qdisc show dev eth2"))
	if lost == "" {
		t.Error("no packet was lost")
	}
	t.Log(lost)
	tc(t, "qdisc del dev eth2 root")
}

// TestPeerLink takes a's link down and up again (half of case K27): both sides learn
// of it by their requests, a also by the card's events, and new queue pairs carry on
// as before.
func TestPeerLink(t *testing.T) {
	r := role(t)
	l, devices := loaded(t)
	c := meet(t)
	ctx := patient(t)
	const n = 64 << 10
	e := newEnd(t, l, devices[0].Name, n)
	peer := exchange(t, c, e.address)
	e.connect(t, peer)
	together := func() {
		t.Helper()
		signal(t, c)
		await(t, c)
	}
	together()
	send(t, e, e.write(1, peer, 0, n))
	ends(t, ctx, e.sends, StatusSuccess)
	together()
	e.newPair(t)
	peer = exchange(t, c, e.address)
	e.connectBriefly(t, peer)
	together()

	link := func(state string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, "ip", "link", "set", "eth1", state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	event := func(want EventKind) {
		t.Helper()
		for {
			got, err := e.c.NextEvent(ctx)
			if err != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			t.Log(got)
			if got.Kind == want {
				return
			}
		}
	}
	if r == "a" {
		t.Cleanup(func() { // for the next test, also when this one fails
			if out, err := exec.Command("ip", "link", "set", "eth1", "up").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
		link("down")
		event(EventPortDown)
		if p, err := e.c.Port(1); err != nil || p.State == PortActive {
			t.Errorf("%+v, %v", p, err)
		}
	}
	together()
	send(t, e, e.write(2, peer, 0, n))
	// Soft-RoCE knows at once when it is its own link, where cards try in vain.
	d := next(t, ctx, e.sends)
	if d.Status != StatusRetryExceeded && (r == "b" || d.Status != StatusLocalOperation) {
		t.Fatalf("%+v: %v", d, d.Err())
	}
	t.Log(d.Err())
	if s, err := e.pair.State(); s != PairFailed || err != nil {
		t.Errorf("%v, %v", s, err)
	}
	together()
	if r == "a" {
		link("up")
		event(EventPortActive)
		if p, err := e.c.Port(1); err != nil || p.State != PortActive {
			t.Errorf("%+v, %v", p, err)
		}
	}
	together()
	e.newPair(t)
	peer = exchange(t, c, e.address)
	e.connect(t, peer)
	together()
	for i := range uint64(20) {
		send(t, e, e.write(i, peer, 0, n))
		ends(t, ctx, e.sends, StatusSuccess)
	}
	together()
}

// TestPeerLost drops all that b sends: the first request fails for want of an answer,
// those behind it are flushed, and nothing hangs.
func TestPeerLost(t *testing.T) {
	r := role(t)
	l, devices := loaded(t)
	c := meet(t)
	ctx := patient(t)
	const n = 256 << 10
	e := newEnd(t, l, devices[1].Name, n)
	peer := exchange(t, c, e.address)
	e.connectBriefly(t, peer)
	if r == "a" {
		await(t, c)
		return
	}
	tc(t, "qdisc add dev eth2 root netem loss 100%")
	w := e.write(1, peer, 0, n)
	send(t, e, w, w, w)
	ends(t, ctx, e.sends, StatusRetryExceeded)
	ends(t, ctx, e.sends, StatusFlushed)
	ends(t, ctx, e.sends, StatusFlushed)
	tc(t, "qdisc del dev eth2 root")
	signal(t, c)
}

// TestPeerZDies comes last: b has a killed, as by pulling its plug, while bytes are
// under way, and must learn it from its own card.
func TestPeerZDies(t *testing.T) {
	r := role(t)
	l, devices := loaded(t)
	c := meet(t)
	ctx := patient(t)
	const n = 1 << 20
	e := newEnd(t, l, devices[0].Name, n)
	peer := exchange(t, c, e.address)
	e.connect(t, peer)
	if r == "a" {
		signal(t, c)
		<-ctx.Done()
		t.Fatalf("was not killed: %v", context.Cause(ctx))
	}
	await(t, c)
	sent := uint64(0)
	post := func() {
		sent++
		send(t, e, e.write(sent, peer, 0, n))
	}
	// Two at a time, so that one is always under way.
	post()
	for range 3 {
		post()
		ends(t, ctx, e.sends, StatusSuccess)
	}
	if err := os.WriteFile("/host/kill-a", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for {
		d := next(t, ctx, e.sends)
		if d.Status == StatusSuccess {
			post()
			continue
		}
		if !errors.Is(d.Err(), StatusRetryExceeded) {
			t.Fatalf("%+v: %v", d, d.Err())
		}
		t.Log(d.ID, d.Err())
		break
	}
}
