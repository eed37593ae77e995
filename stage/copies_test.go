package stage

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// keep stores a copy of the leading n of tokens for a session in the node's index.
func (b *bench) keep(id kevlard.SessionID, salt string, ts []kevlard.Token, n int) {
	b.Helper()
	x := b.m.cfg.Copies
	x.Offer(b.now, "source", protocol.Offer{
		Session: id, Fence: fence(1), Owner: "owner", OwnerBoot: "o.1", Stage: b.m.Key(), Class: "toy", CellBytes: cellBytes, Salt: salt,
		Tokens: ts, Positions: 100,
	})
	if runs, _ := x.Arrived(b.now, "source", 1, protocol.Rows{
		Session: id, Fence: fence(1), Stage: b.m.Key(), Class: "toy", CellBytes: cellBytes, Tokens: ts[:n], Sums: make([]uint64, n),
	}, true); runs == nil {
		b.Fatal("the index does not take the rows")
	}
	if a := x.Stored(b.now, 1); a == nil || a.Message.Through != n {
		b.Fatalf("stored: %+v, want %d positions", a, n)
	}
}

// withStandby prepares a session of n tokens with a standby that has nothing yet.
func (b *bench) withStandby(id kevlard.SessionID, n int) {
	b.Helper()
	p := b.ask(id, 1, n)
	p.Standby = "spare"
	b.prepare(p)
	if offers, to := replies[protocol.Offer](b); len(offers) != 1 || to[0] != "spare" || len(offers[0].Tokens) != n {
		b.Fatalf("offers %+v to %v", offers, to)
	}
	b.stored(id, 0)
}

func (b *bench) stored(id kevlard.SessionID, through int) {
	b.out = b.m.Stored(b.now, "spare", protocol.Stored{Session: id, Fence: fence(1), Stage: b.m.Key(), Through: through}, nil)
}

func TestRowsGoToTheStandby(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	b.finish(b.running())
	x := only[Export](b)
	if len(x) != 1 || x[0].Rows.Pos != 0 || !slices.Equal(x[0].Rows.Tokens, tokens(20)) || x[0].Cell != b.m.slots["s"].cells.cell || x[0].To != "spare" {
		t.Fatalf("exports %+v", x)
	}
	if f := only[Forward](b); len(f) != 1 || !slices.Equal(f[0].Frame.Items[0].Marks, []kevlard.Pos{0}) {
		t.Errorf("forwarded %+v, want a watermark of 0", f)
	}
	b.out = b.m.Exported(b.now, 1, x[0].ID, "", nil)
	if len(only[Export](b)) != 0 {
		t.Errorf("sent again: %+v", b.out)
	}
	b.stored("s", 20)
	b.send(item("s", 1, 20, 1, false, true))
	b.finish(b.running())
	if f := only[Forward](b); len(f) != 1 || !slices.Equal(f[0].Frame.Items[0].Marks, []kevlard.Pos{20}) {
		t.Errorf("forwarded %+v, want a watermark of 20", f)
	}
	if len(only[Export](b)) != 0 {
		t.Errorf("one position is sent at once: %+v", b.out)
	}
	b.pass(time.Second)
	b.out = b.m.Wake(b.now, 0, nil)
	if x := only[Export](b); len(x) != 1 || x[0].Rows.Pos != 20 || len(x[0].Rows.Tokens) != 1 {
		t.Errorf("after the delay: %+v", b.out)
	}
}

func TestCellsBeingReadAreNotReused(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	b.finish(b.running())
	x := only[Export](b)[0]
	free := b.m.FreeCells()
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(1), Lo: 2}, nil)
	if b.m.FreeCells() != free {
		t.Error("cells were freed while they are read")
	}
	b.out = b.m.Exported(b.now, 1, x.ID, "", nil)
	if b.m.FreeCells() != 1024 {
		t.Errorf("%d cells free after the read, want all", b.m.FreeCells())
	}
}

