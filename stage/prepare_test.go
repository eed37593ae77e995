package stage

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

func TestPrepareRefuses(t *testing.T) {
	for _, tc := range []struct {
		name     string
		link     bool
		draining bool
		change   func(*bench, *protocol.Prepare)
		want     protocol.Refusal
	}{
		{"nothing wrong", true, false, func(*bench, *protocol.Prepare) {}, ""},
		{"no link to the next stage", false, false, func(*bench, *protocol.Prepare) {}, protocol.RefusedLink},
		{"draining", true, true, func(*bench, *protocol.Prepare) {}, protocol.RefusedDraining},
		{"not the last stage", true, false, func(_ *bench, p *protocol.Prepare) { p.Last, p.Next = true, "" }, protocol.RefusedNoStage},
		{"too many positions", true, false, func(_ *bench, p *protocol.Prepare) { p.Positions = 1025 }, protocol.RefusedCapacity},
		{"too many sessions", true, false, func(b *bench, _ *protocol.Prepare) {
			b.mustPrepare("a", 1, 1)
			b.mustPrepare("b", 1, 1)
		}, protocol.RefusedCapacity},
		{"an older term", true, false, func(b *bench, _ *protocol.Prepare) { b.mustPrepare("s", 3, 1) }, protocol.RefusedStale},
		{"another boot of the owner in one epoch", true, false, func(b *bench, p *protocol.Prepare) {
			b.mustPrepare("s", 1, 1)
			p.OwnerBoot = "o.2"
		}, protocol.RefusedStale},
		{"a newer epoch of another owner", true, false, func(b *bench, p *protocol.Prepare) {
			b.mustPrepare("s", 9, 1)
			p.OwnerBoot, p.Fence = "o.2", kevlard.Fence{Epoch: 2, Term: 1}
		}, ""},
		{"a closed session", true, false, func(b *bench, _ *protocol.Prepare) {
			b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(2), Lo: 2}, nil)
		}, protocol.RefusedStale},
		{"a closed session's next term", true, false, func(b *bench, _ *protocol.Prepare) {
			b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(1), Lo: 2}, nil)
		}, ""},
		{"no engine", true, false, func(b *bench, _ *protocol.Prepare) {
			b.out = b.m.EngineExited(b.now, 1, false, "killed", nil)
		}, protocol.RefusedNoStage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, false, Limits{Sessions: 2})
			p := b.ask("s", 2, 5)
			tc.change(b, &p)
			b.out = b.m.Prepare(b.now, "owner", p, tc.link, tc.draining, nil)
			ms, to := replies[protocol.Prepared](b)
			if len(ms) != 1 || ms[0].Refusal != tc.want || to[0] != "owner" || ms[0].Fence != p.Fence || ms[0].Lo != 2 {
				t.Fatalf("answers %+v to %v, want refusal %q", ms, to, tc.want)
			}
			if tc.want != "" && ms[0].Detail == "" {
				t.Error("a refusal without a detail")
			}
		})
	}
}

func TestPrepareIsIdempotent(t *testing.T) {
	b := newBench(t, false, Limits{})
	first := b.mustPrepare("s", 1, 5)
	b.send(item("s", 1, 0, 5, true, true))
	if again := b.mustPrepare("s", 1, 5); again != first {
		t.Errorf("asked again: %+v, then %+v", first, again)
	}
	if free := b.m.FreeCells(); free != 1024-128 {
		t.Errorf("%d cells free, want one extent of 128 taken", free)
	}
}

// TestHaveFollowsTokens checks that KV is held under its tokens: a history that
// differs keeps only what is before the difference.
func TestHaveFollowsTokens(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	b.finish(b.running())
	for term, tc := range []struct{ same, n, want int }{{10, 10, 10}, {10, 30, 10}, {7, 30, 7}, {7, 7, 7}, {0, 5, 0}} {
		p := b.ask("s", uint64(term+2), tc.n)
		for i := tc.same; i < tc.n; i++ {
			p.Tokens[i] += 500
		}
		if a, _ := b.prepare(p); a.Have != tc.want || a.Refusal != "" {
			t.Errorf("%d of %d tokens alike: %+v, want %d held", tc.same, tc.n, a, tc.want)
		}
	}
}

