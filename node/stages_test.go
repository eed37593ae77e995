package node

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

func layers(lo, hi int) kevlard.Layers { return kevlard.Layers{Lo: lo, Hi: hi} }

func keyOf(l kevlard.Layers) kevlard.StageKey { return kevlard.StageKey{Model: model.ID, Layers: l} }

// published returns what the last effects publish of the stages.
func (r *rig) published() []topology.Stage {
	r.Helper()
	all := effectsOf[Publish](r.out)
	if len(all) == 0 {
		r.Fatalf("nothing is published: %v", r.out)
	}
	return all[len(all)-1].Stages
}

// TestAdoptAndRelease takes a stage on beside one that serves, and gives the first up:
// the session there is told, the other one's goes on, and counters do not fall.
func TestAdoptAndRelease(t *testing.T) {
	first, second := layers(0, 1), layers(1, 2)
	r := newRig(t, []kevlard.Layers{first}, "n1", "n2")
	r.say("n1", prepareFor("a", "n1.1", first, "n2"))
	r.step(Adopt{Assigned: Assigned{Model: model, Layers: second, Width: 8}, Cause: "test"})
	if starts := effectsOf[StartEngine](r.out); len(starts) != 1 || starts[0] != (StartEngine{Stage: keyOf(second), Run: 1}) {
		t.Fatalf("engines started: %v", starts)
	}
	if r.m.free() == 0 {
		t.Error("while the new engine loads, nobody would use the other one")
	}
	r.step(EngineLoading{Stage: keyOf(second), Run: 1, Progress: 500})
	if s := r.published(); len(s) != 2 || s[1].State != topology.Loading || s[1].Progress != 500 {
		t.Errorf("published while it loads: %+v", s)
	}
	r.step(EngineReady{Stage: keyOf(second), Run: 1, Class: "c", Cells: 1024, Width: 8})
	r.say("n2", prepareFor("b", "n2.1", second, ""))
	r.say("n1", protocol.Renew{Sessions: []kevlard.SessionID{"a"}})
	before := r.m.Snapshot(r.now).Counters.Refused

	r.say("n2", prepareFor("c", "n2.1", layers(0, 2), "")) // counted as refused by nobody: no such stage
	r.step(Release{Stage: keyOf(first)})
	if lost := sent[protocol.Lost](r.out)["n1"]; len(lost) != 1 || lost[0].Session != "a" || lost[0].Cause != "release" {
		t.Errorf("the owner was told %+v", lost)
	}
	if kills := effectsOf[KillEngine](r.out); len(kills) != 1 || kills[0].Stage != keyOf(first) {
		t.Fatalf("engines killed: %v", kills)
	}
	r.say("n1", prepareFor("d", "n1.1", first, "n2"))
	if a := sent[protocol.Prepared](r.out)["n1"]; len(a) != 1 || a[0].Refusal != protocol.RefusedNoStage {
		t.Errorf("a prepare is answered %+v", a)
	}
	r.step(Adopt{Assigned: Assigned{Model: model, Layers: first, Width: 8}})
	if no := reports(r.out, "adopt-refused"); len(no) != 1 {
		t.Errorf("a stage that is still here is taken on: %v", r.out)
	}
	r.step(EngineExited{Stage: keyOf(first), Run: 1, Reason: "signal: killed"})
	if s := r.published(); len(s) != 1 || s[0].Key != keyOf(second) || s[0].State != topology.Ready {
		t.Errorf("published at the end: %+v", s)
	}
	s := r.m.Snapshot(r.now)
	if len(s.Stages) != 1 || s.Stages[0].Sessions != 1 || s.Counters.Refused != before+1 {
		t.Errorf("stages %+v, %d refused of %d", s.Stages, s.Counters.Refused, before+1)
	}
	r.step(Adopt{Assigned: Assigned{Model: model, Layers: first, Width: 8}})
	if len(effectsOf[StartEngine](r.out)) != 1 {
		t.Errorf("the layers are free, and not taken: %v", r.out)
	}
}

// TestStagesThatBeginAlike holds one session in each of two stages that begin at the same
// layer, as while layers are cut anew: each gets its own work, and is closed alone.
func TestStagesThatBeginAlike(t *testing.T) {
	long, short := layers(0, 2), layers(0, 1)
	r := newRig(t, []kevlard.Layers{long, short}, "n1", "n2")
	r.say("n1", prepareFor("a", "n1.1", short, "n2"))
	p := prepareFor("a", "n1.1", long, "")
	p.Fence.Term = 2
	r.say("n1", p)
	it := protocol.Item{Session: "a", Fence: p.Fence, Lo: 0, Tokens: []kevlard.Token{1, 2}, Start: true}
	r.step(Arrived{From: "n1", Boot: "n1.1", Frame: protocol.Frame{Items: []protocol.Item{it}}})
	if runs := effectsOf[RunBatch](r.out); len(runs) != 1 || runs[0].Stage != keyOf(long) {
		t.Fatalf("work runs at %v", runs)
	}
	r.say("n1", protocol.Close{Session: "a", Fence: p.Fence, Lo: 0, Hi: 1})
	for _, s := range r.m.Snapshot(r.now).Stages {
		if want := s.Key.Layers.Hi - 1; s.Sessions != want {
			t.Errorf("stage %v holds %d sessions, want %d", s.Key.Layers, s.Sessions, want)
		}
	}
}

// TestAdoptWithinBounds refuses what does not fit.
func TestAdoptWithinBounds(t *testing.T) {
	r := newRig(t, nil, "n1")
	r.m.cfg.Limits.Stages = 1
	for what, a := range map[string]Assigned{
		"no model":     {Layers: layers(0, 1), Width: 8},
		"no layers":    {Model: model, Layers: layers(1, 1), Width: 8},
		"beyond":       {Model: model, Layers: layers(1, 3), Width: 8},
		"no row width": {Model: model, Layers: layers(0, 1)},
	} {
		if r.step(Adopt{Assigned: a}); len(reports(r.out, "adopt-refused")) != 1 || len(r.m.stages) != 0 {
			t.Errorf("%s is taken", what)
		}
	}
	r.step(Adopt{Assigned: Assigned{Model: model, Layers: layers(0, 1), Width: 8}})
	r.step(Adopt{Assigned: Assigned{Model: model, Layers: layers(1, 2), Width: 8}})
	if len(r.m.stages) != 1 {
		t.Errorf("%d stages, the bound is 1", len(r.m.stages))
	}
	r.step(Release{Stage: keyOf(layers(1, 2))}) // not here
	if slices.ContainsFunc(r.out, func(e Effect) bool { _, ok := e.(KillEngine); return ok }) {
		t.Error("an engine is killed for a stage that is not here")
	}
}
