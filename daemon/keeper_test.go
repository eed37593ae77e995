package daemon

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

var kvStage = kevlard.StageKey{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 0, Hi: 2}}

// kvLayout is that of kvStage's cells.
var kvLayout = kvstream.Layout{Runs: 4, Row: 4}

// someRows returns n positions and their bytes.
func someRows(id kevlard.SessionID, n int) (protocol.Rows, []byte) {
	body := make([]byte, n*kvLayout.CellBytes())
	for i := range body {
		body[i] = byte(i*7 + len(id))
	}
	return protocol.Rows{
		Session: id, Fence: kevlard.Fence{Epoch: 1, Term: 1}, Stage: kvStage, Class: "toy", CellBytes: kvLayout.CellBytes(), Pos: 3,
		Tokens: make([]kevlard.Token, n), Sums: kvLayout.Sums(nil, body, n),
	}, body
}

// rejections records what was not used.
type rejections struct {
	mu  sync.Mutex
	all []string
}

func (r *rejections) add(reason string, from kevlard.NodeID, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, strings.TrimSpace(reason+" "+string(from)))
}

func (r *rejections) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

// keeperBench is a keeper whose events go to a channel.
type keeperBench struct {
	*keeper
	t      *testing.T
	events chan node.Event
	rejections
}

// withKeeper runs f beside a keeper and wants everything back in the end.
func withKeeper(t *testing.T, bytes int64, f func(*keeperBench)) {
	t.Helper()
	b := &keeperBench{t: t, events: make(chan node.Event, 100)}
	b.keeper = newKeeper(kvstream.NewStore(4, bytes), protocol.NewCodec(), func(ev node.Event) bool { b.events <- ev; return true }, b.add)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { b.run(ctx) })
	f(b)
	cancel()
	run.Wait()
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// deliver is what a mover does with a piece.
func (b *keeperBench) deliver(from kevlard.NodeID, header, body []byte) {
	b.t.Helper()
	buf := b.Buffer(from, header, len(body))
	if buf == nil {
		b.t.Fatal("no buffer")
	}
	copy(buf, body)
	b.Received(from, header, buf)
}

