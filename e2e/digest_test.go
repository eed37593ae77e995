package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// joins tells s to join others.
func (s *single) joins(others ...*single) {
	var addrs []string
	for _, o := range others {
		addrs = append(addrs, o.addr(1))
	}
	s.set("ring", "join", addrs)
	s.set("ring", "secret_file", others[0].conf["ring"]["secret_file"])
}

// spoilLayer flips a bit in the weights of the bundled model's layer 6.
func spoilLayer(b []byte) []byte {
	b[len(b)-len(b)/5] ^= 4
	return b
}

// TestOtherWeights is K69: a node has other weights under the same name and for the
// same layers. It is never routed to, every node's status names it, and the name
// goes on to mean the model of the others, also while that cannot be served.
func TestOtherWeights(t *testing.T) {
	first := newSingle(t, "first")
	first.holds(t, 0, 4, nil)
	first.start(t)
	first.up(t)
	second := newSingle(t, "second")
	second.holds(t, 4, 8, nil)
	second.joins(first)
	second.start(t)
	second.up(t)
	wrong := newSingle(t, "wrong")
	wrong.holds(t, 4, 8, spoilLayer)
	wrong.joins(first)
	wrong.start(t)
	wrong.up(t)

	// Both wait until the ring is whole and all stages are loaded.
	var topo report.Topology
	eventually(t, readyWithin, func() error {
		var err error
		if topo, err = api.NewClient(first.socket()).Topology(t.Context()); err != nil {
			return err
		}
		for _, m := range topo.Models {
			for _, p := range m.Pipelines {
				for _, s := range p.Stages {
					if s.State != "ready" {
						return fmt.Errorf("%s of %s is %s", s.Node, m.ID, s.State)
					}
				}
			}
		}
		if len(topo.Models) != 2 {
			return fmt.Errorf("%d models", len(topo.Models))
		}
		return nil
	})
	for _, m := range topo.Models {
		var holders []string
		for _, p := range m.Pipelines {
			for _, s := range p.Stages {
				holders = append(holders, s.Node)
			}
		}
		if m.Name != "fairy" || slices.Contains(holders, "wrong") && slices.Contains(holders, "first") {
			t.Errorf("model %s, called %s, has pipelines over %v", m.ID, m.Name, holders)
		}
	}

	named := func(s *single) error {
		st, err := api.NewClient(s.socket()).Status(t.Context())
		if err != nil {
			return err
		}
		for _, p := range st.Problems {
			if strings.HasPrefix(p.What, "node wrong: its weights are not those of model fairy: it has sha256:") && strings.Contains(p.Fix, "copy the file from first, second") {
				return nil
			}
		}
		return fmt.Errorf("%s has problems %+v: none names the node with other weights", s.name, st.Problems)
	}
	for _, s := range []*single{first, second, wrong} {
		eventually(t, readyWithin, func() error { return named(s) })
	}

	client := load.NewClient("http://" + first.addr(0))
	defer client.CloseIdle()
	ask := load.Request{Model: "fairy", Prompt: "Once upon a time", MaxTokens: 24, Seed: 1, IgnoreEOS: true}
	want := client.Stream(t.Context(), ask, nil)
	if want.Err != nil || want.Tokens != 24 {
		t.Fatalf("%d tokens, %v", want.Tokens, want.Err)
	}

	if err := second.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-second.ended
	for range 3 {
		got := client.Stream(t.Context(), ask, nil)
		if e, ok := got.Err.(*load.APIError); !ok || e.Status != http.StatusServiceUnavailable || e.RetrySecs == "" {
			t.Errorf("with only the wrong weights for layers [4,8): text %q, %v: want 503 and Retry-After", got.Text(), got.Err)
		}
	}
	second.start(t)
	second.up(t)
	eventually(t, readyWithin, func() error {
		if got := client.Stream(t.Context(), ask, nil); got.Err != nil || !got.Same(want) {
			return fmt.Errorf("with the right weights again: %v, %q", got.Err, got.Text())
		}
		return nil
	})
	for _, s := range []*single{wrong, second, first} {
		s.stop(t)
		for _, p := range s.processes(t) {
			t.Errorf("%s left process %s", s.name, p)
		}
	}
}
