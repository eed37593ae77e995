package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// cellBench is a bench whose engine has cells, a block store, and a mover that keeps
// what it gets.
type cellBench struct {
	*bench
	cells []byte // of the engine, position after position
	sent  [][]byte
	rejections
}

const cellBytes = 16 // of bench's stage: two layers, rows of 4 bytes

// each pairs the rows of n cells from cell on with their places in a body.
func (c *cellBench) each(cell, n int, f func(cell, body int)) {
	for i := range n {
		for r := range 4 {
			f((cell+i)*cellBytes+4*r, 4*(r*n+i))
		}
	}
}

func withCells(t *testing.T, f func(*cellBench)) {
	t.Helper()
	withBench(t, nil, func(b *bench) {
		c := &cellBench{bench: b, cells: make([]byte, 64*cellBytes)}
		for i := range c.cells {
			c.cells[i] = byte(i * 3)
		}
		store := kvstream.NewStore(4, 1<<20)
		send := func(_ context.Context, _ kevlard.NodeID, _, body []byte) error {
			c.sent = append(c.sent, body)
			return nil
		}
		b.copies = &copies{store: store, sender: newSender(store, protocol.NewCodec(), b.post, c.add)}
		b.copies.sender.mover = puppetMover{send}
		b.copies.sender.sent = func(kevlard.NodeID, int) {}
		b.reject = c.add
		ctx, cancel := context.WithCancel(b.t.Context())
		ended := make(chan struct{})
		go func() { b.copies.sender.run(ctx); close(ended) }()
		next[node.EngineReady](b)
		f(c)
		cancel()
		<-ended
		if n := b.copies.sender.buffers.Used(); n != 0 {
			b.t.Errorf("%d bytes of buffers in use", n)
		}
		if err := store.Close(); err != nil {
			b.t.Error(err)
		}
	})
}

func (c *cellBench) read(_ context.Context, cell, n int, dst []byte) error {
	c.each(cell, n, func(at, body int) { copy(dst[body:body+4], c.cells[at:]) })
	return nil
}

func (c *cellBench) write(_ context.Context, cell, n int, src []byte) error {
	c.each(cell, n, func(at, body int) { copy(c.cells[at:at+4], src[body:]) })
	return nil
}

func (c *cellBench) exportOf(id uint64, cell, n int) node.Export {
	return node.Export{Stage: c.stage, Run: 1, ID: id, Cell: cell, To: "n1", Rows: protocol.Rows{
		Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Stage: c.stage, Class: "toy", CellBytes: cellBytes, Tokens: make([]kevlard.Token, n),
	}}
}

func TestExportReadsAndSends(t *testing.T) {
	withCells(t, func(c *cellBench) {
		c.puppet.cells = c.read
		c.export(c.exportOf(5, 10, 3))
		if x := next[node.Exported](c.bench); x.ID != 5 || x.Run != 1 || x.Failed != "" {
			c.t.Errorf("exported: %+v", x)
		}
		synctest.Wait()
		want := make([]byte, 3*cellBytes)
		_ = c.read(c.t.Context(), 10, 3, want) // never fails
		if len(c.sent) != 1 || !slices.Equal(c.sent[0], want) {
			c.t.Errorf("sent %x, want %x", c.sent, want)
		}
		c.puppet.cells = func(context.Context, int, int, []byte) error { return errors.New("no such cells") }
		c.export(c.exportOf(6, 10, 3))
		if x := next[node.Exported](c.bench); x.ID != 6 || !strings.Contains(x.Failed, "no such cells") {
			c.t.Errorf("exported: %+v", x)
		}
		c.copies.sender.mover = nil
		c.export(c.exportOf(7, 10, 3))
		if x := next[node.Exported](c.bench); x.ID != 7 || x.Failed != "" {
			c.t.Errorf("exported: %+v", x)
		}
		if u := next[node.RowsUnsent](c.bench); u.To != "n1" || u.Session != "s" || u.Stage != c.stage {
			c.t.Errorf("unsent: %+v", u)
		}
	})
}

// TestLoadsFirst freezes an engine under an export, and wants the loads that came
// later before the exports that came earlier.
func TestLoadsFirst(t *testing.T) {
	withCells(t, func(c *cellBench) {
		thaw := make(chan struct{})
		c.puppet.cells = func(_ context.Context, _, _ int, b []byte) error {
			<-thaw
			return nil
		}
		c.export(c.exportOf(1, 0, 1))
		synctest.Wait()
		c.export(c.exportOf(2, 1, 1))
		c.export(c.exportOf(3, 2, 1))
		c.load(node.Load{Stage: c.stage, Run: 1, ID: 4, From: []index.Run{{Slot: 9, N: 1}}})
		close(thaw)
		order := []uint64{next[node.Exported](c.bench).ID, next[node.Loaded](c.bench).ID, next[node.Exported](c.bench).ID, next[node.Exported](c.bench).ID}
		if !slices.Equal(order, []uint64{1, 4, 2, 3}) {
			c.t.Errorf("done in the order %v", order)
		}
	})
}