func (b *keeperBench) header(r protocol.Rows) []byte {
	b.t.Helper()
	h, err := b.codec.EncodeRows(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

func nextEvent[E node.Event](t *testing.T, events chan node.Event) E {
	t.Helper()
	ev := <-events
	e, ok := ev.(E)
	if !ok {
		t.Fatalf("event %T %+v, want %T", ev, ev, e)
	}
	return e
}

func TestKeeperStoresPieces(t *testing.T) {
	withKeeper(t, 1<<20, func(b *keeperBench) {
		r, body := someRows("s", 6)
		b.deliver("n1", b.header(r), body)
		a := nextEvent[node.RowsArrived](t, b.events)
		if a.From != "n1" || !a.Intact || a.Rows.End() != 9 || !slices.Equal(a.Rows.Sums, r.Sums) {
			t.Errorf("arrived: %+v", a)
		}
		to := []index.Run{{Slot: 2, At: 1, N: 3}, {Slot: 0, At: 0, N: 3}}
		b.storeRows(node.StoreRows{Stage: kvStage, Piece: a.Piece, To: to})
		if s := nextEvent[node.RowsStored](t, b.events); s.Piece != a.Piece || s.Failed != "" {
			t.Errorf("stored: %+v", s)
		}
		got := make([]byte, len(body))
		if sums, damaged := b.store.Get(kvStage, 16, to, got); damaged || !slices.Equal(sums, r.Sums) || !bytes.Equal(got, body) {
			t.Errorf("the store has %d positions, damaged %v", len(sums), damaged)
		}
		b.dropRows(node.DropRows{Piece: a.Piece}) // stored already
		// A slot that is freed and used again keeps what came last.
		b.deliver("n1", b.header(r), body)
		b.freeSlots(node.FreeSlots{Stage: kvStage, Slots: []int{0, 2}})
		b.storeRows(node.StoreRows{Stage: kvStage, Piece: nextEvent[node.RowsArrived](t, b.events).Piece, To: []index.Run{{Slot: 0, N: 4}, {Slot: 1, N: 2}}})
		nextEvent[node.RowsStored](t, b.events)
		if sums, damaged := b.store.Get(kvStage, 16, []index.Run{{Slot: 0, N: 4}, {Slot: 2, At: 1, N: 2}}, got); len(sums) != 4 || !damaged {
			t.Errorf("%d positions of a slot in use and a freed one, damaged %v", len(sums), damaged)
		}
		if n := b.buffers.Used(); n != 0 {
			t.Errorf("%d bytes of buffers in use", n)
		}
	})
}

// TestKeeperFindsDamage flips each bit of a piece's body on the way.
func TestKeeperFindsDamage(t *testing.T) {
	withKeeper(t, 1<<20, func(b *keeperBench) {
		r, body := someRows("s", 2)
		for bit := range 8 * len(body) {
			body[bit/8] ^= 1 << (bit % 8)
			b.deliver("n1", b.header(r), body)
			body[bit/8] ^= 1 << (bit % 8)
			a := nextEvent[node.RowsArrived](t, b.events)
			if got := b.seen(); a.Intact || !slices.Equal(got, []string{"damaged n1"}) {
				t.Fatalf("bit %d: intact %v, rejected %q", bit, a.Intact, got)
			}
			b.dropRows(node.DropRows{Piece: a.Piece})
		}
		if n := b.buffers.Used(); n != 0 {
			t.Errorf("%d bytes of buffers in use", n)
		}
	})
}

func TestKeeperRefuses(t *testing.T) {
	withKeeper(t, 64, func(b *keeperBench) { // one slot
		r, body := someRows("s", 2)
		odd := r
		odd.CellBytes, odd.Tokens, odd.Sums = 15, make([]kevlard.Token, 1), make([]uint64, 1)
		for name, c := range map[string]struct{ header, body []byte }{
			"no header":      {[]byte("x"), body},
			"another length": {b.header(r), body[1:]},
			"unequal rows":   {b.header(odd), body[:15]},
		} {
			b.deliver("n1", c.header, c.body)
			if got := b.seen(); !slices.Equal(got, []string{"format n1"}) {
				t.Errorf("%s: rejected %q", name, got)
			}
		}
		b.Received("n1", b.header(r), nil) // a piece without a body has no buffer
		if got := b.seen(); !slices.Equal(got, []string{"format n1"}) {
			t.Errorf("rejected %q", got)
		}
		var all [][]byte
		for {
			buf := b.Buffer("n2", nil, 1<<20)
			if buf == nil {
				break
			}
			all = append(all, buf)
		}
		if got := b.seen(); len(all) != maxArrivingBytes>>20 || !slices.Equal(got, []string{"full n2"}) {
			t.Errorf("%d buffers, rejected %q", len(all), got)
		}
		for _, buf := range all {
			b.Aborted("n2", nil, buf)
		}
		b.deliver("n1", b.header(r), body)
		a := nextEvent[node.RowsArrived](t, b.events)
		b.storeRows(node.StoreRows{Stage: kvStage, Piece: a.Piece, To: []index.Run{{Slot: 1, N: 2}}})
		if s := nextEvent[node.RowsStored](t, b.events); s.Piece != a.Piece || s.Failed == "" {
			t.Errorf("stored beyond the memory: %+v", s)
		}
		if got := b.seen(); !slices.Equal(got, []string{"memory"}) {
			t.Errorf("rejected %q", got)
		}
	})
}

// TestKeeperEndsWithAll stops while pieces wait for the machine, for their place,
// and while the loop takes no more.
func TestKeeperEndsWithAll(t *testing.T) {
	k := newKeeper(kvstream.NewStore(4, 1<<20), protocol.NewCodec(), nil, nil)
	r, body := someRows("s", 2)
	header, err := k.codec.EncodeRows(r)
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	var arrived []uint64
	k.post = func(ev node.Event) bool {
		if a, ok := ev.(node.RowsArrived); ok && !ended {
			arrived = append(arrived, a.Piece)
		}
		return !ended
	}
	deliver := func() { k.Received("n1", header, append(k.Buffer("n1", header, len(body))[:0], body...)) }
	deliver()
	deliver()
	k.storeRows(node.StoreRows{Stage: kvStage, Piece: arrived[0], To: []index.Run{{N: 2}}})
	ended = true
	deliver()
	if k.buffers.Used() == 0 {
		t.Error("nothing waits")
	}
	if err := k.close(); err != nil {
		t.Error(err)
	}
}
