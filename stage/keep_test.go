package stage

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// keeping returns a stage that keeps what it computes, in blocks of 4 positions.
func keeping(t *testing.T, l Limits) *bench {
	t.Helper()
	b := newBench(t, false, l)
	b.m.cfg.Keep = true
	return b
}

// store does what the node and its shell do with the exports of the last call that stay
// here, and with those that follow, and returns where each began and ended.
func (b *bench) store() (kept [][2]int) {
	b.Helper()
	for {
		var all []Effect
		exports := only[Export](b)
		exports = slices.DeleteFunc(exports, func(x Export) bool { return x.To != "" })
		if len(exports) == 0 {
			return kept
		}
		for _, x := range exports {
			kept = append(kept, [2]int{x.Rows.Pos, x.Rows.End()})
			all = b.m.Exported(b.now, 1, x.ID, "", all)
			x.Rows.Sums = make([]uint64, len(x.Rows.Tokens))
			stored := b.m.cfg.Copies.Keep(x.ID+1000, x.Rows) != nil
			if stored {
				b.m.cfg.Copies.Stored(b.now, x.ID+1000)
			}
			all = b.m.Kept(b.now, stored, all)
		}
		b.out = all
	}
}

func (b *bench) closeIt(id kevlard.SessionID) {
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: id, Fence: fence(1), Lo: 2}, nil)
}

// has loads what a session finds, and returns how much that is.
func (b *bench) has(id kevlard.SessionID, salt string, ts []kevlard.Token) int {
	b.Helper()
	p := b.ask(id, 1, 1)
	p.Tokens, p.Salt = ts, salt
	a, ok := b.prepare(p)
	if l := only[Load](b); len(l) == 1 {
		n := 0
		for _, r := range l[0].From {
			n += r.N
		}
		b.out = b.m.Loaded(b.now, 1, l[0].ID, n, false, nil)
		if as, _ := replies[protocol.Prepared](b); len(as) == 1 {
			a, ok = as[0], true
		}
	}
	if !ok || a.Refusal != "" {
		b.Fatalf("prepare %s: %v %+v, effects %+v", id, ok, a, b.out)
	}
	return a.Have
}

// TestKeepsWhatItComputed computes a session of 18 positions: full blocks are kept as
// they are finished, the open one at the end, and then the cells are free.
func TestKeepsWhatItComputed(t *testing.T) {
	b := keeping(t, Limits{})
	b.mustPrepare("s", 1, 18)
	b.send(item("s", 1, 0, 10, true, false))
	b.finish(b.running())
	if got := b.store(); !slices.Equal(got, [][2]int{{0, 8}}) {
		t.Fatalf("kept %v", got)
	}
	b.send(item("s", 1, 10, 8, false, true))
	b.finish(b.running())
	if got := b.store(); !slices.Equal(got, [][2]int{{8, 16}}) {
		t.Fatalf("kept %v", got)
	}
	b.closeIt("s")
	if b.m.FreeCells() == 1024 {
		t.Error("the cells are free before their rows are read")
	}
	if got := b.store(); !slices.Equal(got, [][2]int{{16, 18}}) {
		t.Fatalf("kept %v", got)
	}
	if b.m.FreeCells() != 1024 || b.m.Sessions() != 0 || b.m.Transfers() != 0 {
		t.Errorf("%d cells free, %d sessions, %d transfers", b.m.FreeCells(), b.m.Sessions(), b.m.Transfers())
	}
	for _, tc := range []struct {
		id, salt string
		tokens   []kevlard.Token
		want     int
	}{
		{"next turn", "", tokens(40), 18},
		{"same", "", tokens(18), 17},
		{"forks", "", append(tokens(6), 90, 91, 92), 6},
		{"other tenant", "x", tokens(40), 0},
		{"other text", "", []kevlard.Token{9, 9, 9}, 0},
	} {
		if got := b.has(kevlard.SessionID(tc.id), tc.salt, tc.tokens); got != tc.want {
			t.Errorf("%s: has %d, want %d", tc.id, got, tc.want)
		}
	}
}

// TestCancelledWhileComputing keeps what the running batch computes, and nothing that
// was only queued.
func TestCancelledWhileComputing(t *testing.T) {
	b := keeping(t, Limits{BatchRows: 6})
	b.mustPrepare("s", 1, 18)
	b.send(item("s", 1, 0, 18, true, true))
	x := b.running()
	b.closeIt("s")
	if len(only[Export](b)) != 0 {
		t.Fatalf("cells are read while they are written: %+v", b.out)
	}
	b.finish(x)
	if got := b.store(); !slices.Equal(got, [][2]int{{0, 6}}) {
		t.Errorf("kept %v", got)
	}
	if b.m.FreeCells() != 1024 {
		t.Errorf("%d cells free", b.m.FreeCells())
	}
}

