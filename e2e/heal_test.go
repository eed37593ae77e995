package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestDeathsAreHealed kills one, two and three of eight hosts at once under load: no
// request notices, and the time until each layer has all its holders again is printed.
// Replacements come from the hosts' own disks, then from peers.
func TestDeathsAreHealed(t *testing.T) {
	needLong(t, "4 min")
	for name, empty := range map[string]int{"disk": 0, "peers": 7} {
		t.Run(name, func(t *testing.T) {
			m := start(t, devmesh.Options{Nodes: 8, Auto: true, Empty: empty, Gateways: 1, Cells: stormStreams * 1024})
			m.whole(t, 2)
			for n := 1; n <= 3; n++ {
				victims := m.victims(t, n)
				traffic := m.background(t, 6, 200)
				eventually(t, streamWithin, func() error { return traffic.atLeast(6) })
				before := m.fetchedBytes(t, victims...)
				var names []string
				for _, v := range victims {
					names = append(names, v.Name())
				}
				busy := startOfWait(t)
				at := time.Now()
				m.chaos(t, "kill", names...)
				m.redundant(t, victims...)
				took := time.Since(at)
				waited := busy.since(t)
				got := m.fetchedBytes(t, victims...) - before
				traffic.stop(t)
				t.Logf("%v killed: full redundancy after %v, %d bytes from peers; %s\n%s", names, took.Round(10*time.Millisecond), got, waited, m.phases(t, at))
				m.restart(t, victims...)
				m.whole(t, 2)
			}
		})
	}
}

// wait is what the machine had to do at a moment.
type wait struct {
	at      time.Time
	machine devmesh.Machine
	stalled time.Duration // in which some task waited for a core
}

func startOfWait(t *testing.T) wait {
	t.Helper()
	m, err := devmesh.MachineTime()
	if err != nil {
		t.Fatal(err)
	}
	w := wait{at: time.Now(), machine: m}
	if text, err := os.ReadFile("/proc/pressure/cpu"); err == nil { // not every kernel tells
		_, total, _ := strings.Cut(string(text), "total=")
		var us int64
		_, _ = fmt.Sscan(total, &us)
		w.stalled = time.Duration(us) * time.Microsecond
	}
	return w
}

// since says how much of what took time was want of cores.
func (w wait) since(t *testing.T) string {
	t.Helper()
	now := startOfWait(t)
	return fmt.Sprintf("cores busy for %.0f %% of the time, and wanted by more for %d %%", now.machine.BusySince(w.machine), 100*(now.stalled-w.stalled)/now.at.Sub(w.at))
}

// since is what running nodes say that happened after an instant, in its order.
func (m *mesh) since(t *testing.T, at time.Time) (out []report.Event) {
	t.Helper()
	for _, n := range m.All() {
		if n.PID() == 0 {
			continue
		}
		events, err := n.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.At.After(at) {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b report.Event) int { return a.At.Compare(b.At) })
	return out
}

// phases lists what hosts say of deaths and loads after an instant, with the time since.
func (m *mesh) phases(t *testing.T, at time.Time) string {
	t.Helper()
	var out strings.Builder
	for _, e := range m.since(t, at) {
		if slices.Contains([]string{"node-dead", "node-left", "node-join", "node-restart", "reform", "weights-fetched", "engine-ready", "stage-released"}, e.Type) {
			fmt.Fprintf(&out, "%8.2f s %s: %s %s %s %s\n", e.At.Sub(at).Seconds(), e.Node, e.Type, e.Peer, e.Cause, e.Detail)
		}
	}
	return out.String()
}

// victims picks hosts of one pipeline that another one can do without, never the first.
func (m *mesh) victims(t *testing.T, n int) (out []*devmesh.Node) {
	t.Helper()
	eventually(t, readyWithin, func() error {
		top, err := m.Entry().Topology(t.Context())
		if err != nil {
			return err
		}
		out = nil
		for _, p := range top.Models[0].Pipelines {
			out = nil
			for _, s := range p.Stages {
				v := m.Named(s.Node)
				shared := slices.ContainsFunc(top.Models[0].Pipelines, func(o report.Pipeline) bool {
					return o.ID != p.ID && slices.ContainsFunc(o.Stages, func(x report.PipelineStage) bool { return x.Node == s.Node })
				})
				if v != m.Node(1) && !shared && !slices.Contains(out, v) && len(out) < n {
					out = append(out, v)
				}
			}
			if len(out) == n {
				return nil
			}
		}
		return fmt.Errorf("no pipeline has %d hosts of its own: %+v", n, top.Models[0].Pipelines)
	})
	return out
}