// TestLoadStopsAtDamage stores positions in several blocks, damages the sum of one,
// and wants those before it in the engine's cells and no other touched.
func TestLoadStopsAtDamage(t *testing.T) {
	withCells(t, func(c *cellBench) {
		c.puppet.cells = c.write
		r, body := someRows("s", 10)
		runs := []index.Run{{Slot: 3, At: 1, N: 3}, {Slot: 0, At: 0, N: 4}, {Slot: 1, At: 0, N: 3}}
		for bad := range 11 {
			sums := slices.Clone(r.Sums)
			if bad < 10 {
				sums[bad] ^= 1
			}
			if err := c.copies.store.Put(c.stage, cellBytes, runs, sums, body); err != nil {
				c.t.Fatal(err)
			}
			before := slices.Clone(c.cells)
			c.load(node.Load{Stage: c.stage, Run: 1, ID: uint64(bad), Cell: 20, From: runs})
			l := next[node.Loaded](c.bench)
			if l.ID != uint64(bad) || l.N != bad && bad < 10 || l.Damaged != (bad < 10) {
				c.t.Errorf("position %d is damaged: %+v", bad, l)
			}
			for i := range min(bad, 10) {
				for row := range 4 {
					copy(before[(20+i)*cellBytes+4*row:], body[4*(row*10+i):][:4])
				}
			}
			if !slices.Equal(c.cells, before) {
				c.t.Errorf("position %d is damaged: the cells are not as they should be", bad)
			}
		}
		if got := c.seen(); len(got) != 10 || got[0] != "damaged" {
			c.t.Errorf("rejected %q", got)
		}
		c.puppet.cells = func(context.Context, int, int, []byte) error { return errors.New("gone") }
		c.load(node.Load{Stage: c.stage, Run: 1, ID: 99, Cell: 20, From: runs})
		if l := next[node.Loaded](c.bench); l.N != 0 || l.Damaged {
			c.t.Errorf("an engine that does not take it: %+v", l)
		}
	})
}

// TestLoadInPieces loads cells of which two fit into a piece.
func TestLoadInPieces(t *testing.T) {
	const size = loadPiece / 2
	l := kvstream.Layout{Runs: 4, Row: size / 4}
	body := make([]byte, 5*size)
	for i := range body {
		body[i] = byte(i*7 + i>>11)
	}
	store := kvstream.NewStore(4, 64<<20)
	runs := []index.Run{{Slot: 0, At: 3, N: 1}, {Slot: 2, At: 0, N: 4}}
	if err := store.Put(kvStage, size, runs, l.Sums(nil, body, 5), body); err != nil {
		t.Fatal(err)
	}
	var events []node.Event
	e := &engines{copies: &copies{store: store}, post: func(ev node.Event) bool { events = append(events, ev); return true }}
	var at []int
	p := &puppet{cells: func(_ context.Context, cell, n int, b []byte) error {
		at = append(at, cell, n)
		for r := range l.Runs {
			for i := range n {
				if !slices.Equal(b[(r*n+i)*l.Row:][:l.Row], body[(r*5+cell-30+i)*l.Row:][:l.Row]) {
					t.Errorf("row %d of cell %d is another's", r, cell+i)
				}
			}
		}
		return nil
	}}
	e.fill(t.Context(), p, size, node.Load{Stage: kvStage, Run: 1, ID: 2, Cell: 30, From: runs}, nil)
	if !slices.Equal(at, []int{30, 2, 32, 2, 34, 1}) {
		t.Errorf("cells and counts %v", at)
	}
	if len(events) != 1 || events[0] != (node.Loaded{Stage: kvStage, Run: 1, ID: 2, N: 5}) {
		t.Errorf("events %+v", events)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// TestTransfersEndWithTheEngine kills an engine under a read; what waits for it is
// dropped, and what comes later too.
func TestTransfersEndWithTheEngine(t *testing.T) {
	withCells(t, func(c *cellBench) {
		c.puppet.cells = func(ctx context.Context, _, _ int, _ []byte) error {
			select {
			case <-c.puppet.done:
			case <-ctx.Done():
			}
			return errors.New("the engine is dead")
		}
		c.export(c.exportOf(1, 0, 1))
		c.export(c.exportOf(2, 0, 1))
		synctest.Wait()
		c.puppet.die(EngineExit{Reason: "signal: killed"})
		synctest.Wait()
		exported := 0
		for len(c.events) > 0 {
			switch ev := (<-c.events).(type) {
			case node.Exported:
				exported++
				if ev.Failed == "" {
					c.t.Error("a dead engine was read")
				}
			case node.EngineExited:
			default:
				c.t.Errorf("event %T", ev)
			}
		}
		if exported > 1 {
			c.t.Errorf("%d exports of a dead engine", exported)
		}
		c.export(c.exportOf(3, 0, 1))
		c.load(node.Load{Stage: c.stage, Run: 1, ID: 4})
		synctest.Wait()
		if len(c.events) != 0 {
			c.t.Errorf("%d events of a dead engine", len(c.events))
		}
	})
}

func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) index.Run {
			return index.Run{Slot: rapid.IntRange(0, 9).Draw(t, "slot"), At: rapid.IntRange(0, 9).Draw(t, "at"), N: rapid.IntRange(1, 9).Draw(t, "n")}
		}), 1, 8).Draw(t, "runs")
		type position struct{ slot, at int }
		flat := func(runs []index.Run) (out []position) {
			for _, r := range runs {
				for i := range r.N {
					out = append(out, position{r.Slot, r.At + i})
				}
			}
			return out
		}
		want, n := flat(runs), rapid.IntRange(1, 20).Draw(t, "most")
		first, got, rest := split(runs, n)
		if f := flat(first); len(f) != got || got != min(n, len(want)) || !slices.Equal(append(f, flat(rest)...), want) {
			t.Fatalf("split after %d: %v (%d), %v", n, first, got, rest)
		}
	})
}
