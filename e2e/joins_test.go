package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	root "github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestJoins prints the time from the last join to two full pipelines of eight hosts, then
// lets all but three leave, and return one at a time: what is loaded for each, against the
// least that has to be, which is found by trying all assignments.
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
	for k, n := range m.Hosts()[3:] {
		stages, bytes := m.leastMoved(t, k+4)
		at := time.Now()
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
		eventually(t, streamWithin, func() error {
			s, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			share := 8 / (k + 4)
			if len(s.Engines) < share || slices.ContainsFunc(s.Stages, func(s report.Stage) bool { return s.State != "ready" }) {
				return fmt.Errorf("%s does not hold %d stages yet: %+v", n.Name(), share, s.Stages)
			}
			return m.atRest(t)
		})
		m.whole(t, 2)
		loads, moved := m.adopted(t, at)
		t.Logf("%s joins: %d stages, %d bytes are loaded in %v, the least is %d stages, %d bytes", n.Name(), loads, moved, time.Since(at).Round(100*time.Millisecond), stages, bytes)
		if loads > stages {
			t.Errorf("%d stages are loaded, %d would do\n%s", loads, stages, m.phases(t, at))
		}
		total += moved
		least += bytes
	}
	t.Logf("%d bytes loaded for five joins, the least is %d", total, least)
}

// atRest returns an error while a host holds a stage that no pipeline shows.
func (m *mesh) atRest(t *testing.T) error {
	t.Helper()
	top, err := m.Entry().Topology(t.Context())
	if err != nil {
		return err
	}
	shown := 0
	for _, p := range top.Models[0].Pipelines {
		shown += len(p.Stages)
	}
	for _, n := range m.Hosts() {
		if n.PID() == 0 {
			continue
		}
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		shown -= len(s.Stages)
	}
	if shown != 0 {
		return fmt.Errorf("%d stages are held beside %+v", -shown, top.Models[0].Pipelines)
	}
	return nil
}

// leastMoved is what has to be loaded, in stages and bytes, until so many nodes hold two
// of each range, as evenly as can be: the least of all assignments.
func (m *mesh) leastMoved(t *testing.T, nodes int) (stages int, bytes int64) {
	t.Helper()
	eventually(t, streamWithin, func() error { return m.atRest(t) })
	top, err := m.Entry().Topology(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ranges []root.Layers
	held := map[root.Layers][]bool{}
	names := map[string]int{}
	for _, p := range top.Models[0].Pipelines {
		for _, s := range p.Stages {
			l := root.Layers{Lo: s.Lo, Hi: s.Hi}
			if held[l] == nil {
				ranges = append(ranges, l)
				held[l] = make([]bool, nodes)
			}
			if _, ok := names[s.Node]; !ok {
				names[s.Node] = len(names)
			}
			held[l][names[s.Node]] = true
		}
	}
	if len(names) >= nodes {
		t.Fatalf("%d nodes hold %+v, want fewer than %d", len(names), top.Models[0].Pipelines, nodes)
	}
	count := make([]int, nodes)
	var even []int
	var try func(k, moved int, size int64)
	try = func(k, moved int, size int64) {
		if k == len(ranges) {
			spread := slices.Clone(count)
			slices.Sort(spread)
			slices.Reverse(spread)
			if c := slices.Compare(spread, even); even == nil || c < 0 || c == 0 && size < bytes {
				even, stages, bytes = spread, moved, size
			}
			return
		}
		each := m.Model().StageBytes(ranges[k])
		for a := range nodes {
			for b := range a {
				more := 0
				for _, n := range []int{a, b} {
					count[n]++
					if !held[ranges[k]][n] {
						more++
					}
				}
				try(k+1, moved+more, size+int64(more)*each)
				count[a]--
				count[b]--
			}
		}
	}
	try(0, 0, 0)
	return stages, bytes
}

// adopted is what running hosts say that they began to load after an instant.
func (m *mesh) adopted(t *testing.T, after time.Time) (stages int, sum int64) {
	t.Helper()
	for _, e := range m.since(t, after) {
		var bytes int64
		var lo, hi int
		var name string
		if k, _ := fmt.Sscanf(e.Detail, "adopt stage [%d,%d) of %s %d bytes", &lo, &hi, &name, &bytes); e.Type == "reform" && k == 4 {
			stages++
			sum += bytes
		}
	}
	return stages, sum
}
