package movertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// send sends the piece of a note, whose buffers it overwrites as soon as it may.
func send(ctx context.Context, m mover.Mover, to kevlard.NodeID, n note, size int) error {
	header, body := n.header(size%7), make([]byte, size)
	n.fill(body)
	err := m.Send(ctx, to, n.lane, header, body)
	for _, b := range [][]byte{header, body} {
		for i := range b {
			b[i] = 0xEE
		}
	}
	return err
}

// stream sends n pieces of random sizes up to limit in one lane.
func stream(t *testing.T, m mover.Mover, to kevlard.NodeID, lane mover.Lane, n, limit int) {
	r := rand.New(rand.NewPCG(uint64(lane), 1))
	for seq := range uint64(n) {
		size := r.IntN(limit)
		if r.IntN(4) > 0 {
			size = r.IntN(2000)
		}
		if err := send(t.Context(), m, to, note{lane, seq}, size); err != nil {
			t.Errorf("lane %d, piece %d: %v", lane, seq, err)
			return
		}
	}
}

func testOrder(t *testing.T, net Network) {
	const lanes, pieces = 8, 100
	a, b := newSink(t), newSink(t)
	from := net.Start("a", a)
	to := net.Start("b", b)
	var all sync.WaitGroup
	for lane := range mover.Lane(lanes) {
		all.Go(func() { stream(t, from, "b", lane, pieces, 150_000) })
	}
	all.Wait()
	until(t, "all pieces arrive", func() bool { return b.account().received == lanes*pieces })
	got := b.account()
	if got.gaps != 0 || got.aborted != 0 || got.out != 0 || a.account() != (account{}) {
		t.Errorf("receiver: %v; sender: %v", got, a.account())
	}
	sent, received := from.Stats(), to.Stats()
	if sent.Sent != lanes*pieces || received.Received != lanes*pieces || int(received.ReceivedBytes) != got.bytes || sent.SentBytes != received.ReceivedBytes || sent.Broken != 0 {
		t.Errorf("statistics: sender %+v, receiver %+v", sent, received)
	}
}

// testParts sends bodies in many parts, the largest allowed piece among them.
func testParts(t *testing.T, net Network) {
	sinkB := newSink(t)
	m := net.Start("a", newSink(t))
	net.Start("b", sinkB)
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{1, 2, 31_000, 32 << 10, 32<<10 + 1, 64 << 10, 64<<10 + 1, 1 << 20, 3_333_333, mover.MaxBody}
	for seq, size := range sizes {
		n := note{7, uint64(seq)}
		body := make([]byte, size)
		n.fill(body)
		var parts [][]byte
		for rest := body; len(rest) > 0; {
			k := 1 + r.IntN(len(rest))
			if r.IntN(2) == 0 {
				k = min(1+r.IntN(5000), len(rest))
			}
			parts = append(parts, rest[:k], nil)
			rest = rest[k:]
		}
		header := n.header(0)
		if size == mover.MaxBody {
			header = n.header(mover.MaxHeader - noteLen)
		}
		if err := m.Send(t.Context(), "b", n.lane, header, parts...); err != nil {
			t.Fatalf("%d bytes in %d parts: %v", size, len(parts), err)
		}
	}
	until(t, "all pieces arrive", func() bool { return sinkB.account().received == len(sizes) })
}

// testEmpty sends pieces without a body, for which no buffer is asked, and one
// without anything.
func testEmpty(t *testing.T, net Network) {
	b := newSink(t)
	b.buffer = func(kevlard.NodeID, note) bool { t.Error("Buffer for an empty body"); return false }
	m := net.Start("a", newSink(t))
	net.Start("b", b)
	for seq := range uint64(20) {
		if err := send(t.Context(), m, "b", note{1, seq}, 0); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all pieces arrive", func() bool { return b.account().received == 20 })
}

func testBothWays(t *testing.T, net Network) {
	names := []kevlard.NodeID{"a", "b", "c"}
	sinks, movers := map[kevlard.NodeID]*sink{}, map[kevlard.NodeID]mover.Mover{}
	for _, n := range names {
		sinks[n] = newSink(t)
		movers[n] = net.Start(n, sinks[n])
	}
	const lanes, pieces = 3, 60
	var all sync.WaitGroup
	for _, from := range names {
		for _, to := range names {
			for lane := range mover.Lane(lanes) {
				if from != to {
					all.Go(func() { stream(t, movers[from], to, lane, pieces, 200_000) })
				}
			}
		}
	}
	all.Wait()
	for _, n := range names {
		until(t, fmt.Sprintf("all pieces arrive at %s", n), func() bool { return sinks[n].account().received == 2*lanes*pieces })
		if got := sinks[n].account(); got.gaps != 0 || got.aborted != 0 || got.lost != 0 {
			t.Errorf("%s: %v", n, got)
		}
	}
}

func testRefused(t *testing.T, net Network) {
	b := newSink(t)
	b.buffer = func(_ kevlard.NodeID, n note) bool { return n.seq%2 == 0 }
	m := net.Start("a", newSink(t))
	to := net.Start("b", b)
	for seq := range uint64(40) {
		if err := send(t.Context(), m, "b", note{1, seq}, 10_000+int(seq)*5000); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the other half arrives", func() bool { return to.Stats().Refused == 20 && b.account().received == 20 })
	if got := b.account(); got.aborted != 0 || got.out != 0 {
		t.Errorf("receiver: %v", got)
	}
}

func testOversized(t *testing.T, net Network) {
	m := net.Start("a", newSink(t))
	net.Start("b", newSink(t))
	half := make([]byte, mover.MaxBody/2+1)
	for what, err := range map[string]error{
		"header": m.Send(t.Context(), "b", 0, make([]byte, mover.MaxHeader+1)),
		"body":   m.Send(t.Context(), "b", 0, nil, half, half),
	} {
		if !errors.Is(err, mover.ErrTooLarge) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func testUnknownPeer(t *testing.T, net Network) {
	m := net.Start("a", newSink(t))
	err := m.Send(t.Context(), "nobody", 0, []byte("x"))
	if !errors.Is(err, mover.ErrUnknownPeer) || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("got %v", err)
	}
}
