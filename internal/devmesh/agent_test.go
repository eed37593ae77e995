package devmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/kevlard/kevlard/daemon/report"
)

// The test binary stands in for kevlard when this variable is set: `keygen` writes
// a file, `agent` serves a control socket that shows every node configured beside
// it as alive and ready; that of a host has a child, as its engine. It is enough for
// starting, surveying, breaking and stopping; the tests of the package e2e do the same
// with the real binary.
const standIn = "DEVMESH_TEST_AGENT"

type agentConfig struct {
	Node    struct{ Name, Role string }
	Models  struct{ Assign []struct{ Lo, Hi int } }
	Control struct{ Socket string }
}

func readAgentConfig(path string) (agentConfig, error) {
	var c agentConfig
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	return c, toml.Unmarshal(text, &c)
}

// play is the stand-in's main.
func play(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "keygen":
		return os.WriteFile(args[2], []byte("secret\n"), 0o600)
	case len(args) == 3 && args[0] == "agent":
		return playAgent(args[2])
	}
	return fmt.Errorf("no stand-in for %q", args)
}

func playAgent(path string) error {
	self, err := readAgentConfig(path)
	if err != nil {
		return err
	}
	if self.Node.Role == "host" {
		engine := exec.Command("sleep", "3600")
		if err := newSpawner().start(engine, 0); err != nil {
			return err
		}
		go func() { _ = engine.Wait() }() // no zombie is left of a killed one
	}
	_ = os.Remove(self.Control.Socket) // of an earlier life
	l, err := net.Listen("unix", self.Control.Socket)
	if err != nil {
		return err
	}
	fmt.Println("the stand-in of", self.Node.Name, "listens")
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "..", "*", "kevlard.toml")) // a good pattern
		out := report.Members{Ring: "default", Self: self.Node.Name, Size: len(paths)}
		for _, p := range paths {
			c, err := readAgentConfig(p)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			m := report.Member{Name: c.Node.Name, Role: c.Node.Role, State: "alive", Ready: true}
			for _, a := range c.Models.Assign {
				m.Stages = append(m.Stages, report.Stage{Lo: a.Lo, Hi: a.Hi, State: "ready"})
			}
			out.Nodes = append(out.Nodes, m)
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
}

func startStandIns(t *testing.T, o Options) *Mesh {
	t.Helper()
	t.Setenv(standIn, "1")
	var err error
	if o.Exe, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	if o.BasePort, err = FreeBase(25000, o.Nodes+o.Gateways); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := m.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// until polls cluster.json.
func until(t *testing.T, m *Mesh, ok func(c report.Members) bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var c report.Members
		text, err := os.ReadFile(m.clusterFile())
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err == nil && ok(c) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("cluster.json: %v, %s", err, text)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestLifeOfAMesh(t *testing.T) {
	m := startStandIns(t, Options{Nodes: 4, Stages: 2, Gateways: 1, Dir: t.TempDir()})
	pids := map[int]bool{}
	for _, n := range m.All() {
		pids[n.PID()] = true
	}
	if len(pids) != 5 || pids[0] {
		t.Fatalf("processes %v, want five", pids)
	}
	until(t, m, func(c report.Members) bool {
		return len(c.Nodes) == 5 && c.Nodes[1].PID == m.Node(2).PID() && c.Nodes[4].Role == "gateway"
	})

	victim := m.Node(2)
	old := victim.PID()
	if err := victim.Restart(); !errors.Is(err, ErrRunning) {
		t.Errorf("restart of a running node: %v", err)
	}
	if err := victim.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-victim.Ended()
	if victim.PID() != 0 {
		t.Error("a dead node has a pid")
	}
	if err := victim.Kill(syscall.SIGKILL); err == nil {
		t.Error("no error for a signal to a dead node")
	}
	until(t, m, func(c report.Members) bool { return c.Nodes[1].State == "dead" && c.Nodes[1].PID == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := m.Ready(ctx); err == nil || !strings.Contains(err.Error(), "node-2 ended (signal: killed)") || !strings.Contains(err.Error(), "the stand-in of node-2 listens") {
		t.Errorf("Ready with a dead node: %v, want how it ended and its last words", err)
	}
	if err := victim.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, m, func(c report.Members) bool { return c.Nodes[1].State == "alive" && c.Nodes[1].PID != old })

	// A node that stands still is stopped all the same.
	if err := m.Node(3).Kill(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, m, func(c report.Members) bool { return !c.Nodes[2].Ready && c.Nodes[2].PID != 0 })
	if err := m.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, n := range m.All() {
		if n.PID() != 0 {
			t.Errorf("%s still runs", n.Name())
		}
	}
	if _, err := os.Stat(m.clusterFile()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cluster.json after Close: %v", err)
	}
}

func TestTheDeadAreStartedAgain(t *testing.T) {
	m := startStandIns(t, Options{Nodes: 1, Restart: time.Millisecond})
	dir := m.Dir()
	old := m.Node(1).PID()
	if err := m.Node(1).Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, m, func(c report.Members) bool { return c.Nodes[0].PID != 0 && c.Nodes[0].PID != old && c.Nodes[0].Ready })
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary directory after Close: %v", err)
	}
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	base, err := FreeBase(25000, 2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = Start(t.Context(), Options{Exe: filepath.Join(dir, "missing"), Nodes: 2, Dir: dir, BasePort: base})
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Fatalf("a binary that is not there: %v", err)
	}
}
