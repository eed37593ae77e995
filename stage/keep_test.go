package stage

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// keepingBench returns a stage that keeps what it computes, in blocks of 4 positions.
func keepingBench(t *testing.T, l Limits) *bench {
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
			all = b.m.Kept(b.now, x.Rows.Session, x.Rows.End(), stored, all)
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
	b := keepingBench(t, Limits{})
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
	b := keepingBench(t, Limits{BatchRows: 6})
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
	b := keepingBench(t, Limits{})
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
	b := keepingBench(t, Limits{})
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
	b := keepingBench(t, Limits{})
	first, second := tokens(60), append(tokens(42), 90, 91, 92)
	p := b.ask("a", 1, 60)
	b.prepare(p)
	q := b.ask("b", 1, 1)
	q.Tokens, q.Await = second, 44
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

// waiting is a prepare that waits for all that it can.
func (b *bench) waiting(id kevlard.SessionID, n int) protocol.Prepare {
	p := b.ask(id, 1, n)
	p.Await = n - 1
	return p
}

// until returns how long the stage sleeps if it has nothing to say to owners meanwhile.
func (b *bench) until(id kevlard.SessionID) kevlard.Instant { return b.m.slots[id].await.until }

// TestWaitsWhileTheOtherGetsOn: a session waits as long as the one that it waits for
// computes more, with pauses like those that it made before; but not for longer in all
// than it should take.
func TestWaitsWhileTheOtherGetsOn(t *testing.T) {
	b := keepingBench(t, Limits{BatchRows: 8})
	b.m.pace = pace{fixed: time.Millisecond, row: time.Millisecond, lessons: 100, largest: 8}
	b.prepare(b.waiting("s", 60))
	since := b.now
	b.send(item("s", 1, 0, 60, true, true))
	running := b.running()
	if _, ok := b.prepare(b.waiting("t", 60)); ok {
		t.Fatal("it does not wait")
	}
	for _, tc := range []struct{ at, want time.Duration }{
		{0, 400*time.Millisecond + 68*time.Millisecond},                                               // behind 60 rows, 8 in a batch
		{200 * time.Millisecond, 200*time.Millisecond + 3*200*time.Millisecond + 59*time.Millisecond}, // three such pauses
		{500 * time.Millisecond, 500*time.Millisecond + 3*300*time.Millisecond + 50*time.Millisecond},
		{2500 * time.Millisecond, 1600*time.Millisecond + 16*68*time.Millisecond}, // in all
	} {
		if tc.at > 0 {
			b.now = since.Add(tc.at - time.Millisecond) // finish takes one
			b.m.batch.overdue = kevlard.Never
			b.finish(running)
			b.m.pace = pace{fixed: time.Millisecond, row: time.Millisecond, lessons: 100, largest: 8}
			b.m.awake(b.now, nil)
			running = Batch{ID: b.m.batch.id, Parts: b.m.describeBatch(b.m.batch).Parts}
		}
		if at := b.until("t"); at != since.Add(tc.want) {
			t.Errorf("with the other further after %v it waits for %v in all, want %v", tc.at, at.Sub(since), tc.want)
		}
	}
}

// TestWaitingEnds: nobody waits for ever, and sessions wait for what is still to be
// computed only where their owner says so.
func TestWaitingEnds(t *testing.T) {
	for _, tc := range []struct {
		name    string
		start   bool // the first has started
		await   kevlard.Pos
		recover bool
		want    time.Duration
	}{
		{"for one that is being prepared", false, 59, false, 1200 * time.Millisecond},
		{"for one that has started", true, 59, false, 400*time.Millisecond + 60*warmUpRow},
		{"at a later stage", true, 0, false, 0},
		{"for less than is worth it", true, 31, false, 0},
		{"a session under way", false, 59, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := keepingBench(t, Limits{BatchRows: 8})
			b.prepare(b.waiting("s", 60))
			if tc.start {
				b.send(item("s", 1, 0, 60, true, true))
				b.m.batch.overdue = kevlard.Never
			}
			p := b.ask("t", 1, 60)
			p.Recovery, p.Await = tc.recover, tc.await
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
			words := 0
			for b.m.slots["t"].await != nil {
				b.now = b.m.Deadline()
				b.out = b.m.Wake(b.now, 0, nil)
				if a, to := replies[protocol.Prepared](b); len(a) == 1 && a[0].Waits {
					words++
					if to[0] != "owner" {
						t.Errorf("%s hears that it waits", to[0])
					}
				} else if len(a) != 1 || a[0].Have != 0 {
					t.Fatalf("answers %+v", a)
				}
			}
			if took := b.now.Sub(since); took != tc.want {
				t.Errorf("it waits for %v, want %v", took, tc.want)
			}
			if words != int(tc.want/awaitWord) {
				t.Errorf("its owner hears %d times that it waits for %v", words, tc.want)
			}
		})
	}
}

