package daemon_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/mesh"
)

// startAs adds a node that speaks other versions of the protocol.
func (r *ring) startAs(name kevlard.NodeID, v mesh.Versions, layers ...kevlard.Layers) *member {
	r.t.Helper()
	like := r.all()[0]
	cfg := like.cfg
	cfg.Name, cfg.DataDir, cfg.GossipBind, cfg.MeshListen, cfg.BulkListen = name, r.t.TempDir(), r.port(), r.port(), ""
	cfg.Join, cfg.Role, cfg.Assigned = []string{like.GossipAddr()}, "gateway", nil
	cfg.Protocol, cfg.Version = v, fmt.Sprintf("of-%d", v.Max)
	if len(layers) > 0 {
		cfg.Role = "host"
		for _, l := range layers {
			cfg.Assigned = append(cfg.Assigned, daemon.AssignedStage{Model: toyTopology(), Layers: l, Width: toyModel.Width})
		}
	}
	return r.run(cfg)
}

// TestNeighbouringVersionsServe has nodes of the versions N-1, N-1 to N, and N to N+1 (K70):
// where two know a common one they serve together.
func TestNeighbouringVersionsServe(t *testing.T) {
	r := newRing(t)
	r.start("g")
	a := r.startAs("a", mesh.Versions{Min: 1, Max: 2}, span(0, 4))
	b := r.startAs("b", mesh.Versions{Min: 1, Max: 1}, span(4, 8))
	r.ready()
	for i, m := range []*member{r.members["g"], a, b} {
		j := newJob(i, 40)
		exact(t, j, generate(t.Context(), m, j, nil))
	}
}

// TestForeignVersionsAreRefusedByName starts a holder of the second stage that speaks other
// versions than all others, beside one that does not: both sides name the two versions,
// nobody routes to it, and the others serve on.
func TestForeignVersionsAreRefusedByName(t *testing.T) {
	r := newRing(t)
	g := r.start("g")
	r.start("a", span(0, 4))
	r.start("b", span(4, 8))
	r.ready()
	late := r.startAs("late", mesh.Versions{Min: 2, Max: 3}, span(4, 8))
	r.until("the old ones name it", func() bool {
		return stateOf(g, "late") == "isolated" && problem(g, "node late", "2..3", "of-3", "1..1", "upgrade")
	})
	r.until("the new one names them", func() bool {
		return stateOf(late, "b") == "isolated" && problem(late, "node b", "1..1", "2..3", "of-3", "upgrade")
	})
	r.until("the refusal is an event", func() bool {
		for _, e := range g.Events(time.Time{}) {
			if e.Type == "refused-peer" && e.Peer == "late" && strings.Contains(e.Cause, "2..3") && strings.Contains(e.Cause, "1..1") {
				return true
			}
		}
		return false
	})
	for i := range 4 {
		j := newJob(i, 40)
		exact(t, j, generate(t.Context(), g, j, func(int) {
			for _, s := range g.Sessions(t.Context(), false).Sessions {
				if slices.Contains(s.Route, "late") {
					t.Errorf("session %s runs through a node of another protocol", s.ID)
				}
			}
		}))
	}
	if ok, why := late.Ready(); ok || why == "" {
		t.Errorf("alone with its version it is ready: %v %q", ok, why)
	}
}

// stranger is a bare end of the mesh that is connected to m, to send what it likes.
func (r *ring) stranger(name kevlard.NodeID, m *member) *mesh.Mesh {
	r.t.Helper()
	key, err := mesh.LoadOrCreateKey(r.t.TempDir())
	if err != nil {
		r.t.Fatal(err)
	}
	x, err := mesh.New(mesh.Config{Key: key, Self: name, Boot: "1", Ring: m.cfg.Ring, Secret: m.cfg.Secret, Listen: r.port()})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	x.SetPeers([]mesh.Address{{Node: m.cfg.Name, ID: m.Members().Nodes[0].ID, Boot: m.Boot(), Addr: m.MeshAddr()}})
	r.until("the stranger is connected", func() bool { return x.Peers()[0].Connected })
	return x
}

// TestUnknownWordsBreakNothing is a member that sends kinds of messages and fields that this
// build does not know: they are dropped, one event tells of it, and the link stands.
func TestUnknownWordsBreakNothing(t *testing.T) {
	r := newRing(t)
	a := r.start("a", span(0, 8))
	r.ready()
	x := r.stranger("x", a)
	for _, b := range [][]byte{{250}, {250, 1, 2, 3}, {0}, {1}, {1, 0xa0}, {8, 0xa1, 0x18, 77, 1}, {8, 0xff}} {
		if err := x.Control("a", b); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Data("a", []byte{0xa1, 0x18, 77, 1}, []byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Call(t.Context(), "a", "of-a-later-build", nil); err == nil || !strings.Contains(err.Error(), "does not know the method") {
		t.Errorf("an unknown call: %v", err)
	}
	r.until("one event tells of it", func() bool {
		n := 0
		for _, e := range a.Events(time.Time{}) {
			if e.Type == "bad-message" && e.Peer == "x" {
				n++
			}
		}
		return n == 1
	})
	if p := x.Peers(); len(p) != 1 || !p[0].Connected {
		t.Errorf("the link: %+v", p)
	}
	j := newJob(1, 40)
	exact(t, j, generate(t.Context(), a, j, nil))
}
