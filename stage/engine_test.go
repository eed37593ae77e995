package stage

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// warm ends the leniency of an engine's first batches.
func (b *bench) warm() { b.m.pace.lessons = warmUp }

// TestEngineExitNamesSuspects checks who is told what when an engine dies: all
// owners at once, and only the sessions of the running batch may be to blame.
func TestEngineExitNamesSuspects(t *testing.T) {
	for _, poisonous := range []bool{true, false} {
		b := newBench(t, true, Limits{})
		b.mustPrepare("in", 1, 5)
		b.send(item("in", 1, 0, 5, true, true))
		b.mustPrepare("out", 1, 5)
		b.out = b.m.EngineExited(b.now, 1, poisonous, "signal: aborted", nil)
		lost, _ := replies[protocol.Lost](b)
		if len(lost) != 2 || lost[0].Session != "in" || lost[0].Suspect != poisonous || lost[1].Suspect || lost[0].Cause != "engine-exit" {
			t.Errorf("poisonous %v: lost %+v", poisonous, lost)
		}
		if a := b.m.Advertise(); a.State != topology.Cold || a.Reason == "" || a.Cells != 0 || b.m.Sessions() != 0 || b.m.QueuedRows() != 0 {
			t.Errorf("after the exit: %+v, %d sessions", a, b.m.Sessions())
		}
	}
}

// TestEngineExitNamesThoseThatLeft: an engine stalls and then aborts. Owners re-routed when
// they heard of the stall, and still must know what their sessions may do to the next one.
func TestEngineExitNamesThoseThatLeft(t *testing.T) {
	for _, poisonous := range []bool{true, false} {
		b := newBench(t, true, Limits{})
		b.mustPrepare("in", 1, 5)
		b.send(item("in", 1, 0, 5, true, true))
		b.now = b.m.Deadline()
		b.out = b.m.Wake(b.now, 0, nil)
		if lost, _ := replies[protocol.Lost](b); len(lost) != 1 || lost[0].Cause != "engine-stall" {
			t.Fatalf("lost %+v, want a stall", lost)
		}
		b.out = b.m.EngineExited(b.now, 1, poisonous, "signal: aborted", nil)
		lost, to := replies[protocol.Lost](b)
		if !poisonous && len(lost) != 0 {
			t.Errorf("killed from outside: lost %+v", lost)
		}
		if poisonous && (len(lost) != 1 || lost[0].Session != "in" || !lost[0].Suspect || lost[0].Fence != fence(1) || to[0] != "owner") {
			t.Errorf("lost %+v to %v", lost, to)
		}
	}
}

// TestEngineExitAnswersAWaitingPrepare checks that an owner whose newer prepare
// waits for the batch hears of its end at the term it now speaks.
func TestEngineExitAnswersAWaitingPrepare(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 5)
	b.send(item("s", 1, 0, 5, true, true))
	b.prepare(b.ask("s", 2, 5))
	b.out = b.m.EngineExited(b.now, 1, true, "signal: aborted", nil)
	if lost, _ := replies[protocol.Lost](b); len(lost) != 1 || lost[0].Fence != fence(2) || !lost[0].Suspect {
		t.Errorf("lost %+v, want it at term 2", lost)
	}
}

func TestEngineRestartsBackOff(t *testing.T) {
	b := newBench(t, false, Limits{})
	want := []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000}
	for i, ms := range want {
		run := uint64(i + 1)
		b.out = b.m.EngineExited(b.now, run, false, "exit status 1", nil)
		if at := b.m.Deadline(); at != b.now.Add(ms*time.Millisecond) {
			t.Fatalf("exit %d: next start in %v, want %v", i, at.Sub(b.now), ms*time.Millisecond)
		}
		b.now = b.m.Deadline()
		b.out = b.m.Wake(b.now, 0, nil)
		if s := only[Start](b); len(s) != 1 || s[0].Engine != run+1 {
			t.Fatalf("exit %d: starts %+v", i, s)
		}
		if i%2 == 0 {
			b.out = b.m.EngineReady(b.now, run+1, "toy", 64, 0, nil)
		}
	}
	run := uint64(len(want) + 1)
	b.out = b.m.EngineExited(b.now, run, false, "again", nil)
	b.now = b.m.Deadline()
	b.out = b.m.Wake(b.now, 0, nil)
	b.out = b.m.EngineReady(b.now, run+1, "toy", 64, 0, nil)
	b.pass(time.Minute)
	b.out = b.m.EngineExited(b.now, run+1, false, "after a calm minute", nil)
	if at := b.m.Deadline(); at != b.now.Add(100*time.Millisecond) {
		t.Errorf("after a calm run: next start in %v", at.Sub(b.now))
	}
}

