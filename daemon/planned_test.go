package daemon_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/topology"
)

// quick are settle times for tests, in which everybody is a thread of one process.
var quick = topology.Settle{
	Join: 300 * time.Millisecond, Newcomer: 500 * time.Millisecond, Death: 200 * time.Millisecond, Drain: 300 * time.Millisecond,
	Rebalance: time.Second, Release: 500 * time.Millisecond, Retry: time.Minute,
}

// startPlanned adds a host that takes the stages of the plan.
func (r *ring) startPlanned(name kevlard.NodeID) *member { return r.startSized(name, 1<<30) }

// startSized is startPlanned for a host with so many bytes for weights and KV.
func (r *ring) startSized(name kevlard.NodeID, budget int64) *member {
	r.t.Helper()
	cfg := r.config(name)
	cfg.Role, cfg.Auto, cfg.Settle, cfg.Goal = "host", true, quick, topology.Goal{Stages: 2}
	cfg.Capacity.Devices = []topology.Device{{Budget: budget}}
	return r.runPlanned(cfg)
}

// runPlanned starts a host and offers it the toy model.
func (r *ring) runPlanned(cfg daemon.Config) *member {
	r.t.Helper()
	m := r.run(cfg)
	if err := m.Offer([]daemon.LocalModel{sized()}, nil); err != nil {
		r.t.Fatal(err)
	}
	return m
}

// sized is the toy model with what it takes of a budget.
func sized() daemon.LocalModel {
	l := local()
	l.Weights = topology.Weights{Model: l.Model.ID, Embedding: 1000, Head: 1000, Layers: []topology.Run{{Count: toyModel.Layers, Bytes: 1 << 20}}, KV: 1 << 20}
	return l
}

// full waits until a node shows so many whole pipelines, and nothing missing.
func (r *ring) full(g *member, pipelines int) {
	r.t.Helper()
	r.until("the mesh is whole", func() bool {
		t := g.Topology()
		return len(t.Models) == 1 && !t.Models[0].Degraded && len(t.Models[0].Pipelines) == pipelines &&
			!slices.ContainsFunc(t.Models[0].Pipelines, func(p report.Pipeline) bool {
				return slices.ContainsFunc(p.Stages, func(s report.PipelineStage) bool { return s.State != "ready" })
			})
	}, func() {
		for _, m := range r.all() {
			r.t.Logf("%s: %+v", m.cfg.Name, m.Members().Nodes)
		}
		r.t.Logf("%+v", g.Topology())
	})
}

// TestMeshFormsAndHeals starts hosts without configured stages: they make two pipelines;
// one dies under load, another one takes its layers on, and no request notices.
func TestMeshFormsAndHeals(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	r.bulk = "memory"
	g := r.start("g")
	for _, n := range []kevlard.NodeID{"a", "b", "c", "d"} {
		r.startPlanned(n)
	}
	r.full(g, 2)
	// Who came first held all layers, and could go on with them for the dead.
	r.until("each host holds one stage", func() bool {
		return !slices.ContainsFunc(r.all(), func(m *member) bool { return m.cfg.Auto && len(m.Status().Stages) != 1 })
	})
	var victim *member
	for _, m := range r.all() {
		if m.cfg.Auto {
			victim = m
		}
	}
	var wg sync.WaitGroup
	results := make([]result, 8)
	begun := make(chan struct{}, len(results))
	for i := range results {
		wg.Go(func() {
			results[i] = generate(t.Context(), g, newJob(i, 200), func(n int) {
				if n == 5 {
					begun <- struct{}{}
				}
			})
		})
	}
	for range results {
		<-begun
	}
	r.kill(victim)
	wg.Wait()
	for i := range results {
		exact(t, newJob(i, 200), results[i])
	}
	// Until the ring has found the death, the mesh looks whole as it was.
	r.until("somebody says that it took layers on for the dead", func() bool {
		for _, m := range r.all() {
			for _, e := range m.Events(time.Time{}) {
				if e.Type == "reform" && e.Cause == "death" {
					return true
				}
			}
		}
		return false
	})
	r.full(g, 2)
}

// TestLoadThatFailsGoesToOthers is K29: one node can't load what the plan gives it; others
// hold it instead, and the record and the status say why.
func TestLoadThatFailsGoesToOthers(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	g := r.start("g")
	broken := r.startPlanned("a")
	broken.launcher.Refuse(errors.New("tensor blk.0.attn_q.weight: damaged"))
	for _, n := range []kevlard.NodeID{"b", "c"} {
		r.startPlanned(n)
	}
	r.until("the mesh is whole without it", func() bool {
		t := g.Topology()
		return len(t.Models) == 1 && !t.Models[0].Degraded && len(t.Models[0].Pipelines) == 2
	})
	r.until("its status says why", func() bool {
		for _, p := range broken.Status().Problems {
			if strings.Contains(p.What, "damaged") {
				return true
			}
		}
		return false
	})
	if n := broken.launcher.Starts(); n > 8 {
		t.Errorf("it tried %d times", n)
	}
	exact(t, newJob(1, 20), generate(t.Context(), g, newJob(1, 20), nil))
}

// TestTooLittleMemoryIsNamed: a host that takes what the plan gives it has no room for the
// only model, and its status says so with figures.
func TestTooLittleMemoryIsNamed(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	a := r.startSized("a", 9<<20)
	const want = "layers [0,8) of model toy find no memory: they take 17 MiB with the least room for KV, and the hosts that may hold them have 9 MiB left"
	r.until("its status says that memory is the reason", func() bool {
		return slices.ContainsFunc(a.Status().Problems, func(p report.Problem) bool {
			return p.What == want && strings.Contains(p.Fix, "memory_bytes")
		})
	}, func() { t.Logf("%+v", a.Status().Problems) })
	r.startSized("b", 20<<20)
	r.until("it is served, and the problem gone", func() bool {
		ok, _ := a.Ready()
		return ok && !slices.ContainsFunc(a.Status().Problems, func(p report.Problem) bool { return strings.Contains(p.What, "memory") })
	})
}

// TestMissingLayersAreNamed kills the only holder of layers that nobody else has room for:
// requests get a 503 that names them, and are served again when it is back.
func TestMissingLayersAreNamed(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	g := r.start("g")
	a, b := r.startSized("a", 10<<20), r.startSized("b", 10<<20)
	r.full(g, 1)
	victim, lost := b, "[4,8)"
	if b.Status().Engines[0].Lo == 0 {
		lost = "[0,4)"
	}
	r.kill(victim)
	got := generate(t.Context(), g, newJob(1, 20), nil)
	if e := got.end.Err; e == nil || e.Status != 503 || !strings.Contains(e.Message, lost) {
		t.Errorf("ended with %v, want a 503 that names layers %s", e, lost)
	}
	if ok, why := g.Ready(); ok || !strings.Contains(why, lost) {
		t.Errorf("ready: %v, %q", ok, why)
	}
	r.runPlanned(victim.cfg)
	r.full(g, 1)
	exact(t, newJob(2, 20), generate(t.Context(), g, newJob(2, 20), nil))
	if n := a.launcher.Starts(); n != 1 {
		t.Errorf("the other host started %d engines", n)
	}
}