// redundant waits until the entry shows two holders of each layer that are ready, without
// some hosts. There may be more: a move that was under way.
func (m *mesh) redundant(t *testing.T, dead ...*devmesh.Node) {
	t.Helper()
	eventually(t, streamWithin, func() error {
		top, err := m.Entry().Topology(t.Context())
		if err != nil {
			return err
		}
		if len(top.Models) != 1 {
			return fmt.Errorf("%d models, want 1", len(top.Models))
		}
		holders := make([]map[string]bool, top.Models[0].Layers)
		for _, p := range top.Models[0].Pipelines {
			for _, s := range p.Stages {
				if slices.Contains(dead, m.Named(s.Node)) || s.State != "ready" {
					continue
				}
				for k := s.Lo; k < s.Hi; k++ {
					if holders[k] == nil {
						holders[k] = map[string]bool{}
					}
					holders[k][s.Node] = true
				}
			}
		}
		for k, nodes := range holders {
			if len(nodes) < 2 {
				return fmt.Errorf("layer %d has %d holders: %+v", k, len(nodes), top.Models[0].Pipelines)
			}
		}
		return nil
	})
}

// fetchedBytes is what the hosts but some have fetched from peers in this life.
func (m *mesh) fetchedBytes(t *testing.T, except ...*devmesh.Node) (sum int64) {
	t.Helper()
	for _, n := range m.Hosts() {
		if slices.Contains(except, n) {
			continue
		}
		c := load.NewClient(n.APIURL())
		v, err := c.Metric(t.Context(), `kevlard_weights_bytes_total{direction="fetched"}`)
		c.CloseIdle()
		if err != nil {
			t.Fatal(err)
		}
		sum += int64(v)
	}
	return sum
}

// TestLastHolderIsBack kills the only holder of layers that nobody else has room for: a
// request gets a 503 that names them, and they are served when it is back.
func TestLastHolderIsBack(t *testing.T) {
	needLong(t, "1 min")
	const cells = 4096
	probe := start(t, devmesh.Options{Nodes: 1, Auto: true, Cells: cells})
	all := probe.Model()
	need := all.Bytes() + int64(cells*all.KVRowBytes(4)*all.Layers)
	m := start(t, devmesh.Options{
		Nodes: 2, Auto: true, Gateways: 1, Cells: cells,
		Env: []string{fmt.Sprintf("KEVLARD_ENGINE_MEMORY_BYTES=%d", need*7/10)},
	})
	served := func() error {
		r := m.client.Stream(t.Context(), load.Request{Model: m.ModelName(), Prompt: "Once", MaxTokens: 8, IgnoreEOS: true}, nil)
		return r.Err
	}
	eventually(t, readyWithin, served)
	victim := m.Node(2)
	s, err := victim.Status(t.Context())
	if err != nil || len(s.Stages) == 0 {
		t.Fatalf("%v, stages %+v", err, s.Stages)
	}
	var lost []string
	slices.SortFunc(s.Stages, func(a, b report.Stage) int { return a.Lo - b.Lo })
	lo, hi := s.Stages[0].Lo, s.Stages[0].Hi
	for _, st := range s.Stages[1:] {
		if st.Lo != hi {
			lost = append(lost, fmt.Sprintf("[%d,%d)", lo, hi))
			lo = st.Lo
		}
		hi = st.Hi
	}
	lost = append(lost, fmt.Sprintf("[%d,%d)", lo, hi))
	m.chaos(t, "kill", victim.Name())
	at := time.Now()
	eventually(t, readyWithin, func() error {
		err := served()
		e, ok := errors.AsType[*load.APIError](err)
		if !ok || e.Status != 503 || slices.ContainsFunc(lost, func(l string) bool { return !strings.Contains(e.Message, l) }) {
			return fmt.Errorf("got %w, want a 503 that names %v", err, lost)
		}
		t.Logf("%v after the kill: %v", time.Since(at).Round(100*time.Millisecond), e)
		return nil
	})
	<-victim.Ended()
	t.Logf("before its start:\n%s", m.phases(t, at))
	busy := startOfWait(t)
	at = time.Now()
	if err := victim.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, readyWithin, served)
	t.Logf("served again %v after its start; %s\n%s", time.Since(at).Round(10*time.Millisecond), busy.since(t), m.phases(t, at))
}