// TestAnotherSaltHoldsNothing: what is kept of a session must not be what it computed, or
// found, under another salt.
func TestAnotherSaltHoldsNothing(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	b.finish(b.running())
	p := b.ask("s", 2, 10)
	p.Salt = "other"
	if a, _ := b.prepare(p); a.Have != 0 || a.Refusal != "" {
		t.Errorf("answer %+v, want nothing held", a)
	}
}

// TestGrowingLosesWhatWasHeld checks that a larger extent starts empty.
func TestGrowingLosesWhatWasHeld(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	b.finish(b.running())
	p := b.ask("s", 2, 10)
	p.Positions = 500
	if a, _ := b.prepare(p); a.Have != 0 || a.Refusal != "" {
		t.Errorf("answer %+v, want nothing held", a)
	}
	p = b.ask("s", 3, 10)
	p.Positions = 2000
	if a, _ := b.prepare(p); a.Refusal != protocol.RefusedCapacity {
		t.Errorf("answer %+v, want capacity", a)
	}
	if b.m.Sessions() != 0 || b.m.FreeCells() != 1024 {
		t.Errorf("%d sessions, %d cells free after a refusal for room", b.m.Sessions(), b.m.FreeCells())
	}
}

func TestItemTable(t *testing.T) {
	for _, tc := range []struct {
		name string
		item protocol.Item
		want protocol.Refusal // "" with fenced false: taken
		to   kevlard.NodeID
		drop bool // fenced without a word
	}{
		{"starts at the front", item("s", 2, 0, 10, true, false), "", "", false},
		{"an older term", item("s", 1, 0, 10, true, false), "", "", true},
		{"a newer term", item("s", 3, 0, 10, true, false), protocol.RefusedUnknown, "prev", false},
		{"an unknown session", item("x", 1, 0, 10, true, false), protocol.RefusedUnknown, "prev", false},
		{"a closed session", item("closed", 4, 0, 1, true, false), "", "", true},
		{"a closed session's newer term", item("closed", 5, 0, 1, true, false), protocol.RefusedUnknown, "prev", false},
		{"before its start", item("s", 2, 0, 10, false, false), protocol.RefusedGap, "owner", false},
		{"starts after what is held", item("s", 2, 1, 10, true, false), protocol.RefusedGap, "owner", false},
		{"more than its credit", item("s", 2, 0, 65, true, false), protocol.RefusedCredit, "owner", false},
		{"more than its room", item("s", 2, 0, 130, true, false), protocol.RefusedGap, "owner", false},
		{"rows of another width", func() protocol.Item {
			it := item("s", 2, 0, 4, true, false)
			it.Width = 16
			return it
		}(), protocol.RefusedGap, "owner", false},
		{"too few rows", func() protocol.Item {
			it := item("s", 2, 0, 4, true, false)
			it.Rows = it.Rows[1:]
			return it
		}(), protocol.RefusedGap, "owner", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, false, Limits{})
			b.mustPrepare("s", 2, 10)
			b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "closed", Fence: fence(4), Lo: 2}, nil)
			before := b.m.Counters()
			b.send(tc.item)
			got, to := b.refusal()
			if got != tc.want || to != tc.to {
				t.Errorf("refused %q to %q, want %q to %q", got, to, tc.want, tc.to)
			}
			if fenced := b.m.Counters().Fenced > before.Fenced; fenced != tc.drop {
				t.Errorf("fenced %v, want %v", fenced, tc.drop)
			}
			if taken := len(only[Run](b)) > 0; taken != (tc.want == "" && !tc.drop) {
				t.Errorf("taken: %v", taken)
			}
		})
	}
}

func TestItemsMustContinue(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 20)
	b.send(item("s", 1, 0, 5, true, false))
	b.send(item("s", 1, 6, 5, false, false))
	if why, _ := b.refusal(); why != protocol.RefusedGap {
		t.Errorf("a gap: %q", why)
	}
	b.send(item("s", 1, 0, 5, true, false))
	if why, _ := b.refusal(); why != protocol.RefusedGap {
		t.Errorf("a second start: %q", why)
	}
	b.send(item("s", 1, 5, 60, false, false))
	if why, _ := b.refusal(); why != protocol.RefusedCredit {
		t.Errorf("65 rows under way at a credit of 64: %q", why)
	}
	b.send(item("s", 1, 5, 15, false, false))
	if why, _ := b.refusal(); why != "" {
		t.Errorf("the right continuation: %q", why)
	}
}

