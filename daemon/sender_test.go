package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// puppetMover does with pieces what the test says.
type puppetMover struct {
	send func(ctx context.Context, to kevlard.NodeID, header, body []byte) error
}

func (m puppetMover) Send(ctx context.Context, to kevlard.NodeID, _ mover.Lane, header []byte, body ...[]byte) error {
	return m.send(ctx, to, header, bytes.Join(body, nil))
}

func (puppetMover) Stats() mover.Stats { return mover.Stats{} }

func (puppetMover) Close() error { return nil }

type senderBench struct {
	*sender
	events chan node.Event
	bytes  int
	mu     sync.Mutex
	rejections
}

// withSender runs f beside a sender, in a synctest bubble, and wants every buffer
// back.
func withSender(t *testing.T, send func(ctx context.Context, to kevlard.NodeID, header, body []byte) error, f func(*testing.T, *senderBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &senderBench{events: make(chan node.Event, 1000)}
		store := kvstream.NewStore(4, 1<<20)
		b.sender = newSender(store, protocol.NewCodec(), func(ev node.Event) bool { b.events <- ev; return true }, b.add)
		b.mover = puppetMover{send}
		b.sent = func(_ kevlard.NodeID, n int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.bytes += n
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { b.run(ctx) })
		f(t, b)
		cancel()
		run.Wait()
		if n := b.buffers.Used(); n != 0 {
			t.Errorf("%d bytes of buffers in use", n)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// queue exports rows like an engine that was read.
func (b *senderBench) queue(t *testing.T, to kevlard.NodeID, r protocol.Rows, body []byte) {
	t.Helper()
	buf, err := b.room(to, len(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Sums = nil
	b.send(outgoing{to: to, rows: r, body: append(buf[:0], body...)})
}

// TestSenderKeepsTheOrderOfASession sends several sessions to two nodes, of which one
// takes nothing for a while.
func TestSenderKeepsTheOrderOfASession(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]kevlard.Pos{}
	codec := protocol.NewCodec()
	var open chan struct{} // of the bubble
	send := func(ctx context.Context, to kevlard.NodeID, header, body []byte) error {
		r, err := codec.DecodeRows(header, len(body))
		if err != nil {
			return err
		}
		if kvLayout.Whole(body, len(r.Tokens), r.Sums) != len(r.Tokens) {
			return errors.New("damaged")
		}
		if to == "slow" {
			select {
			case <-open:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		k := string(to) + " " + string(r.Session)
		got[k] = append(got[k], r.Pos)
		return nil
	}
	withSender(t, send, func(t *testing.T, b *senderBench) {
		open = make(chan struct{})
		total := 0
		for pos := range 5 {
			for _, to := range []kevlard.NodeID{"slow", "n1"} {
				for s := range 6 {
					r, body := someRows(kevlard.SessionID(fmt.Sprint("s", s)), 1+pos)
					r.Pos = pos
					b.queue(t, to, r, body)
					total += len(body)
				}
			}
		}
		synctest.Wait()
		mu.Lock()
		if len(got) != 6 {
			t.Errorf("%d sessions came through while one node is slow: %v", len(got), got)
		}
		mu.Unlock()
		close(open)
		synctest.Wait()
		for k, v := range got {
			if !slices.Equal(v, []kevlard.Pos{0, 1, 2, 3, 4}) {
				t.Errorf("%s: positions %v", k, v)
			}
		}
		if len(got) != 12 || len(b.events) != 0 || b.bytes != total {
			t.Errorf("%d sessions, %d events, %d of %d bytes", len(got), len(b.events), b.bytes, total)
		}
	})
}

// TestSenderBoundsWhatWaits fills the room of one peer, and then that of all.
func TestSenderBoundsWhatWaits(t *testing.T) {
	blocked := func(ctx context.Context, _ kevlard.NodeID, _, _ []byte) error {
		<-ctx.Done()
		return ctx.Err()
	}
	withSender(t, blocked, func(t *testing.T, b *senderBench) {
		const piece = 1 << 20
		fill := func(to kevlard.NodeID) (n int, err error) {
			for {
				buf, err := b.room(to, piece)
				if err != nil {
					return n, err
				}
				r, _ := someRows("s", 1)
				b.send(outgoing{to: to, rows: r, body: buf})
				n++
			}
		}
		for i := range maxLeavingBytes / maxLeavingPeer {
			if n, err := fill(kevlard.NodeID(fmt.Sprint("n", i))); n != maxLeavingPeer/piece || !strings.Contains(err.Error(), "wait already") {
				t.Errorf("node %d: %d pieces, %v", i, n, err)
			}
		}
		if n, err := fill("one more"); n != 0 || !strings.Contains(err.Error(), "no buffer") {
			t.Errorf("%d pieces more, %v", n, err)
		}
	})
}

func TestSenderTellsWhatIsLost(t *testing.T) {
	broken := func(context.Context, kevlard.NodeID, []byte, []byte) error { return mover.ErrUnreachable }
	withSender(t, broken, func(t *testing.T, b *senderBench) {
		r, body := someRows("s", 2)
		b.queue(t, "n1", r, body)
		u := nextEvent[node.RowsUnsent](t, b.events)
		if u.To != "n1" || u.Session != "s" || u.Stage != kvStage || !strings.Contains(u.Cause, mover.ErrUnreachable.Error()) {
			t.Errorf("unsent: %+v", u)
		}
	})
	withSender(t, broken, func(t *testing.T, b *senderBench) { // what another fetches
		r, body := someRows("s", 2)
		runs := []index.Run{{Slot: 1, N: 2}}
		if err := b.store.Put(kvStage, 16, runs, r.Sums, body); err != nil {
			t.Fatal(err)
		}
		r.Sums = nil
		b.sendStored(node.SendStored{ID: 7, To: "n1", Stage: kvStage, From: runs, Rows: r})
		nextEvent[node.StoredSent](t, b.events)
		u := nextEvent[node.StoredUnsent](t, b.events)
		if u.To != "n1" || u.Session != "s" || u.Fence != r.Fence || u.Stage != kvStage || u.From != r.Pos || u.Damaged || !strings.Contains(u.Cause, mover.ErrUnreachable.Error()) {
			t.Errorf("unsent: %+v", u)
		}
	})
	s := newSender(nil, nil, nil, nil)
	if _, err := s.room("n1", 1); err == nil {
		t.Error("a node without bulk address has room for what it can't send")
	}
}

// TestSenderSendsWhatIsStored wants stored rows to arrive with their sums, the block
// memory to be free before, and only what is whole to be sent.
func TestSenderSendsWhatIsStored(t *testing.T) {
	type piece struct {
		rows protocol.Rows
		body []byte
	}
	pieces := make(chan piece, 10)
	codec := protocol.NewCodec()
	send := func(_ context.Context, _ kevlard.NodeID, header, body []byte) error {
		r, err := codec.DecodeRows(header, len(body))
		pieces <- piece{r, body}
		return err
	}
	withSender(t, send, func(t *testing.T, b *senderBench) {
		r, body := someRows("s", 4)
		runs := []index.Run{{Slot: 1, N: 4}}
		if err := b.store.Put(kvStage, 16, runs, r.Sums, body); err != nil {
			t.Fatal(err)
		}
		ask := r
		ask.Sums = nil
		b.sendStored(node.SendStored{ID: 7, To: "n1", Stage: kvStage, From: runs, Rows: ask})
		if s := nextEvent[node.StoredSent](t, b.events); s.ID != 7 {
			t.Errorf("sent: %+v", s)
		}
		if p := <-pieces; !slices.Equal(p.rows.Sums, r.Sums) || !bytes.Equal(p.body, body) {
			t.Errorf("arrived: %+v", p.rows)
		}
		// The third position is another's now.
		sums := slices.Clone(r.Sums)
		sums[2]++
		if err := b.store.Put(kvStage, 16, runs, sums, body); err != nil {
			t.Fatal(err)
		}
		b.sendStored(node.SendStored{ID: 8, To: "n1", Stage: kvStage, From: runs, Rows: ask})
		nextEvent[node.StoredSent](t, b.events)
		if p := <-pieces; !slices.Equal(p.rows.Sums, r.Sums[:2]) || len(p.rows.Tokens) != 2 || kvLayout.Whole(p.body, 2, p.rows.Sums) != 2 {
			t.Errorf("of damaged rows arrived: %+v", p.rows)
		}
		if u := nextEvent[node.StoredUnsent](t, b.events); u.From != r.Pos+2 || !u.Damaged {
			t.Errorf("unsent: %+v, want what follows the two that are whole", u)
		}
		b.sendStored(node.SendStored{ID: 9, To: "n1", Stage: kvStage, From: []index.Run{{Slot: 9, N: 4}}, Rows: ask})
		nextEvent[node.StoredSent](t, b.events)
		if u := nextEvent[node.StoredUnsent](t, b.events); u.From != r.Pos || !u.Damaged {
			t.Errorf("unsent: %+v, want all", u)
		}
		synctest.Wait()
		if got := b.seen(); !slices.Equal(got, []string{"damaged", "damaged"}) || len(pieces) != 0 || len(b.events) != 0 {
			t.Errorf("rejected %q, %d pieces and %d events more", got, len(pieces), len(b.events))
		}
	})
}