// TestNextOneComputes: when the session that others wait for is gone, however that comes,
// one of them goes on at once with what it has left, and the others wait for that one.
func TestNextOneComputes(t *testing.T) {
	for name, gone := range map[string]func(b *bench){
		"closed": func(b *bench) {
			b.out = b.m.Close(b.now, "dying", protocol.Close{Session: "s", Fence: fence(1), Lo: 2}, nil)
		},
		"owner dead": func(b *bench) { b.out = b.m.OwnerGone(b.now, "dying", "o.1", true, nil) },
		"lease": func(b *bench) {
			b.m.slots["s"].lease = b.now
			b.out = b.m.Expire(b.now, nil)
		},
		"prepared anew, with other tokens": func(b *bench) {
			p := b.ask("s", 2, 60)
			p.Tokens = []kevlard.Token{99, 98, 97}
			b.out = b.m.Prepare(b.now, "dying", p, true, false, nil)
			b.out = b.m.awake(b.now, b.out)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := keepingBench(t, Limits{BatchRows: 8})
			b.out = b.m.Prepare(b.now, "dying", b.ask("s", 1, 60), true, false, nil)
			b.send(item("s", 1, 0, 60, true, true))
			for _, id := range []kevlard.SessionID{"t", "u", "r"} {
				if _, ok := b.prepare(b.waiting(id, 60)); ok {
					t.Fatalf("%s does not wait", id)
				}
			}
			gone(b)
			if a, _ := replies[protocol.Prepared](b); len(slices.DeleteFunc(a, func(a protocol.Prepared) bool { return a.Session == "s" })) != 1 || a[len(a)-1].Session != "t" {
				t.Fatalf("answers %+v, want one to t, which came first", a)
			}
			for _, id := range []kevlard.SessionID{"u", "r"} {
				if a := b.m.slots[id].await; a == nil || a.donor.id != "t" {
					t.Errorf("%s waits for %+v", id, a)
				}
			}
		})
	}
}

// TestAskedAgain: a stage that has answered is asked again, to wait for what another
// session computes meanwhile.
func TestAskedAgain(t *testing.T) {
	b := keepingBench(t, Limits{})
	p := b.ask("t", 1, 60)
	if a, ok := b.prepare(p); !ok || a.Have != 0 {
		t.Fatalf("answer %v %+v", ok, a)
	}
	b.mustPrepare("s", 1, 60)
	b.send(item("s", 1, 0, 60, true, true))
	p.Await = 48
	if a, ok := b.prepare(p); ok {
		t.Fatalf("it does not wait: %+v", a)
	}
	running := b.m.describeBatch(b.m.batch)
	b.finish(running)
	b.store()
	load := only[Load](b)
	if len(load) != 1 || load[0].Session != "t" {
		t.Fatalf("effects %+v, want a load", b.out)
	}
	b.out = b.m.Loaded(b.now, 1, load[0].ID, 59, false, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 59 {
		t.Errorf("answers %+v", a)
	}
	if a, ok := b.prepare(p); !ok || a.Have != 59 {
		t.Errorf("asked a third time: %v %+v", ok, a)
	}
}

// TestUnkeptIsTriedAgain: what found no room is kept later, and until then nobody waits
// for it.
func TestUnkeptIsTriedAgain(t *testing.T) {
	for _, how := range []string{"no room", "unreadable"} {
		t.Run(how, func(t *testing.T) {
			b := keepingBench(t, Limits{})
			b.mustPrepare("s", 1, 60)
			b.send(item("s", 1, 0, 20, true, false))
			b.finish(b.running())
			x := only[Export](b)
			if len(x) != 1 {
				t.Fatalf("exports %+v", x)
			}
			if how == "unreadable" {
				b.out = b.m.Exported(b.now, 1, x[0].ID, how, nil)
			} else {
				b.out = b.m.Exported(b.now, 1, x[0].ID, "", nil)
				b.out = b.m.Kept(b.now, "s", x[0].Rows.End(), false, nil)
			}
			if len(only[Export](b)) != 0 {
				t.Fatalf("it is tried again at once: %+v", b.out)
			}
			if _, ok := b.prepare(b.waiting("t", 60)); !ok {
				t.Fatal("a session waits for what is not kept")
			}
			b.closeIt("t")
			b.pass(awaitPause)
			b.send(item("s", 1, 20, 40, false, true))
			b.finish(b.running())
			if got := b.store(); len(got) == 0 || got[0] != [2]int{0, 60} {
				t.Errorf("kept %v, want all from the beginning on", got)
			}
		})
	}
}

// TestEvictedIsKeptAgain: a session waits for cells that were kept and evicted since only
// while they are kept again.
func TestEvictedIsKeptAgain(t *testing.T) {
	b := keepingBench(t, Limits{})
	b.mustPrepare("s", 1, 60)
	b.send(item("s", 1, 0, 60, true, true))
	b.finish(b.running())
	b.store()
	b.m.cfg.Copies.Shrink(0)
	b.m.cfg.Copies.Shrink(1 << 20)
	if _, ok := b.prepare(b.waiting("t", 60)); ok {
		t.Fatal("it computes what another has in its cells")
	}
	if got := b.store(); len(got) == 0 || got[0] != [2]int{0, 60} {
		t.Errorf("kept %v", got)
	}
	if l := only[Load](b); len(l) != 1 || l[0].Session != "t" {
		t.Errorf("effects %+v, want a load", b.out)
	}
}

// TestHolds tells what is here or will be soon.
func TestHolds(t *testing.T) {
	b := keepingBench(t, Limits{})
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
