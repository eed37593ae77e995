package devmesh

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// twoNodes is a mesh of two hosts of which nothing runs.
func twoNodes(t *testing.T) *Mesh {
	t.Helper()
	m := &Mesh{dir: t.TempDir()}
	for i, name := range []string{"node-1", "node-2"} {
		s := spec{name: name, role: "host", ip: []string{"127.0.0.11", "127.0.0.12"}[i], base: 18080, layers: kevlard.Layers{Lo: i, Hi: i + 1}}
		m.nodes = append(m.nodes, &Node{spec: s, mesh: m})
	}
	return m
}

func stageOf(lo int, state string) []report.Stage {
	return []report.Stage{{Model: "sha256:00", Lo: lo, Hi: lo + 1, State: state, Progress: 1}}
}

func TestLacksNamesTheFirstProblem(t *testing.T) {
	whole := func() []view {
		c := func() report.Members {
			return report.Members{Nodes: []report.Member{
				{Name: "node-1", State: "alive", Ready: true, Stages: stageOf(0, "ready")},
				{Name: "node-2", State: "alive", Ready: true, Stages: stageOf(1, "ready")},
			}}
		}
		return []view{{cluster: c()}, {cluster: c()}}
	}
	m := twoNodes(t)
	if got := m.lacks(whole()); got != "" {
		t.Fatalf("a whole mesh lacks %q", got)
	}
	for _, c := range []struct {
		name  string
		spoil func(v []view)
		want  string
	}{
		{"silent", func(v []view) { v[1].err = errors.New("no answer") }, "no answer"},
		{"unseen", func(v []view) { v[0].cluster.Nodes = v[0].cluster.Nodes[:1] }, "node-1 does not see node-2"},
		{"suspect", func(v []view) { v[1].cluster.Nodes[0].State = "suspect" }, "node-2 sees node-1 as suspect"},
		{"loading", func(v []view) { v[0].cluster.Nodes[1].Stages[0].State = "loading" }, "node-1 sees a stage of node-2 as loading"},
		{"no stage", func(v []view) { v[0].cluster.Nodes[1].Stages = nil }, "node-1 knows no stage of node-2"},
		{"not ready", func(v []view) { v[1].cluster.Nodes[1].Ready, v[1].cluster.Nodes[1].Reason = false, "why" }, "node-2 is not ready: why"},
	} {
		v := whole()
		c.spoil(v)
		if got := m.lacks(v); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestMergeKeepsDeadNodesListed(t *testing.T) {
	m := twoNodes(t)
	live := exec.Command("sleep", "60")
	if err := live.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	m.nodes[0].process = &process{cmd: live, ended: ended}
	t.Cleanup(func() { _ = live.Process.Kill(); _ = live.Wait() })
	views := []view{
		{cluster: report.Members{Ring: "default", Nodes: []report.Member{
			{Name: "node-1", ID: "one", State: "alive", Ready: true, Engines: []report.Engine{{PID: 7}}},
			{Name: "node-2", ID: "two", State: "alive", Stages: stageOf(1, "ready")},
		}}},
		{err: errors.New("gone")},
	}
	got := m.merge(views)
	if len(got.Nodes) != 2 || got.Size != 1 {
		t.Fatalf("lists %d nodes, size %d", len(got.Nodes), got.Size)
	}
	one, two := got.Nodes[0], got.Nodes[1]
	if one.PID != live.Process.Pid || one.State != "alive" || len(one.Engines) != 1 || one.Addr != "127.0.0.11:18081" {
		t.Errorf("live node: %+v", one)
	}
	if two.PID != 0 || two.State != "dead" || two.Ready || len(two.Stages) != 0 || two.API != "http://127.0.0.12:18080" {
		t.Errorf("dead node: %+v", two)
	}
}

func TestClusterFileChangesOnlyWithWhatMatters(t *testing.T) {
	m := twoNodes(t)
	write := func(rtt float64) time.Time {
		t.Helper()
		m.nodes[0].last.RTTMS = rtt
		gone := view{err: errors.New("gone")}
		if err := m.writeCluster([]view{gone, gone}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(m.clusterFile())
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	first := write(1)
	if again := write(2); !again.Equal(first) {
		t.Error("a round-trip time alone rewrote cluster.json")
	}
	text, err := os.ReadFile(m.clusterFile())
	if err != nil {
		t.Fatal(err)
	}
	var c report.Members
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if c.Self != "node-1" || len(c.Nodes) != 2 || strings.Contains(string(text), "null") {
		t.Errorf("cluster.json: %s", text)
	}
	if left, _ := filepath.Glob(filepath.Join(m.dir, ".new-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
