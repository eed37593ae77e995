package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestMeshFormsAndHeals starts eight hosts without configured stages: they form two full
// pipelines. One is killed under load: no request notices, and another host takes its
// layers on.
func TestMeshFormsAndHeals(t *testing.T) {
	needLong(t, "a minute and a half; the daemon's test of the same name does it with toys")
	m := start(t, devmesh.Options{Nodes: 8, Auto: true, Gateways: 1, Cells: stormStreams * 1024})
	m.whole(t, 2)
	requests := storyRequests(m, 10, 200)
	want := m.unbroken(t, requests)
	s := m.storm(t.Context(), requests)
	s.reach(t, breakAfter)
	victim := m.Node(3)
	at := time.Now()
	m.chaos(t, "kill", victim.Name())
	judge(t, s.wait(t), want)
	m.whole(t, 2)
	t.Logf("all streams had ended and there were two full pipelines %v after the kill", time.Since(at).Round(100*time.Millisecond))
	adopted := 0
	for _, n := range m.Hosts() {
		if n == victim {
			continue
		}
		events, err := n.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Type == "reform" && e.Cause == "death" {
				adopted++
			}
		}
	}
	if adopted == 0 {
		t.Error("no node says that it took layers on for the dead")
	}
	judge(t, m.storm(t.Context(), requests[:2]).wait(t), want[:2])
}

// whole waits until the entry shows so many full pipelines, each on nodes of its own, and
// nothing missing.
func (m *mesh) whole(t *testing.T, pipelines int) {
	t.Helper()
	eventually(t, readyWithin, func() error {
		top, err := m.Entry().Topology(t.Context())
		if err != nil {
			return err
		}
		if len(top.Models) != 1 {
			return fmt.Errorf("%d models, want 1", len(top.Models))
		}
		return wholeModel(top.Models[0], pipelines)
	})
}

func wholeModel(r report.Model, pipelines int) error {
	if r.Degraded || len(r.Pipelines) != pipelines {
		return fmt.Errorf("degraded: %v, %d pipelines, want %d: %+v", r.Degraded, len(r.Pipelines), pipelines, r.Pipelines)
	}
	for _, p := range r.Pipelines {
		at := 0
		for _, s := range p.Stages {
			if s.Lo != at || s.State != "ready" || s.Shared {
				return fmt.Errorf("pipeline %s: %+v", p.ID, p.Stages)
			}
			at = s.Hi
		}
		if at != r.Layers {
			return errors.New("pipeline " + p.ID + " is not complete")
		}
	}
	return nil
}
