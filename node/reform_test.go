package node

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// freeNode is a node that takes stages of model as planned: one device, the weights on
// its disk.
func freeNode(id kevlard.NodeID, stages ...topology.Stage) topology.Node {
	m := model
	m.Width = 8
	return topology.Node{
		ID: id, Boot: kevlard.BootID(id + ".1"), State: topology.Alive, Models: []topology.Model{m}, Stages: stages,
		Capacity: topology.Capacity{
			Auto: true, Devices: []topology.Device{{Budget: 1000}},
			Weights: []topology.Weights{{Model: m.ID, Layers: []topology.Run{{Count: 2, Bytes: 100}}, KV: 10}},
			Local:   []topology.Local{{Model: m.ID, Layers: []kevlard.Layers{layers(0, 2)}}},
		},
	}
}

// newFree returns node "o" without stages, which plans, in a ring with others.
func newFree(t *testing.T, others ...topology.Node) *rig {
	t.Helper()
	r := &rig{T: t, now: kevlard.Instant(time.Second), m: New(Config{Self: "o", Boot: "o.1", Auto: true, Goal: topology.Goal{Stages: 2}})}
	r.step(Wake{})
	r.view.Nodes = append(r.view.Nodes, others...)
	r.view.Nodes = append(r.view.Nodes, freeNode("o"))
	r.see()
	return r
}

// settle lets time pass until the node does something about stages; the view shows it
// what it published. It returns the effects.
func (r *rig) settle(d time.Duration) []Effect {
	var all []Effect
	end := r.now.Add(d)
	for r.m.Deadline() <= end {
		r.now = max(r.now, r.m.Deadline())
		r.step(Wake{})
		all = append(all, r.out...)
		for _, p := range effectsOf[Publish](r.out) {
			n := r.node("o")
			n.Stages, n.Failed = p.Stages, p.Failed
			r.see()
			all = append(all, r.out...)
		}
	}
	r.now = end
	return all
}

func readyStage(l kevlard.Layers) topology.Stage {
	return topology.Stage{Key: keyOf(l), State: topology.Ready, Class: "c", Cells: 1024}
}

// TestTakesWhatIsPlanned starts alone: both stages are loaded, one after the other, and
// counted; when a holder of the first one comes and goes, nothing moves.
func TestTakesWhatIsPlanned(t *testing.T) {
	r := newFree(t)
	all := r.settle(10 * time.Second)
	for i, l := range []kevlard.Layers{layers(0, 1), layers(1, 2)} {
		starts := effectsOf[StartEngine](all)
		if len(starts) != 1 || starts[0].Stage != keyOf(l) {
			t.Fatalf("start %d: engines %v of %v", i, starts, all)
		}
		if ev := reports(all, "reform"); len(ev) != 1 || ev[0].Cause != "join" {
			t.Fatalf("events %+v", ev)
		}
		r.step(EngineReady{Stage: keyOf(l), Run: 1, Class: "c", Cells: 1024, Width: 8})
		all = slices.Clone(r.out)
		n := r.node("o")
		n.Stages = r.published()
		r.see()
		all = append(append(all, r.out...), r.settle(10*time.Second)...)
	}
	if n := r.m.Snapshot(r.now).Counters.Reforms["join"]; n != 2 {
		t.Errorf("%d re-forms are counted", n)
	}
	if all = append(all, r.settle(time.Minute)...); len(effectsOf[StartEngine](all))+len(effectsOf[KillEngine](all)) != 0 {
		t.Errorf("it does not come to rest: %v", all)
	}
}

// TestAdoptsForTheDead waits for a verdict and a settle time before it takes the stage of
// a dead node on.
func TestAdoptsForTheDead(t *testing.T) {
	first, second := layers(0, 1), layers(1, 2)
	r := newFree(t, freeNode("a", readyStage(first)), freeNode("b", readyStage(second)), freeNode("c", readyStage(first)), freeNode("d", readyStage(second)))
	if all := r.settle(5 * time.Second); len(effectsOf[StartEngine](all)) != 0 {
		t.Fatalf("what others hold is loaded at once: %v", all)
	}
	r.node("c").State = topology.Dead
	r.see()
	if all := r.settle(time.Second); len(effectsOf[StartEngine](all)) != 0 {
		t.Fatalf("a death is not let settle: %v", all)
	}
	all := r.settle(5 * time.Second)
	if starts := effectsOf[StartEngine](all); len(starts) != 1 || starts[0].Stage != keyOf(first) {
		t.Fatalf("engines %v of %v", starts, all)
	}
	if ev := reports(all, "reform"); len(ev) != 1 || ev[0].Cause != "death" {
		t.Errorf("events %+v", ev)
	}
}

