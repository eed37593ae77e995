package daemon_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/topology"
)

// sick is one device of a host.
func sick(state, cause, reason string, used bool) daemon.DeviceHealth {
	return daemon.DeviceHealth{ID: "GPU-0", Name: "H200", PCI: "0000:3b:00.0", Used: used, State: state, Cause: cause, Reason: reason, Fix: "look", MemoryTotal: 1 << 30, MemoryUsed: 1 << 20, Temperature: 50}
}

func memberOf(m *member, name string) report.Member {
	for _, n := range m.Members().Nodes {
		if n.Name == name {
			return n
		}
	}
	return report.Member{}
}

func eventsOf(m *member, typ string) []report.Event {
	return slices.DeleteFunc(m.Events(time.Time{}), func(e report.Event) bool { return e.Type != typ })
}

// TestSickDevice tells a host of two that its GPU is hot, then that it fails (K21): first
// sessions go to the other one, then those that run there move, token-exact; it says why, to
// itself and to others, and is back when the GPU is well.
func TestSickDevice(t *testing.T) {
	r := newRing(t)
	r.step = 5 * time.Millisecond
	news := map[kevlard.NodeID]chan daemon.DeviceNews{}
	r.devices = func(n kevlard.NodeID) chan daemon.DeviceNews {
		news[n] = make(chan daemon.DeviceNews)
		return news[n]
	}
	g := r.start("g")
	all := span(0, toyModel.Layers)
	a := r.start("a", all)
	b := r.start("b", all)
	r.ready()

	// A device that nobody computes on is shown, and changes nothing.
	tell := func(n kevlard.NodeID, h daemon.DeviceHealth, xids ...daemon.DeviceXid) {
		news[n] <- daemon.DeviceNews{Devices: []daemon.DeviceHealth{h}, Xids: xids}
	}
	tell("a", sick(daemon.DeviceDrain, "lost", "it is gone", false))
	r.until("a shows it", func() bool { return len(eventsOf(a, "gpu-drain")) == 1 })
	tell("a", sick(daemon.DeviceOK, "", "", true))
	r.until("a is well", func() bool { return len(eventsOf(a, "gpu-ok")) == 1 })
	if s := a.Status(); s.Draining || !s.Ready || len(s.GPUs) != 1 || s.GPUs[0].State != "ok" || len(eventsOf(a, "drain")) != 0 {
		t.Errorf("%+v", s)
	}

	// Hot: new work goes elsewhere.
	hot := func(degrees string) daemon.DeviceHealth {
		return sick(daemon.DeviceAvoid, "temperature", degrees+" degrees", true)
	}
	tell("a", hot("86"))
	r.until("others know", func() bool {
		m := memberOf(g, "a")
		return m.State == "alive" && m.Ready && strings.Contains(m.Reason, "GPU 0 (GPU-0, H200): 86 degrees") && strings.Contains(m.Reason, "elsewhere")
	})
	tell("a", hot("87")) // no news
	for i := range 6 {
		j := newJob(i, 10)
		s, err := g.Generate(t.Context(), j.name, j.req)
		if err != nil {
			t.Fatal(err)
		}
		res := read(t.Context(), s, func(int) {
			for _, x := range g.Sessions(t.Context(), false).Sessions {
				if slices.Contains(x.Route, "a") {
					t.Errorf("session %s runs through a", x.ID)
				}
			}
		})
		exact(t, j, res)
	}
	if n := len(eventsOf(a, "gpu-avoid")); n != 1 {
		t.Errorf("%d events of one complaint", n)
	}
	tell("b", hot("86")) // nobody is left: then they serve
	r.until("others know of b too", func() bool { return strings.Contains(memberOf(g, "b").Reason, "86 degrees") })
	exact(t, newJob(7, 10), generate(t.Context(), g, newJob(7, 10), nil))
	tell("b", sick(daemon.DeviceOK, "", "", true))
	tell("a", sick(daemon.DeviceOK, "", "", true))
	r.ready()
	r.until("both are well", func() bool { return memberOf(g, "a").Reason == "" && memberOf(g, "b").Reason == "" })

	// It fails under sessions.
	broken := sick(daemon.DeviceDrain, "xid", "the driver reported Xid 48: an uncorrectable memory error", true)
	victim := kevlard.NodeID("")
	j := newJob(9, 200)
	res := generate(t.Context(), g, j, func(n int) {
		if n != 20 {
			return
		}
		r.until("its route is seen", func() bool {
			for _, s := range g.Sessions(t.Context(), false).Sessions {
				if strings.HasPrefix(s.ID, string(j.name)) && len(s.Route) > 0 {
					victim = kevlard.NodeID(s.Route[0])
				}
			}
			return victim != ""
		})
		tell(victim, broken, daemon.DeviceXid{PCI: "0000:3b:00", Code: 48, Text: "Xid 48"}, daemon.DeviceXid{PCI: "0000:3b:00", Code: 48, Text: "Xid 48"})
	})
	exact(t, j, res)
	m := map[kevlard.NodeID]*member{"a": a, "b": b}[victim]
	if m == nil {
		t.Fatalf("the session ran through %q", victim)
	}
	r.until("it has given its stage up", func() bool { s := m.Status(); return s.Draining && len(s.Stages) == 0 })
	if f := eventsOf(g, "failover"); len(f) != 1 || f[0].Cause != "drain" {
		t.Errorf("the session moved by %+v", f)
	}
	s := m.Status()
	if s.Ready || !strings.Contains(s.Reason, "Xid 48") || len(s.Problems) == 0 || !strings.Contains(s.Problems[0].What, "drains itself") || s.Problems[0].Fix != "look" {
		t.Errorf("its status: ready %t, %q, %+v", s.Ready, s.Reason, s.Problems)
	}
	r.until("others know why", func() bool {
		x := memberOf(g, string(victim))
		return x.State == "draining" && strings.Contains(x.Reason, "Xid 48")
	})
	if d := eventsOf(m, "drain"); len(d) != 1 || d[0].Cause != "gpu" || !strings.Contains(d[0].Detail, "Xid 48") {
		t.Errorf("%+v", d)
	}
	if x := eventsOf(m, "gpu-xid"); len(x) != 1 || x[0].Cause != "xid-48" {
		t.Errorf("%+v", x)
	}
	values := scrape(t, m)
	if values["kevlard_gpu_xids_total pci=0000:3b:00 xid=48"] != 2 || values["kevlard_gpu_health gpu=0 id=GPU-0"] != 2 || values["kevlard_gpu_memory_used_bytes gpu=0 id=GPU-0"] != 1<<20 {
		t.Errorf("metrics: %v", values)
	}

	// An administrator knows better, until there is another complaint.
	if err := m.Drain(t.Context(), "", true); err != nil {
		t.Fatal(err)
	}
	tell(victim, broken)
	r.ready()
	tell(victim, sick(daemon.DeviceDrain, "xid", "the driver reported Xid 79: the GPU has fallen off the bus", true))
	r.until("it drains again", func() bool { return m.Status().Draining })
	tell(victim, sick(daemon.DeviceOK, "", "", true))
	r.ready()
}

