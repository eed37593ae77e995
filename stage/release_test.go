package stage

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

func (b *bench) release() { b.out = b.m.Release(b.now, nil) }

// retired asks the stage to go, and reports whether it had its engine killed.
func (b *bench) retired() bool {
	b.out = b.m.Retire(b.now, b.out)
	return len(only[Kill](b)) > 0
}

// TestReleaseKeepsWhatWasComputed gives a stage up while one session's rows are in the
// batch and another's are finished: owners are told at once, nothing new is taken, the
// engine goes when both are kept, and the stage with it.
func TestReleaseKeepsWhatWasComputed(t *testing.T) {
	b := keepingBench(t, Limits{})
	b.mustPrepare("done", 1, 6)
	b.send(item("done", 1, 0, 6, true, false))
	b.finish(b.running())
	b.store()
	p := b.ask("runs", 1, 8)
	p.Salt = "other" // or it would load what the first one computed
	b.prepare(p)
	b.send(item("runs", 1, 0, 8, true, false))
	batch := b.running()
	b.release()
	lost, to := replies[protocol.Lost](b)
	if len(lost) != 2 || lost[0].Cause != "release" || lost[0].Suspect || to[0] != "owner" {
		t.Fatalf("owners were told %+v", lost)
	}
	if b.m.Advertise().State != topology.Retiring || b.m.Sessions() != 0 {
		t.Fatalf("it advertises %+v with %d sessions", b.m.Advertise(), b.m.Sessions())
	}
	if b.retired() {
		t.Fatal("the engine is killed while it computes")
	}
	if got := b.store(); !slices.Equal(got, [][2]int{{4, 6}}) {
		t.Fatalf("kept %v of the session at rest", got)
	}
	if a, _ := b.prepare(b.ask("done", 2, 6)); a.Refusal != protocol.RefusedNoStage {
		t.Fatalf("a prepare is answered %+v", a)
	}
	if n, _ := b.m.Holds("", tokens(6)); n != 0 {
		t.Errorf("it still offers %d positions", n)
	}
	b.finish(batch)
	if b.retired() || b.m.Gone() {
		t.Fatal("the engine is killed before its last rows are read")
	}
	if got := b.store(); !slices.Equal(got, [][2]int{{0, 8}}) {
		t.Fatalf("kept %v of the session that ran", got)
	}
	if !b.retired() {
		t.Fatalf("the engine is not killed: %v", b.out)
	}
	b.out = nil
	if b.retired() {
		t.Fatal("it is killed twice")
	}
	b.out = b.m.EngineExited(b.now, 1, false, "signal: killed", nil)
	if !b.m.Gone() || b.m.Deadline() != kevlard.Never {
		t.Fatalf("gone: %v, deadline %v, notes %+v", b.m.Gone(), b.m.Deadline(), only[Note](b))
	}
	b.pass(b.m.cfg.Timing.RestartMax)
	if b.out = b.m.Wake(b.now, 0, nil); len(only[Start](b)) != 0 {
		t.Error("an engine starts again")
	}
}

// TestReleaseDoesNotWaitForEver gives stages up whose engines do not answer, load, or
// are not there.
func TestReleaseDoesNotWaitForEver(t *testing.T) {
	b := keepingBench(t, Limits{})
	b.mustPrepare("s", 1, 8)
	b.send(item("s", 1, 0, 8, true, false))
	b.running()
	b.release()
	b.pass(b.m.cfg.Timing.Release)
	if b.m.Deadline() > b.now {
		t.Errorf("it sleeps until %v, past its end %v", b.m.Deadline(), b.now)
	}
	if !b.retired() {
		t.Error("an engine that hangs is not killed")
	}

	b = keepingBench(t, Limits{})
	b.out = b.m.EngineExited(b.now, 1, false, "signal: killed", nil)
	b.pass(b.m.cfg.Timing.RestartMin)
	b.out = b.m.Wake(b.now, 0, nil)
	b.release()
	if !b.retired() {
		t.Error("an engine that loads is not killed")
	}
	b.out = b.m.EngineReady(b.now, 2, "toy", 1024, cellBytes, nil)
	if b.out = b.m.EngineExited(b.now, 2, false, "signal: killed", nil); !b.m.Gone() {
		t.Error("not gone when the engine is")
	}

	b = keepingBench(t, Limits{})
	b.out = b.m.EngineExited(b.now, 1, false, "signal: killed", nil)
	if b.release(); !b.m.Gone() || b.retired() {
		t.Error("a stage without engine is not gone at once")
	}
}

// TestUnloadable counts the engines that never came to be ready.
func TestUnloadable(t *testing.T) {
	b := newBench(t, false, Limits{})
	engine := uint64(1)
	fail := func() {
		b.out = b.m.EngineExited(b.now, engine, false, "no such file", nil)
		b.pass(b.m.cfg.Timing.RestartMax)
		b.out = b.m.Wake(b.now, 0, nil)
		engine++
	}
	fail() // it was ready
	if _, no := b.m.Unloadable(); no {
		t.Fatal("an engine that served counts as one that failed to load")
	}
	fail()
	b.out = b.m.EngineReady(b.now, engine, "toy", 1024, cellBytes, nil)
	fail()
	fail()
	if _, no := b.m.Unloadable(); no {
		t.Fatal("loads count that failed before one that went well")
	}
	fail()
	if why, no := b.m.Unloadable(); !no || why == "" {
		t.Fatalf("two failed loads: %v %q", no, why)
	}
}
