package daemon_test

import (
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// problem reports whether the status of a node names a problem with all the words.
func problem(m *member, words ...string) bool {
	for _, p := range m.Status().Problems {
		all := true
		for _, w := range words {
			all = all && strings.Contains(p.What+" "+p.Fix, w)
		}
		if all {
			return true
		}
	}
	return false
}

// TestOneWayMesh has a node that others can't dial, while it dials them (K39): both
// ends say which direction fails.
func TestOneWayMesh(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	a := r.start("a")
	cfg := a.cfg
	cfg.Name, cfg.DataDir, cfg.GossipBind, cfg.MeshListen, cfg.BulkListen = "b", t.TempDir(), r.port(), r.port(), ""
	cfg.Join = []string{a.GossipAddr()}
	cfg.MeshAdvertise = "127.0.0.1:1" // nobody listens there
	b := r.run(cfg)
	r.until("a names the direction", func() bool {
		return stateOf(a, "b") == "isolated" && problem(a, "node b", "the mesh does not", "127.0.0.1:1", "the other direction works")
	})
	r.until("b names the direction", func() bool {
		return stateOf(b, "a") == "alive" && problem(b, "node a", "this node reaches it", "has not connected back", "open TCP 127.0.0.1:1 here")
	})
}

// TestAllOthersDead wants a node that hears nobody to say that it is isolated (K42).
func TestAllOthersDead(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	a := r.start("a")
	others := []*member{r.start("b"), r.start("c")}
	r.until("all are there", func() bool { return len(a.Members().Nodes) == 3 })
	for _, m := range others {
		r.kill(m)
	}
	r.until("it says so", func() bool {
		return stateOf(a, "a") == "isolated" && problem(a, "this node is isolated", "none of the 2 others", a.GossipAddr())
	})
	for _, m := range others {
		r.run(m.cfg)
	}
	r.until("it is not any more", func() bool {
		for _, n := range []kevlard.NodeID{"a", "b", "c"} {
			if stateOf(a, n) != "alive" {
				return false
			}
		}
		return !problem(a, "isolated")
	})
}