func TestPrepareWaitsForTheRead(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	b.finish(b.running())
	x := only[Export](b)[0]
	b.prepare(b.ask("s", 2, 20))
	if a, _ := replies[protocol.Prepared](b); len(a) != 0 {
		t.Fatalf("answered while its cells are read: %+v", a)
	}
	b.out = b.m.Exported(b.now, 1, x.ID, "", nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 20 || a[0].Fence != fence(2) {
		t.Errorf("answer %+v", a)
	}
}

// TestRowsGoTogether: when the rows of one session have waited for long enough, those of
// the others go with them, and all begin to wait anew.
func TestRowsGoTogether(t *testing.T) {
	b := newBench(t, false, Limits{})
	delay := b.m.cfg.Timing.Replicate
	for _, id := range []kevlard.SessionID{"a", "b"} {
		b.withStandby(id, 2)
		b.send(item(id, 1, 0, 2, true, true))
		b.finish(b.running())
		b.pass(delay / 2)
	}
	b.out = b.m.Wake(b.now, 0, nil)
	x := only[Export](b)
	if len(x) != 2 || x[0].Rows.Session != "a" || x[1].Rows.Session != "b" {
		t.Fatalf("exports %+v, want those of both", x)
	}
	for i, id := range []kevlard.SessionID{"a", "b"} {
		b.out = b.m.Exported(b.now, 1, x[i].ID, "", nil)
		b.stored(id, 2)
	}
	b.send(item("b", 1, 2, 1, false, true))
	b.finish(b.running())
	if len(only[Export](b)) != 0 {
		t.Errorf("one position is sent at once: %+v", b.out)
	}
	if at := b.m.Deadline(); at != b.now.Add(delay) {
		t.Errorf("the next are due in %v, want %v", at.Sub(b.now), delay)
	}
}

// TestWorkWaitsForTheRead: all that waits may be work on cells that are being read,
// and what comes after it must not overtake.
func TestWorkWaitsForTheRead(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	x := b.running()
	p := b.ask("s", 2, 20)
	p.Standby = "spare"
	b.prepare(p) // answered when the batch ends, and the rows are exported then
	b.finish(x)
	exports := only[Export](b)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 20 || len(exports) != 1 {
		t.Fatalf("answer %+v, exports %+v", a, exports)
	}
	for _, it := range []protocol.Item{item("s", 2, 10, 10, true, false), item("s", 2, 20, 5, false, true)} {
		b.send(it)
		if runs := only[Run](b); len(runs) != 0 {
			t.Fatalf("runs %+v while the cells are read", runs)
		}
	}
	b.out = b.m.Exported(b.now, 1, exports[0].ID, "", nil)
	if got := b.running(); len(got.Parts) != 1 || got.Parts[0].Pos != 10 || got.ID != x.ID+1 {
		t.Errorf("then it runs %+v", got)
	}
}

func TestPrepareLoadsTheCopy(t *testing.T) {
	for _, c := range []struct {
		name    string
		salt    string
		tokens  []kevlard.Token // of the prepare
		loaded  int             // by the shell; -1: nothing is asked of it
		damaged bool
		have    int
	}{
		{"all of it", "x", tokens(12), 11, false, 11},
		{"longer than the prepare", "x", tokens(9), 8, false, 8},
		{"other tokens from 6 on", "x", append(tokens(6), 90, 91, 92), 6, false, 6},
		{"another salt", "y", tokens(12), -1, false, 0},
		{"other tokens", "x", []kevlard.Token{90, 91, 92}, -1, false, 0},
		{"damaged at 5", "x", tokens(12), 5, true, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, false, Limits{})
			b.keep("s", "x", tokens(12), 12)
			p := b.ask("s", 2, 0)
			p.Tokens, p.Salt = c.tokens, c.salt
			b.prepare(p)
			loads := only[Load](b)
			if c.loaded < 0 {
				if a, _ := replies[protocol.Prepared](b); len(loads) != 0 || len(a) != 1 || a[0].Have != 0 {
					t.Fatalf("loads %+v, answers %+v", loads, a)
				}
				return
			}
			if a, _ := replies[protocol.Prepared](b); len(loads) != 1 || len(a) != 0 {
				t.Fatalf("loads %+v, answered %+v before the end", loads, a)
			}
			b.out = b.m.Loaded(b.now, 1, loads[0].ID, c.loaded, c.damaged, nil)
			a, _ := replies[protocol.Prepared](b)
			if len(a) != 1 || a[0].Have != c.have {
				t.Fatalf("answer %+v, want have %d", a, c.have)
			}
			if u := b.m.cfg.Copies.Usage(); u.Pins != 0 {
				t.Errorf("%d pins are left", u.Pins)
			}
			b.send(item("s", 2, c.have, len(c.tokens)-c.have, true, true))
			if x := b.running(); x.Parts[0].Pos != c.have {
				t.Errorf("goes on at %d", x.Parts[0].Pos)
			}
			again := b.m.cfg.Copies.Pin(b.m.Key(), "toy", "x", "s", tokens(12), 0)
			if want := 12; c.damaged && again.N != 4 || !c.damaged && again.N != want {
				t.Errorf("the copy now reaches %d", again.N)
			}
		})
	}
}

func TestNewerTermWhileLoading(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(12), 12)
	p := b.ask("s", 2, 12)
	p.Salt = "x"
	b.prepare(p)
	load := only[Load](b)[0]
	p.Fence = fence(3)
	b.prepare(p)
	b.send(item("s", 2, 0, 12, true, true))
	if len(only[Run](b)) != 0 {
		t.Error("an item of an older term was run")
	}
	b.out = b.m.Loaded(b.now, 1, load.ID, 11, false, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Fence != fence(3) || a[0].Have != 11 {
		t.Errorf("answers %+v, want one for term 3 with 11", a)
	}
}