func TestEventsOfOldEnginesAreIgnored(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.mustPrepare("s", 1, 5)
	b.send(item("s", 1, 0, 5, true, true))
	x := b.running()
	b.out = b.m.EngineExited(b.now, 7, true, "another life", nil)
	b.out = append(b.out, b.m.EngineReady(b.now, 7, "toy", 5, 0, nil)...)
	b.m.EngineLoading(7, 500, false, nil)
	before := b.m.Counters().Fenced
	b.out = b.m.BatchDone(b.now, 7, x.ID, nil, nil, b.out)
	b.out = b.m.BatchDone(b.now, 1, x.ID+1, nil, nil, b.out)
	if len(b.out) != 0 || b.m.Counters().Fenced != before+2 || b.m.Sessions() != 1 {
		t.Errorf("effects %v, fenced %d", b.out, b.m.Counters().Fenced-before)
	}
}

// TestStall plays a frozen engine: out of service at once, back with its late
// result, which is not used, or killed when it stays silent.
func TestStall(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.warm()
	b.mustPrepare("s", 1, 5)
	b.send(item("s", 1, 0, 5, true, true))
	x := b.running()
	b.pass(600 * time.Millisecond)
	b.out = b.m.Wake(b.now, time.Second, nil)
	if b.m.Advertise().State != topology.Ready {
		t.Fatal("a late judge blames the engine")
	}
	b.now = b.m.Deadline()
	b.out = b.m.Wake(b.now, 0, nil)
	lost, _ := replies[protocol.Lost](b)
	if b.m.Advertise().State != topology.Stalled || len(lost) != 1 || lost[0].Cause != "engine-stall" || lost[0].Suspect {
		t.Fatalf("state %v, lost %+v", b.m.Advertise().State, lost)
	}
	if a := b.m.Probe(protocol.Probe{Session: "s", Fence: fence(1), Lo: 2}); !a.Stalled {
		t.Error("a probe does not say stalled")
	}
	if b.m.FreeCells() == 1024 {
		t.Error("the cells are free while the engine may still write them")
	}
	b.finish(x)
	if steps, _ := replies[protocol.Step](b); len(steps) > 0 || b.m.Advertise().State != topology.Ready || b.m.FreeCells() != 1024 {
		t.Errorf("late result: steps %+v, state %v, %d cells free", steps, b.m.Advertise().State, b.m.FreeCells())
	}
	b.mustPrepare("s", 2, 5)
	b.send(item("s", 2, 0, 5, true, true))
	for range 2 {
		b.now = b.m.Deadline()
		b.out = b.m.Wake(b.now, 0, nil)
	}
	if k := only[Kill](b); len(k) != 1 || k[0].Engine != 1 {
		t.Errorf("kills %+v, want the silent engine", k)
	}
}

// TestSlowIsNotStalled plays an engine that needs a second for a row: it may
// stall at first, and must be usable then.
func TestSlowIsNotStalled(t *testing.T) {
	b := newBench(t, true, Limits{})
	stalls := 0
	for term := uint64(1); term <= 12; term++ {
		b.mustPrepare("s", term, 2)
		b.send(item("s", term, 0, 2, true, true))
		x := b.running()
		for ends := b.now.Add(2 * time.Second); b.now < ends; {
			b.now = min(b.m.Deadline(), ends)
			if b.now < ends {
				b.out = b.m.Wake(b.now, 0, nil)
			}
		}
		late := b.m.Advertise().State == topology.Stalled
		b.finish(x)
		if late {
			stalls++
		} else if term > 10 && b.m.Sessions() != 1 {
			t.Errorf("term %d: the session is gone", term)
		}
	}
	if stalls > 5 {
		t.Errorf("%d of 12 batches count as stalled, want the stage to learn", stalls)
	}
}