// TestAdoptsForTheDistrusted: of two holders that dispute each other neither serves, and
// who plans takes their layers on. When it finds one of them right, that one counts again.
func TestAdoptsForTheDistrusted(t *testing.T) {
	first, second := layers(0, 1), layers(1, 2)
	r := newFree(t, freeNode("a", readyStage(first)), freeNode("b", readyStage(second)), freeNode("c", readyStage(first)), freeNode("d", readyStage(second)))
	r.settle(5 * time.Second)
	r.dispute("a", "c")
	r.dispute("c", "a")
	all := r.settle(10 * time.Second)
	if starts := effectsOf[StartEngine](all); len(starts) != 1 || starts[0].Stage != keyOf(first) {
		t.Fatalf("engines %v of %v", starts, all)
	}
	r.step(EngineReady{Stage: keyOf(first), Run: 1, Class: "c", Cells: 1024, Width: 8})
	n := r.node("o")
	n.Stages = r.published()
	n.Stages[0].Agrees, n.Stages[0].Disputes = []kevlard.NodeID{"a"}, []kevlard.NodeID{"c"}
	r.see()
	if back := reports(r.out, "trusted"); len(back) != 1 || back[0].Node != "a" {
		t.Errorf("believed again: %+v", back)
	}
	if all = r.settle(10 * time.Second); len(effectsOf[StartEngine](all))+len(effectsOf[KillEngine](all)) != 0 {
		t.Errorf("it does not come to rest: %v", all)
	}
}

// TestAdoptsWhenTrustIsLostLate: a third holder is waited for and says nothing, so trust is
// lost when no view is new; that is planned for all the same.
func TestAdoptsWhenTrustIsLostLate(t *testing.T) {
	first, second := layers(0, 1), layers(1, 2)
	r := newFree(t, freeNode("a", readyStage(first)), freeNode("b", readyStage(second)), freeNode("c", readyStage(first)), freeNode("d", readyStage(second)), freeNode("e", readyStage(first)))
	r.settle(time.Minute)
	r.dispute("a", "c")
	r.dispute("c", "a")
	all := r.settle(time.Minute)
	if len(reports(all, "distrusted")) != 2 {
		t.Fatalf("distrusted: %+v", reports(all, "distrusted"))
	}
	if starts := effectsOf[StartEngine](all); len(starts) != 1 || starts[0].Stage != keyOf(first) {
		t.Errorf("engines %v of %v", starts, all)
	}
}

// TestDeathCountsFromTheReset: when the ring says that a node is dead, most of the wait
// for its return is over.
func TestDeathCountsFromTheReset(t *testing.T) {
	first, second := layers(0, 1), layers(1, 2)
	r := newFree(t, freeNode("a", readyStage(first)), freeNode("b", readyStage(second)), freeNode("c", readyStage(first)), freeNode("d", readyStage(second)))
	r.step(PeerUp{Node: "c", Boot: "c.1"})
	r.settle(5 * time.Second)
	r.step(PeerDown{Node: "c", Cause: "reset"})
	r.settle(3 * time.Second)
	r.node("c").State = topology.Dead
	r.see()
	if all := r.settle(900 * time.Millisecond); len(effectsOf[StartEngine](all)) != 0 {
		t.Fatalf("it might still come back: %v", all)
	}
	if all := r.settle(200 * time.Millisecond); len(effectsOf[StartEngine](all)) != 1 {
		t.Errorf("nobody replaces it: %v", all)
	}
}

// TestGivesBackWhatDoesNotLoad is K29: a range whose weights can't be loaded goes to
// others with a reason, and is not tried in a loop.
func TestGivesBackWhatDoesNotLoad(t *testing.T) {
	r := newFree(t)
	starts, published := 0, 0
	var events []Report
	var failed []topology.Failed
	for range 5 {
		all := r.settle(10 * time.Second)
		for _, s := range effectsOf[StartEngine](all) {
			starts++
			r.step(EngineExited{Stage: s.Stage, Run: s.Run, Reason: "tensor blk.0.attn_q.weight: damaged"})
			events = append(events, reports(r.out, "reform")...)
			if ps := effectsOf[Publish](r.out); len(ps) > 0 {
				r.node("o").Stages, r.node("o").Failed = ps[len(ps)-1].Stages, ps[len(ps)-1].Failed
				r.see()
			}
		}
		events = append(events, reports(all, "reform")...)
		failed = append(failed, r.m.Snapshot(r.now).Failed...)
		published += len(r.node("o").Failed)
	}
	gaveBack := 0
	for _, e := range events {
		if e.Cause == "load-failed" {
			gaveBack++
		}
	}
	if gaveBack == 0 || len(failed) == 0 || failed[0].Reason == "" || published == 0 {
		t.Errorf("given back %d times, failed %+v, %d published", gaveBack, failed, published)
	}
	if starts > 2*2*2 {
		t.Errorf("%d starts in 50 s", starts)
	}
	if len(r.m.stages) > 1 {
		t.Errorf("%d stages are held", len(r.m.stages))
	}
}

// TestStaticStagesStay: a node with configured stages plans nothing.
func TestStaticStagesStay(t *testing.T) {
	r := newRig(t, []kevlard.Layers{layers(0, 1)}, "n1:1-2")
	r.node("n1").State = topology.Dead
	r.see()
	all := r.sleep(time.Minute)
	if len(effectsOf[StartEngine](all))+len(effectsOf[KillEngine](all)) != 0 {
		t.Errorf("stages move: %v", all)
	}
	if r.m.Snapshot(r.now).Counters.Reforms["death"] != 0 {
		t.Error("a re-form is counted")
	}
}