// TestStandbyGoesFirst: what is kept here waits for what a standby must have.
func TestStandbyGoesFirst(t *testing.T) {
	b := keeping(t, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	b.finish(b.running())
	x := only[Export](b)
	if len(x) != 1 || x[0].To != "spare" {
		t.Fatalf("exports %+v", x)
	}
	b.out = b.m.Exported(b.now, 1, x[0].ID, "", nil)
	if got := b.store(); !slices.Equal(got, [][2]int{{0, 20}}) {
		t.Errorf("kept %v", got)
	}
}

// TestEngineGoneWhileKeeping gives everything up.
func TestEngineGoneWhileKeeping(t *testing.T) {
	b := keeping(t, Limits{})
	b.mustPrepare("s", 1, 18)
	b.send(item("s", 1, 0, 18, true, true))
	b.finish(b.running())
	b.closeIt("s")
	b.out = b.m.EngineExited(b.now, 1, false, "killed", nil)
	if len(b.m.leaving) != 0 || b.m.Transfers() != 0 {
		t.Errorf("%d sessions are leaving, %d transfers", len(b.m.leaving), b.m.Transfers())
	}
}

// TestTwoBeginAlike: the second waits for what the first computes, and computes its own
// part only.
func TestTwoBeginAlike(t *testing.T) {
	b := keeping(t, Limits{})
	first, second := tokens(60), append(tokens(42), 90, 91, 92)
	p := b.ask("a", 1, 60)
	b.prepare(p)
	q := b.ask("b", 1, 1)
	q.Tokens = second
	if a, ok := b.prepare(q); ok {
		t.Fatalf("answered before the first has computed: %+v", a)
	}
	b.send(protocol.Item{Session: "a", Fence: fence(1), Lo: 2, Tokens: first[:8], Start: true, Width: width, Rows: make([]byte, 8*width)})
	b.finish(b.running())
	b.store()
	if a, _ := replies[protocol.Prepared](b); len(a) != 0 || len(only[Load](b)) != 0 {
		t.Fatalf("it goes on early: %+v", b.out)
	}
	b.send(protocol.Item{Session: "a", Fence: fence(1), Lo: 2, Pos: 8, Tokens: first[8:], Sample: true, Width: width, Rows: make([]byte, 52*width)})
	b.finish(b.running())
	b.store()
	load := only[Load](b)
	if len(load) != 1 || load[0].Session != "b" {
		t.Fatalf("effects %+v, want a load", b.out)
	}
	b.out = b.m.Loaded(b.now, 1, load[0].ID, 42, false, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 42 {
		t.Errorf("answers %+v, want 42", a)
	}
}

// TestWaitsWhileTheOtherGetsOn: a session waits for longer when the one it waits for has
// computed more meanwhile, but 2 ms more for each of its tokens in all.
func TestWaitsWhileTheOtherGetsOn(t *testing.T) {
	b := keeping(t, Limits{BatchRows: 8})
	b.mustPrepare("s", 1, 60)
	b.send(item("s", 1, 0, 60, true, true))
	first, since := b.running(), b.now
	if _, ok := b.prepare(b.ask("t", 1, 60)); ok {
		t.Fatal("it does not wait")
	}
	for _, tc := range []struct{ at, want time.Duration }{
		{50 * time.Millisecond, 450 * time.Millisecond},
		{300 * time.Millisecond, 520 * time.Millisecond},
	} {
		b.now = since.Add(tc.at - time.Millisecond) // finish takes one
		b.finish(first)
		first = b.running()
		b.m.batch.overdue = kevlard.Never
		if at := b.m.Deadline(); at != since.Add(tc.want) {
			t.Errorf("with the other further after %v it waits for %v in all, want %v", tc.at, at.Sub(since), tc.want)
		}
	}
}

// TestWaitingEnds: nobody waits for ever, and those that wait for each other at two
// stages not even long.
func TestWaitingEnds(t *testing.T) {
	for _, tc := range []struct {
		name    string
		id      kevlard.SessionID // of the second
		start   bool              // the first has started
		recover bool
		want    time.Duration
	}{
		{"for one that is being prepared", "t", false, false, 400 * time.Millisecond},
		{"for one with a greater id", "r", false, false, 50 * time.Millisecond},
		{"for one with a greater id that has started", "r", true, false, 400 * time.Millisecond},
		{"a session under way", "t", false, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := keeping(t, Limits{BatchRows: 8})
			b.mustPrepare("s", 1, 60)
			if tc.start {
				b.send(item("s", 1, 0, 60, true, true))
			}
			p := b.ask(tc.id, 1, 60)
			p.Recovery = tc.recover
			since := b.now
			_, ok := b.prepare(p)
			if tc.want == 0 {
				if !ok {
					t.Fatal("it waits")
				}
				return
			}
			if ok {
				t.Fatal("it does not wait")
			}
			if tc.start {
				b.m.batch.overdue = kevlard.Never
			}
			if at := b.m.Deadline(); at != since.Add(tc.want) {
				t.Fatalf("it waits for %v, want %v", at.Sub(since), tc.want)
			}
			b.now = b.m.Deadline()
			b.out = b.m.Wake(b.now, 0, nil)
			if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 0 {
				t.Errorf("answers %+v", a)
			}
		})
	}
}

// TestHolds tells what is here or will be soon.
func TestHolds(t *testing.T) {
	b := keeping(t, Limits{})
	want := func(what, salt string, ts []kevlard.Token, n int) {
		t.Helper()
		if got, class := b.m.Holds(salt, ts); got != n || class != "toy" {
			t.Errorf("%s: holds %d of class %q, want %d", what, got, class, n)
		}
	}
	want("nothing", "", tokens(20), 0)
	b.mustPrepare("s", 1, 18)
	want("a session that is prepared", "", tokens(20), 18)
	want("another tenant's", "x", tokens(20), 0)
	b.send(item("s", 1, 0, 18, true, true))
	b.finish(b.running())
	b.store()
	b.closeIt("s")
	want("one that leaves", "", tokens(20), 18)
	b.store()
	want("blocks", "", tokens(20), 18)
	want("a part of them", "", append(tokens(7), 90), 7)
}