// TestPrepareWaitsForTheBatch is the barrier: the answer comes when the running
// batch has ended, and counts what it wrote; its output is dropped.
func TestPrepareWaitsForTheBatch(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	x := b.running()
	if _, ok := b.prepare(b.ask("s", 2, 10)); ok {
		t.Fatal("answered while the batch runs")
	}
	if a := b.m.Probe(protocol.Probe{Session: "s", Fence: fence(1), Lo: 2}); a.Known {
		t.Error("the old term is still known")
	}
	if _, ok := b.prepare(b.ask("s", 3, 10)); ok {
		t.Fatal("the next one is answered while the batch runs")
	}
	if _, ok := b.prepare(b.ask("s", 2, 10)); ok {
		t.Fatal("the overtaken one is answered")
	}
	b.send(item("s", 2, 10, 1, false, true))
	if why, _ := b.refusal(); why != "" {
		t.Errorf("work of the overtaken prepare: %q, want it fenced", why)
	}
	b.send(item("s", 3, 10, 1, false, true))
	if why, to := b.refusal(); why != protocol.RefusedUnknown || to != "owner" {
		t.Errorf("work of the waiting prepare: %q to %q", why, to)
	}
	b.finish(x)
	ms, _ := replies[protocol.Prepared](b)
	if len(ms) != 1 || ms[0].Fence != fence(3) || ms[0].Have != 10 {
		t.Errorf("answers %+v, want one at term 3 with 10 held", ms)
	}
	if steps, _ := replies[protocol.Step](b); len(steps) > 0 {
		t.Errorf("the old term's output goes out: %+v", steps)
	}
}

// TestCellsWaitForTheBatch is the other half of the barrier: a closed session's
// cells are not granted again while a batch writes them.
func TestCellsWaitForTheBatch(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	x := b.running()
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(1), Lo: 2}, nil)
	if b.m.Sessions() != 0 || b.m.FreeCells() != 1024-128 {
		t.Errorf("%d sessions, %d cells free while the batch runs", b.m.Sessions(), b.m.FreeCells())
	}
	p := b.ask("t", 1, 10)
	p.Positions = 1024
	if a, _ := b.prepare(p); a.Refusal != protocol.RefusedCapacity {
		t.Errorf("all cells are granted while a batch writes some: %+v", a)
	}
	b.finish(x)
	if steps, _ := replies[protocol.Step](b); len(steps) > 0 {
		t.Errorf("a closed session's output goes out: %+v", steps)
	}
	if b.m.FreeCells() != 1024 {
		t.Errorf("%d cells free after the batch", b.m.FreeCells())
	}
}

func TestCloseOfAnOlderTermChangesNothing(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 2, 10)
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "s", Fence: fence(1), Lo: 2}, nil)
	if b.m.Sessions() != 1 {
		t.Error("a late close of an old term ended the session")
	}
}

func TestTombstonesForgetTheOldest(t *testing.T) {
	ts := newTombstones(2)
	ts.add("a", fence(3))
	ts.add("a", fence(2))
	ts.add("b", fence(1))
	if !ts.covers("a", fence(3)) || ts.covers("a", fence(4)) || !ts.covers("b", fence(1)) {
		t.Errorf("tombstones %+v", ts)
	}
	ts.add("c", fence(1))
	if ts.covers("a", fence(1)) || !ts.covers("b", fence(1)) || !ts.covers("c", fence(1)) || len(ts.fences) != 2 {
		t.Errorf("after a third: %+v", ts)
	}
}

func TestLeases(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 10)
	b.mustPrepare("t", 1, 10)
	b.pass(9 * time.Second)
	b.m.Renew(b.now, "owner", []kevlard.SessionID{"s", "unknown"})
	b.m.Renew(b.now, "stranger", []kevlard.SessionID{"t"})
	b.pass(time.Second)
	if at := b.m.Deadline(); at > b.now {
		t.Fatalf("deadline %v, want the lease's end by %v", at, b.now)
	}
	b.out = b.m.Wake(b.now, 0, nil)
	lost, to := replies[protocol.Lost](b)
	if len(lost) != 1 || lost[0].Session != "t" || lost[0].Cause != "lease" || to[0] != "owner" {
		t.Errorf("lost %+v to %v, want t", lost, to)
	}
	b.pass(8 * time.Second)
	b.out = b.m.Wake(b.now, time.Second, nil)
	if b.m.Sessions() != 1 {
		t.Error("a late timer took a lease away that had not ended")
	}
	b.pass(10 * time.Second)
	b.out = b.m.Wake(b.now, 0, nil)
	if b.m.Sessions() != 0 || b.m.FreeCells() != 1024 {
		t.Errorf("%d sessions, %d cells free after all leases", b.m.Sessions(), b.m.FreeCells())
	}
}

