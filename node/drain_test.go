package node

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// killed returns the stages whose engines the effects kill.
func killed(es []Effect) (out []kevlard.StageKey) {
	for _, k := range effectsOf[KillEngine](es) {
		out = append(out, k.Stage)
	}
	return out
}

// TestDrainGivesStagesUp drains a node of which another one is a sibling: nothing moves
// before the others can know; then owners are asked to move their sessions, which go on
// until they have; then the engine goes. An undo brings the stage back when it is gone.
func TestDrainGivesStagesUp(t *testing.T) {
	first := layers(0, 1)
	r := newRig(t, []kevlard.Layers{first}, "n1", "n2:1-2", "n3:0-1")
	r.say("n1", prepareFor("a", "n1.1", first, "n2"))
	r.step(Drain{})
	if p := effectsOf[Publish](r.out); len(p) == 0 || !p[len(p)-1].Draining {
		t.Fatalf("nobody is told: %v", r.out)
	}
	if all := r.sleep(r.m.cfg.Timing.Drain-time.Millisecond, "n1", "n2", "n3"); len(sent[protocol.Lost](all)) != 0 {
		t.Fatalf("sessions are sent away before the others know: %v", all)
	}
	r.say("n1", prepareFor("b", "n1.1", first, "n2"))
	if a := sent[protocol.Prepared](r.out)["n1"]; len(a) != 1 || a[0].Refusal != protocol.RefusedDraining {
		t.Errorf("a new session is answered %+v", a)
	}
	all := r.sleep(time.Second, "n1", "n2", "n3")
	if lost := sent[protocol.Lost](all)["n1"]; len(lost) != 1 || lost[0].Session != "a" || lost[0].Cause != "drain" {
		t.Errorf("the owner was told %+v", lost)
	}
	if len(killed(all)) != 0 {
		t.Fatal("the engine is killed under a session")
	}
	r.say("n1", prepareFor("a", "n1.1", first, "n2")) // there was no room elsewhere
	if a := sent[protocol.Prepared](r.out)["n1"]; len(a) != 1 || a[0].Refusal != "" {
		t.Errorf("a session that could not move is answered %+v", a)
	}
	if lost := sent[protocol.Lost](r.sleep(evacuateEvery, "n1", "n2", "n3"))["n1"]; len(lost) != 1 {
		t.Errorf("a session that stays is asked to go %d times in %v", len(lost), evacuateEvery)
	}
	r.say("n1", protocol.Close{Session: "a", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 0, Keep: true})
	if k := killed(r.sleep(drainEvery, "n1", "n2", "n3")); len(k) != 1 || k[0] != keyOf(first) {
		t.Fatalf("an empty stage is kept: %v killed", k)
	}
	if m := effectsOf[Report](r.out); r.m.handsOver(r.now) {
		t.Errorf("it waits for others that have everything: %v", m)
	}
	r.step(Drain{Undo: true})
	if len(effectsOf[StartEngine](r.out)) != 0 {
		t.Error("an engine starts before the last one is gone")
	}
	r.step(EngineExited{Stage: keyOf(first), Run: 1, Reason: "signal: killed"})
	if s := effectsOf[StartEngine](r.sleep(time.Millisecond)); len(s) != 1 || s[0].Stage != keyOf(first) {
		t.Errorf("after the undo engines %v start", s)
	}
	if len(r.m.drains.given) != 0 || len(r.m.stages) != 1 {
		t.Errorf("%d stages, %d to be taken back", len(r.m.stages), len(r.m.drains.given))
	}
}

// TestDrainKeepsTheLastHolder drains a node whose layers nobody else has: it serves on,
// says so once, and goes when another is ready.
func TestDrainKeepsTheLastHolder(t *testing.T) {
	first := layers(0, 1)
	r := newRig(t, []kevlard.Layers{first}, "n1", "n2:1-2", "n3")
	r.step(Drain{})
	all := r.sleep(10*time.Second, "n1", "n2", "n3")
	if len(killed(all)) != 0 || len(reports(all, "stage-kept")) != 1 {
		t.Fatalf("%d engines killed, reports %v", len(killed(all)), reports(all, "stage-kept"))
	}
	r.say("n1", prepareFor("a", "n1.1", first, "n2"))
	if a := sent[protocol.Prepared](r.out)["n1"]; len(a) != 1 || a[0].Refusal != "" {
		t.Errorf("the last holder answers %+v", a)
	}
	if r.m.handsOver(r.now) {
		t.Error("it waits although nobody is about to take over")
	}
	n := r.node("n3")
	n.Stages = []topology.Stage{{Key: keyOf(first), State: topology.Loading}}
	r.see()
	if !r.m.handsOver(r.now) {
		t.Error("it does not wait for the one that loads")
	}
	if all := r.sleep(time.Second, "n1", "n2", "n3"); len(sent[protocol.Lost](all)) != 0 {
		t.Error("sessions are sent away before there is another holder")
	}
	n.Stages[0].State, n.Stages[0].Class, n.Stages[0].Cells = topology.Ready, "c", 1024
	r.see()
	if lost := sent[protocol.Lost](r.sleep(evacuateEvery, "n1", "n2", "n3"))["n1"]; len(lost) != 1 {
		t.Errorf("now that another is ready the owner is told %+v", lost)
	}
	r.say("n1", protocol.Close{Session: "a", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 0, Keep: true})
	if k := killed(r.sleep(time.Second, "n1", "n2", "n3")); len(k) != 1 {
		t.Errorf("%v killed", k)
	}
}

// TestOwnersLeaveWhatDrains moves an owner's session when it is asked to, to whoever does
// not drain, and back when there is no room; what only a draining node has is used.
func TestOwnersLeaveWhatDrains(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:0-1", "n3:1-2")
	r.node("n2").State = topology.Draining
	r.see()
	r.submit("s", 1, 2)
	to, p := prepares(r.out, "s")
	if len(to) != 2 || to[0] != "n1" {
		t.Fatalf("a new session is prepared at %v: n2 drains", to)
	}
	r.accept()
	r.node("n1").State, r.node("n2").State = topology.Draining, topology.Alive
	r.see()
	r.say("n1", protocol.Lost{Session: "s", Fence: p.Fence, Lo: 0, Cause: "drain"})
	to, p = prepares(r.out, "s")
	if len(to) != 2 || to[0] != "n2" || !p.Recovery {
		t.Fatalf("asked to leave n1 it is prepared at %v", to)
	}
	if f := reports(r.out, "failover"); len(f) != 1 || f[0].Cause != "drain" {
		t.Errorf("failovers %+v", f)
	}
	for _, lo := range []kevlard.NodeID{"n2", "n3"} {
		l := map[kevlard.NodeID]int{"n2": 0, "n3": 1}[lo]
		r.say(lo, protocol.Prepared{Session: "s", Fence: p.Fence, Lo: l})
	}
	r.node("n2").State = topology.Draining // both first stages drain: they serve while they stay
	r.see()
	r.submit("t", 3, 4)
	if to, _ = prepares(r.out, "t"); len(to) != 2 {
		t.Errorf("with both draining a session is prepared at %v", to)
	}
	if ok, missing := r.m.Servable(model); !ok {
		t.Errorf("not servable: %v", missing)
	}
}
