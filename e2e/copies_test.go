package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// metric returns a metric, named with its labels, of each node that runs.
func (m *mesh) metric(t *testing.T, name string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, n := range m.All() {
		if n.PID() == 0 {
			continue
		}
		c := clientOf(n)
		v, err := c.Metric(t.Context(), name)
		c.CloseIdle()
		if err != nil {
			t.Fatalf("%s: %v", n.Name(), err)
		}
		out[n.Name()] = v
	}
	return out
}

// sum adds a metric over the nodes that run.
func (m *mesh) sum(t *testing.T, name string) (sum float64) {
	t.Helper()
	for _, v := range m.metric(t, name) {
		sum += v
	}
	return sum
}

// copiedHop returns the node of a session's route whose KV has a copy of at least so
// many positions elsewhere, and where that is.
func copiedHop(s report.Session, positions int) (hop int, ok bool) {
	for i := range s.Route {
		if len(s.Standbys[i]) > 0 && s.ReplicatedThrough[i] >= positions {
			return i, true
		}
	}
	return 0, false
}

// TestSessionsGoOnFromCopies kills a host under sessions of which most is copied: that
// is not computed again.
func TestSessionsGoOnFromCopies(t *testing.T) {
	const streams, copied = 4, 200
	m := start(t, eightHosts())
	requests := storyRequests(m, streams, 600)
	want := m.unbroken(t, requests)
	const loaded = `kevlard_kv_positions_total{kind="loaded"}`
	eventually(t, readyWithin, func() error { return m.idle(t.Context()) }) // what is listed next is of the storm
	before := m.metric(t, loaded)
	s := m.storm(t.Context(), requests)
	var victim *devmesh.Node
	var through []string
	eventually(t, streamWithin, func() error {
		if s.running() == 0 {
			t.Fatal("the streams ended before their KV was copied")
		}
		all, err := m.Entry().Sessions(t.Context())
		if err != nil {
			return err
		}
		for _, x := range all {
			hop, ok := copiedHop(x, copied)
			if x.State != "decode" || !ok {
				continue
			}
			victim, through = m.Named(x.Route[hop]), nil
			for _, y := range all {
				if at := slices.Index(y.Route, victim.Name()); at >= 0 && y.State == "decode" && y.ReplicatedThrough[at] >= copied {
					through = append(through, y.ID)
				}
			}
			return nil
		}
		return errors.New("no session has a copy of most of its KV")
	})
	at := time.Now()
	m.chaos(t, "kill", victim.Name())
	judge(t, s.wait(t), want)
	n := min(m.recoveries(t, through, at), len(through)) // some may move twice
	if n == 0 {
		t.Fatalf("none of the %d sessions with copies failed over", len(through))
	}
	eventually(t, readyWithin, func() error {
		got := 0.0
		for name, v := range m.metric(t, loaded) {
			got += v - before[name]
		}
		if got < float64(n*copied) {
			return fmt.Errorf("%v positions were loaded for %d failovers: want at least %d for each", got, n, copied)
		}
		return nil
	})
	eventually(t, readyWithin, func() error {
		if n := m.sum(t, `kevlard_kv_bytes{kind="standby",tier="ram"}`); n != 0 {
			return fmt.Errorf("%v bytes of copies are kept of sessions that are over", n)
		}
		return nil
	})
	m.restart(t, victim)
}

// TestNoCopies wants sessions without standbys to survive as well.
func TestNoCopies(t *testing.T) {
	o := fourHosts()
	o.Standbys = devmesh.NoStandbys
	m := start(t, o)
	requests := storyRequests(m, 4, 200)
	want := m.unbroken(t, requests)
	s := m.storm(t.Context(), requests)
	s.reach(t, breakAfter)
	all, err := m.Entry().Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if _, ok := copiedHop(x, 0); ok {
			t.Errorf("session %s has standbys %v", x.ID, x.Standbys)
		}
	}
	m.chaos(t, "kill", m.Node(1).Name())
	judge(t, s.wait(t), want)
	if n := m.sum(t, "kevlard_replicated_bytes_total"); n != 0 {
		t.Errorf("%v bytes were replicated", n)
	}
	m.restart(t, m.Node(1))
}
