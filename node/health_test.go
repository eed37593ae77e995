package node

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// told is what the last record says of this node.
func told(t *testing.T, es []Effect) Publish {
	t.Helper()
	p := effectsOf[Publish](es)
	if len(p) == 0 {
		t.Fatalf("nobody is told: %v", es)
	}
	return p[len(p)-1]
}

// TestAvoidedDevice keeps work away from a node that says so, and from this one, while
// there is an elsewhere.
func TestAvoidedDevice(t *testing.T) {
	first := layers(0, 1)
	r := newRig(t, []kevlard.Layers{first}, "n1", "n2:1-2", "n3:0-1")
	r.step(Health{Avoid: true, Key: "GPU-0:temperature", Reason: "GPU 0: 86 degrees"})
	if p := told(t, r.out); !p.Avoid || p.Draining || p.Reason != "GPU 0: 86 degrees" {
		t.Errorf("%+v", p)
	}
	if r.m.usable(r.m.cfg.Self) || !r.m.serves(r.m.cfg.Self) {
		t.Error("it should serve only what nobody else can")
	}
	if s := r.m.Snapshot(r.now); !s.Avoided || s.Draining || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	r.step(Health{})
	if p := told(t, r.out); p.Avoid || p.Reason != "" || !r.m.usable(r.m.cfg.Self) {
		t.Errorf("all is well: %+v", p)
	}

	v := topology.View{Nodes: append([]topology.Node(nil), r.m.view.Nodes...)}
	for i := range v.Nodes {
		v.Nodes[i].Avoid = v.Nodes[i].ID == "n3"
	}
	r.step(ViewChanged{View: v})
	if r.m.usable("n3") || !r.m.serves("n3") || !r.m.usable("n2") {
		t.Error("n3 asks to be avoided")
	}
	for i := range v.Nodes {
		if v.Nodes[i].ID == "n3" {
			v.Nodes[i].State = topology.Dead
		}
	}
	r.step(ViewChanged{View: v})
	if r.m.serves("n3") {
		t.Error("it is dead")
	}
}

// TestSickDeviceDrains begins a drain, and ends it when all is well; what an administrator
// says counts more, until there is another complaint.
func TestSickDeviceDrains(t *testing.T) {
	sick := Health{Avoid: true, Drain: true, Key: "GPU-0:Xid 48", Reason: "GPU 0: Xid 48"}
	r := newRig(t, []kevlard.Layers{layers(0, 1)}, "n1", "n2:1-2", "n3:0-1")
	r.step(sick)
	if p := told(t, r.out); !p.Draining || p.Reason != sick.Reason {
		t.Fatalf("%+v", p)
	}
	if d := reports(r.out, "drain"); len(d) != 1 || d[0].Cause != "gpu" || d[0].Detail != sick.Reason {
		t.Errorf("reported: %+v", d)
	}
	if k := killed(r.sleep(2*time.Second, "n1", "n2", "n3")); len(k) != 1 {
		t.Errorf("its empty stage is kept: %v killed", k)
	}
	r.step(Health{})
	if p := told(t, r.out); p.Draining || p.Reason != "" || len(reports(r.out, "drain-undo")) != 1 {
		t.Errorf("all is well: %+v", p)
	}

	r.step(sick)
	r.step(Drain{Undo: true})
	if p := told(t, r.out); p.Draining || p.Avoid || p.Reason != "" {
		t.Errorf("overruled: %+v", p)
	}
	r.step(sick)
	if r.m.drains.on {
		t.Error("it drains again for what was overruled")
	}
	r.step(Health{Avoid: true, Drain: true, Key: "GPU-0:Xid 79", Reason: "GPU 0: Xid 79"})
	if !r.m.drains.on {
		t.Error("another complaint must drain again")
	}

	r.step(Drain{}) // now it is the administrator's
	r.step(Health{})
	if !r.m.drains.on {
		t.Error("a drain that somebody ordered ended by itself")
	}
}

// TestUndoOfAJobsDrain: a script that takes the node back after a job does not overrule a
// device that failed before or meanwhile; a second undo does, which is said of the device.
func TestUndoOfAJobsDrain(t *testing.T) {
	sick := Health{Avoid: true, Drain: true, Key: "GPU-0:Xid 48", Reason: "GPU 0: Xid 48"}
	for name, steps := range map[string][]Event{"failed meanwhile": {Drain{}, sick}, "failed before": {sick, Drain{}}} {
		r := newRig(t, []kevlard.Layers{layers(0, 1)}, "n1", "n2:1-2", "n3:0-1")
		for _, s := range steps {
			r.step(s)
		}
		r.step(Drain{Undo: true})
		if p := told(t, r.out); !p.Draining || p.Reason != sick.Reason {
			t.Errorf("%s: after the job %+v", name, p)
		}
		if s := r.m.Snapshot(r.now); s.Orders != 2 {
			t.Errorf("%s: %d orders", name, s.Orders)
		}
		r.step(Health{})
		if r.m.drains.on {
			t.Errorf("%s: it drains although the device is well and the job is done", name)
		}
		r.step(sick)
		r.step(Drain{Undo: true})
		if p := told(t, r.out); p.Draining || p.Avoid {
			t.Errorf("%s: overruled %+v", name, p)
		}
	}
	// What only should be avoided is no drain, and stays avoided.
	r := newRig(t, []kevlard.Layers{layers(0, 1)}, "n1", "n2:1-2", "n3:0-1")
	r.step(Health{Avoid: true, Key: "GPU-0:temperature", Reason: "GPU 0: 86 degrees"})
	r.step(Drain{})
	r.step(Drain{Undo: true})
	if p := told(t, r.out); p.Draining || !p.Avoid {
		t.Errorf("hot: %+v", p)
	}
}