func TestCloseIsTheOwners(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 10)
	b.out = b.m.Close(b.now, "other", protocol.Close{Session: "s", Fence: fence(9), Lo: 2}, nil)
	if b.m.Sessions() != 1 {
		t.Error("another node's close ended the session")
	}
	b.out = b.m.OwnerGone(b.now, "owner", "o.1", true, nil)
	if b.m.Sessions() != 0 {
		t.Error("kept although its owner's boot is dead")
	}
}

// TestAwayPastTheLease freezes the stage for longer than a lease, with one item
// in the engine and one waiting: neither may reach the next stage, because the
// owner has long gone elsewhere.
func TestAwayPastTheLease(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 10)
	b.mustPrepare("t", 1, 10)
	b.send(item("s", 1, 0, 4, true, false))
	x := b.running()
	b.send(item("t", 1, 0, 4, true, false))
	b.pass(30 * time.Second)
	b.out = b.m.Expire(b.now, nil)
	b.out = b.m.BatchDone(b.now, b.m.engine, x.ID, [][]byte{make([]byte, 4*width)}, nil, b.out)
	for _, e := range b.out {
		if f, ok := e.(Forward); ok {
			t.Errorf("late work goes on to %s: %+v", f.To, f.Frame)
		}
	}
	if got := b.m.Counters().Fenced; got != 2 {
		t.Errorf("%d items fenced, want the running and the waiting one", got)
	}
	if b.m.Sessions() != 0 || b.m.FreeCells() != 1024 {
		t.Errorf("%d sessions, %d cells free", b.m.Sessions(), b.m.FreeCells())
	}
}

func TestOwnerGone(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 10)
	b.out = b.m.OwnerGone(b.now, "owner", "o.1", false, nil)
	b.out = b.m.OwnerGone(b.now, "other", "x", true, nil)
	b.out = b.m.OwnerGone(b.now, "owner", "o.0", true, nil) // old news of a life before
	if b.m.Sessions() != 1 {
		t.Error("dropped for the present boot of its owner, or for another node")
	}
	b.out = b.m.OwnerGone(b.now, "owner", "o.2", false, nil)
	if b.m.Sessions() != 0 || b.m.FreeCells() != 1024 {
		t.Error("kept after its owner came back as another boot")
	}
}

func TestNextGoneHintsTheOwner(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.mustPrepare("s", 1, 10)
	b.out = b.m.NextGone("elsewhere", nil)
	if len(b.out) > 0 {
		t.Errorf("a hint for another node: %v", b.out)
	}
	b.out = b.m.NextGone("next", nil)
	ms, to := replies[protocol.Refused](b)
	if len(ms) != 1 || ms[0].Reason != protocol.RefusedLink || ms[0].Lo != 4 || to[0] != "owner" {
		t.Errorf("hint %+v to %v", ms, to)
	}
}

// TestProbeCountsOnlyThisTerm checks that KV of older terms is not taken for
// progress: before the first item of a term nothing has been received.
func TestProbeCountsOnlyThisTerm(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 10)
	b.send(item("s", 1, 0, 10, true, true))
	b.finish(b.running())
	b.mustPrepare("s", 2, 10)
	probe := protocol.Probe{Session: "s", Fence: fence(2), Lo: 2, Round: 7}
	if a := b.m.Probe(probe); !a.Known || a.Received != 0 || a.Done != 0 || a.Round != 7 {
		t.Errorf("before the first item: %+v", a)
	}
	b.send(item("s", 2, 9, 1, true, true))
	if a := b.m.Probe(probe); a.Received != 10 || a.Done != 9 {
		t.Errorf("while it runs: %+v", a)
	}
	b.finish(b.running())
	if a := b.m.Probe(probe); a.Received != 10 || a.Done != 10 {
		t.Errorf("after it ran: %+v", a)
	}
}