// TestMissingDevice: a host without its device says so, to itself and to others, until it
// is there; the memory that is found then gets it its part of the plan.
func TestMissingDevice(t *testing.T) {
	r := newRing(t)
	news := make(chan daemon.DeviceNews)
	r.devices = func(n kevlard.NodeID) chan daemon.DeviceNews {
		if n != "a" {
			return nil
		}
		return news
	}
	g := r.start("g")
	b := r.start("b", span(0, toyModel.Layers))
	a := r.startSized("a", 0)
	r.ready()
	const why = "[engine] devices asks for cuda:0, and there is only cpu"
	news <- daemon.DeviceNews{Missing: why}
	r.until("it says so", func() bool { ok, reason := a.Ready(); return !ok && reason == why })
	r.until("others are told", func() bool { m := memberOf(g, "a"); return m.State == "alive" && !m.Ready && m.Reason == why })
	if s := a.Status(); len(s.Problems) == 0 || s.Problems[0].What != why || s.Problems[0].Fix == "" || len(s.Stages) != 0 {
		t.Errorf("%+v", s)
	}
	if m := memberOf(a, "a"); m.Ready || m.Reason != why {
		t.Errorf("%+v", m)
	}
	news <- daemon.DeviceNews{Missing: why} // no news
	if ok, reason := b.Ready(); !ok {
		t.Errorf("b is not ready: %s", reason)
	}

	news <- daemon.DeviceNews{}
	r.until("others are told that it is there", func() bool { return memberOf(g, "a").Ready && memberOf(g, "a").Reason == "" })
	if m, f := eventsOf(a, "device-missing"), eventsOf(a, "device-found"); len(m) != 1 || m[0].Detail != why || len(f) != 1 {
		t.Errorf("%+v, %+v", m, f)
	}
	if err := a.Offer([]daemon.LocalModel{sized()}, []topology.Device{{Budget: 1 << 30}}); err != nil {
		t.Fatal(err)
	}
	r.until("it takes its part", func() bool { s := a.Status(); return len(s.Stages) == 1 && s.Stages[0].State == "ready" })
}

// TestUndoOfAJobsDrain: an undo that leaves the node draining, for a device, says so.
func TestUndoOfAJobsDrain(t *testing.T) {
	r := newRing(t)
	news := make(chan daemon.DeviceNews)
	r.devices = func(kevlard.NodeID) chan daemon.DeviceNews { return news }
	a := r.start("a", span(0, toyModel.Layers))
	r.ready()
	if err := a.Drain(t.Context(), "", false); err != nil {
		t.Fatal(err)
	}
	news <- daemon.DeviceNews{Devices: []daemon.DeviceHealth{sick(daemon.DeviceDrain, "xid", "the driver reported Xid 48", true)}}
	r.until("it has heard", func() bool { return strings.Contains(a.Status().Reason, "Xid 48") })
	err := a.Drain(t.Context(), "", true)
	if f, ok := errors.AsType[*kevlard.Failure](err); !ok || f.Code != "device_drain" || f.Status != 409 || !strings.Contains(f.Message, "Xid 48") || !a.Status().Draining {
		t.Errorf("the undo: %v, %+v", err, a.Status())
	}
	if err := a.Drain(t.Context(), "", true); err != nil {
		t.Errorf("overruled: %v", err)
	}
	r.ready()
}
