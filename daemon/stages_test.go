package daemon_test

import (
	"sync"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
)

// local is the toy model as one that is on a node's disk.
func local() daemon.LocalModel {
	return daemon.LocalModel{Model: toyTopology(), Width: toyModel.Width, Layers: []kevlard.Layers{span(0, toyModel.Layers)}}
}

// startFree adds a host without stages that has the toy model on its disk.
func (r *ring) startFree(name kevlard.NodeID) *member {
	r.t.Helper()
	m := r.start(name)
	if err := m.Offer([]daemon.LocalModel{local()}, nil); err != nil {
		r.t.Fatal(err)
	}
	return m
}

// holds reports whether every node of the ring shows that m has exactly these stages, all
// of them ready.
func (r *ring) holds(m *member, layers ...kevlard.Layers) bool {
	for _, o := range r.all() {
		for _, n := range o.Members().Nodes {
			if n.Name != string(m.cfg.Name) {
				continue
			}
			if len(n.Stages) != len(layers) {
				return false
			}
			for i, s := range n.Stages {
				if s.Lo != layers[i].Lo || s.Hi != layers[i].Hi || s.State != "ready" {
					return false
				}
			}
		}
	}
	return true
}

// TestStagesComeAndGo moves stages while sessions run through them: a free host adopts a
// stage, the one that had it gives it up, and takes another; all answers are exact.
func TestStagesComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	r.bulk = "memory"
	a := r.start("a", span(0, 4))
	b := r.start("b", span(4, 8))
	c := r.startFree("c")
	g := r.start("g")
	r.ready()
	var wg sync.WaitGroup
	results := make([]result, 8)
	begun := make(chan struct{}, len(results))
	for i := range results {
		wg.Go(func() {
			results[i] = generate(t.Context(), g, newJob(i, 400), func(n int) {
				if n == 5 {
					begun <- struct{}{}
				}
			})
		})
	}
	for range results {
		<-begun
	}
	if err := c.Adopt(key(span(0, 4)), "test"); err != nil {
		t.Fatal(err)
	}
	r.until("c has the first stage", func() bool { return r.holds(c, span(0, 4)) })
	if err := a.Release(key(span(0, 4))); err != nil {
		t.Fatal(err)
	}
	r.until("a has no stage", func() bool { return r.holds(a) })
	if len(a.Status().Engines) != 0 {
		t.Errorf("a has engines: %+v", a.Status().Engines)
	}
	if err := a.Offer([]daemon.LocalModel{local()}, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Adopt(key(span(4, 8)), "test"); err != nil {
		t.Fatal(err)
	}
	r.until("a has the second stage", func() bool { return r.holds(a, span(4, 8)) })
	if err := b.Release(key(span(4, 8))); err != nil {
		t.Fatal(err)
	}
	r.until("b has no stage", func() bool { return r.holds(b) })
	wg.Wait()
	for i := range results {
		exact(t, newJob(i, 400), results[i])
	}
	r.idle()
	if err := b.Adopt(kevlard.StageKey{Model: kevlard.Digest{9}, Layers: span(0, 1)}, "test"); err == nil {
		t.Error("a stage of a model that is not here is adopted")
	}
	if err := b.Offer([]daemon.LocalModel{{Model: toyTopology()}}, nil); err == nil {
		t.Error("a model with rows of no width is offered")
	}
}
