package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
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
				at := time.Now()
				var names []string
				for _, v := range victims {
					names = append(names, v.Name())
				}
				m.chaos(t, "kill", names...)
				m.redundant(t, victims...)
				took := time.Since(at)
				got := m.fetchedBytes(t, victims...) - before
				traffic.stop(t)
				t.Logf("%v killed: full redundancy after %v, %d bytes from peers", names, took.Round(100*time.Millisecond), got)
				m.restart(t, victims...)
				m.whole(t, 2)
			}
		})
	}
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

// redundant waits until the entry shows two full pipelines without some hosts, and no
// layers with fewer holders than wanted.
func (m *mesh) redundant(t *testing.T, dead ...*devmesh.Node) {
	t.Helper()
	eventually(t, streamWithin, func() error {
		top, err := m.Entry().Topology(t.Context())
		if err != nil {
			return err
		}
		if len(top.Models) != 1 || len(top.Models[0].UnderReplicated) > 0 {
			return fmt.Errorf("not redundant: %+v", top.Models)
		}
		for _, p := range top.Models[0].Pipelines {
			for _, s := range p.Stages {
				if slices.Contains(dead, m.Named(s.Node)) {
					return fmt.Errorf("%s is still counted: %+v", s.Node, p)
				}
			}
		}
		return wholeModel(top.Models[0], 2)
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
	if err := victim.Restart(); err != nil {
		t.Fatal(err)
	}
	at = time.Now()
	eventually(t, readyWithin, served)
	t.Logf("served again %v after its start", time.Since(at).Round(100*time.Millisecond))
}

// TestJoins prints the time from the last join to two full pipelines of eight hosts, then
// lets all but three leave, and return one at a time: what is loaded for each, and what of
// it the newcomer holds in the end, which is the least that can be.
func TestJoins(t *testing.T) {
	needLong(t, "4 min")
	m := start(t, devmesh.Options{Nodes: 8, Auto: true})
	m.whole(t, 2)
	var joined, loading, ready time.Time
	loaded := time.Duration(0)
	for _, n := range m.Hosts() {
		events, err := n.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Time{}
		for _, e := range events {
			switch {
			case e.Type == "node-join" && e.At.After(joined):
				joined = e.At
			case e.Type == "reform" && strings.HasPrefix(e.Detail, "adopt"):
				began = e.At
				if loading.IsZero() || e.At.Before(loading) {
					loading = e.At
				}
			case e.Type == "engine-ready":
				loaded = max(loaded, e.At.Sub(began))
				if e.At.After(ready) {
					ready = e.At
				}
			}
		}
	}
	t.Logf("from the last join: first load after %v, two full pipelines after %v; the longest load took %v",
		loading.Sub(joined).Round(time.Millisecond), ready.Sub(joined).Round(time.Millisecond), loaded.Round(time.Millisecond))
	for _, n := range m.Hosts()[3:] {
		if err := n.Kill(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-n.Ended()
	}
	m.redundant(t)
	m.whole(t, 2)
	var total, least int64
	for _, n := range m.Hosts()[3:] {
		at := time.Now()
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
		var holds int64
		eventually(t, streamWithin, func() error {
			s, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			if holds = 0; len(s.Engines) == 0 || slices.ContainsFunc(s.Stages, func(s report.Stage) bool { return s.State != "ready" }) {
				return fmt.Errorf("%s holds nothing yet: %+v", n.Name(), s.Stages)
			}
			for _, e := range s.Engines {
				holds += e.WeightBytes
			}
			return nil
		})
		m.whole(t, 2)
		moved := m.adoptedBytes(t, at)
		t.Logf("%s holds %d bytes %v after its start, %d were loaded in the mesh", n.Name(), holds, time.Since(at).Round(100*time.Millisecond), moved)
		total += moved
		least += holds
	}
	t.Logf("%d bytes loaded for five joins, of %d that the newcomers had to load", total, least)
}

// adoptedBytes is what running hosts say that they began to load after an instant.
func (m *mesh) adoptedBytes(t *testing.T, after time.Time) (sum int64) {
	t.Helper()
	for _, n := range m.Hosts() {
		if n.PID() == 0 {
			continue
		}
		events, err := n.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			var bytes int64
			var lo, hi int
			var name string
			if e.Type != "reform" || e.At.Before(after) {
				continue
			}
			if k, _ := fmt.Sscanf(e.Detail, "adopt stage [%d,%d) of %s %d bytes", &lo, &hi, &name, &bytes); k == 4 {
				sum += bytes
			}
		}
	}
	return sum
}