func TestClosedWhileLoading(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(12), 12)
	p := b.ask("s", 2, 12)
	p.Salt = "x"
	b.prepare(p)
	load := only[Load](b)[0]
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(2), Lo: 2}, nil)
	if b.m.FreeCells() == 1024 {
		t.Error("cells were freed while they are written")
	}
	b.out = b.m.Loaded(b.now, 1, load.ID, 11, false, nil)
	if b.m.FreeCells() != 1024 || b.m.cfg.Copies.Usage().Pins != 0 {
		t.Errorf("%d cells free, %+v", b.m.FreeCells(), b.m.cfg.Copies.Usage())
	}
}

func TestEngineDiesWhileLoading(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(12), 12)
	p := b.ask("s", 2, 12)
	p.Salt = "x"
	b.prepare(p)
	load := only[Load](b)[0]
	b.out = b.m.EngineExited(b.now, 1, false, "killed", nil)
	if u := b.m.cfg.Copies.Usage(); u.Pins != 0 || b.m.Transfers() != 0 {
		t.Errorf("pins %d, transfers %d", u.Pins, b.m.Transfers())
	}
	b.out = b.m.Loaded(b.now, 1, load.ID, 11, false, nil)
	if len(b.out) != 0 {
		t.Errorf("a late word of a dead engine: %+v", b.out)
	}
}

func TestFrozenEngineIsNoticedByItsTransfers(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.withStandby("s", 20)
	b.send(item("s", 1, 0, 20, true, true))
	b.finish(b.running())
	x := only[Export](b)[0]
	b.pass(time.Second)
	b.out = b.m.Wake(b.now, 0, nil)
	if lost, _ := replies[protocol.Lost](b); b.m.state != topology.Stalled || len(lost) != 1 {
		t.Fatalf("state %s, lost %+v", b.m.state, lost)
	}
	b.out = b.m.Exported(b.now, 1, x.ID, "", nil)
	if b.m.state != topology.Ready || b.m.FreeCells() != 1024 {
		t.Errorf("state %s, %d cells free after it woke", b.m.state, b.m.FreeCells())
	}
}

func TestStandbyIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		act   func(b *bench)
		cause string
	}{
		{"slow", func(b *bench) {
			b.pass(3 * time.Second)
			b.out = b.m.Wake(b.now, 0, nil)
		}, "slow"},
		{"full", func(b *bench) {
			b.out = b.m.Stored(b.now, "spare", protocol.Stored{Session: "s", Fence: fence(1), Stage: b.m.Key(), Refusal: protocol.RefusedCapacity, Detail: "full"}, nil)
		}, "refused: full"},
		{"unreachable", func(b *bench) { b.out = b.m.StandbyGone("spare", "", "unreachable", nil) }, "unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, false, Limits{})
			b.withStandby("s", 20)
			b.send(item("s", 1, 0, 20, true, true))
			b.finish(b.running())
			b.out = b.m.Exported(b.now, 1, only[Export](b)[0].ID, "", nil)
			c.act(b)
			lost, to := replies[protocol.StandbyLost](b)
			want := []protocol.StandbyLost{{Session: "s", Fence: fence(1), Lo: 2, Standby: "spare", Cause: c.cause}}
			if !reflect.DeepEqual(lost, want) || to[0] != "owner" {
				t.Fatalf("%+v to %v", lost, to)
			}
			b.out = b.m.Replicate(b.now, "owner", protocol.Replicate{Session: "s", Fence: fence(1), Lo: 2, Standby: "other"}, nil)
			if offers, to := replies[protocol.Offer](b); len(offers) != 1 || to[0] != "other" {
				t.Errorf("offers %+v to %v", offers, to)
			}
		})
	}
}

// TestHistoryFollows: a standby that is named late gets all that was computed, in
// pieces of the policy's size, never more on the way than its window.
func TestHistoryFollows(t *testing.T) {
	b := newBench(t, false, Limits{ReplicateTokens: 8, PieceBytes: 10 * cellBytes, WindowBytes: 20 * cellBytes})
	p := b.ask("s", 1, 50)
	b.prepare(p)
	b.send(item("s", 1, 0, 50, true, true))
	b.finish(b.running())
	b.out = b.m.Replicate(b.now, "owner", protocol.Replicate{Session: "s", Fence: fence(1), Lo: 2, Standby: "spare"}, nil)
	b.stored("s", 3) // it knows the first three from elsewhere
	var ends []int
	for acked := 3; acked < 50; {
		x := only[Export](b)
		if len(x) == 0 {
			if acked = ends[len(ends)-1]; acked < 50 {
				b.pass(300 * time.Millisecond) // the last positions wait for company
				b.stored("s", acked)
			}
			continue
		}
		if len(x) != 1 || x[0].Rows.End()-acked > 20 {
			t.Fatalf("exports %+v with %d acknowledged", x, acked)
		}
		ends = append(ends, x[0].Rows.End())
		b.out = b.m.Exported(b.now, 1, x[0].ID, "", nil)
	}
	if want := []int{13, 23, 33, 43, 50}; !slices.Equal(ends, want) {
		t.Errorf("pieces end at %v, want %v", ends, want)
	}
}
