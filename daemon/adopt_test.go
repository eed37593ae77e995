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
	"github.com/kevlard/kevlard/weights"
)

// TestStagesAreFetched gives stages to hosts with empty disks. One fetches them and serves;
// another one can't use what it fetched, gives them back, and says why.
func TestStagesAreFetched(t *testing.T) {
	t.Parallel()
	m := synthetic(t, toyModel.Layers)
	top := toyTopology()
	top.ID = m.ID
	described := func(on ...kevlard.Layers) daemon.LocalModel {
		return daemon.LocalModel{
			Model: top, Width: toyModel.Width, Layers: on,
			Weights: topology.Weights{Model: m.ID, Embedding: 1000, Head: 1000, Layers: []topology.Run{{Count: toyModel.Layers, Bytes: 1 << 20}}, KV: 1 << 20},
		}
	}
	r := newRing(t)
	r.bulk = "memory"
	r.library = func(n kevlard.NodeID) *weights.Library {
		if n == "a" {
			return shelf(m)
		}
		return nil // its own
	}
	r.fetched = func(n kevlard.NodeID) (daemon.LocalModel, error) {
		if n == "b" {
			return daemon.LocalModel{}, errors.New("the tokenizer is of an unknown kind")
		}
		return described(), nil
	}
	g := r.start("g")
	host := func(name kevlard.NodeID) *member {
		cfg := r.config(name)
		cfg.Role, cfg.Auto, cfg.Settle, cfg.Goal = "host", true, quick, topology.Goal{Stages: 2}
		cfg.Capacity.Devices = []topology.Device{{Budget: 1 << 30}}
		return r.run(cfg)
	}
	a := host("a")
	if err := a.Offer([]daemon.LocalModel{described(span(0, toyModel.Layers))}, nil); err != nil {
		t.Fatal(err)
	}
	r.until("a holds all layers", func() bool { return len(a.Status().Engines) == 2 })
	b := host("b")
	r.until("b says why it gave a stage back", func() bool {
		return slices.ContainsFunc(b.Status().Problems, func(p report.Problem) bool { return strings.Contains(p.What, "unknown kind") })
	})
	c := host("c")
	r.full(g, 2)
	if !slices.ContainsFunc(c.Events(time.Time{}), func(e report.Event) bool { return e.Type == "weights-fetched" }) {
		t.Errorf("c fetched nothing: %+v", c.Events(time.Time{}))
	}
	if len(c.Status().Engines) == 0 {
		t.Error("c has no engine")
	}
	r.kill(a)
	r.until("a is dead", func() bool {
		return !slices.ContainsFunc(c.Members().Nodes, func(n report.Member) bool { return n.Name == "a" && n.State == "alive" })
	})
	j := newJob(1, 20)
	j.req.Model = m.ID
	exact(t, j, generate(t.Context(), g, j, nil))
}
