package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

func clientOf(n *devmesh.Node) *load.Client { return load.NewClient(n.APIURL()) }

// dev runs `kevlard dev` and waits for cluster.json.
func dev(t *testing.T, dir string, base int, extra ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	args := append([]string{"dev", "--nodes", "2", "--stages", "2", "--gateways", "1", "--dir", dir, "--base-port", strconv.Itoa(base)}, extra...)
	cmd := exec.Command(kevlardBin, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // the test failed half way
			_ = cmd.Wait()
		}
	})
	return cmd, &out
}

func readCluster(dir string) (report.Members, error) {
	var c report.Members
	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(text, &c)
}

func awaitCluster(t *testing.T, dir string, ok func(report.Members) error) report.Members {
	t.Helper()
	var last report.Members
	eventually(t, readyWithin, func() error {
		c, err := readCluster(dir)
		if err != nil {
			return err
		}
		last = c
		return ok(c)
	})
	return last
}

// allGone returns an error while a process of the cluster exists.
func allGone(c report.Members) error {
	for _, n := range c.Nodes {
		pids := []int{n.PID}
		for _, e := range n.Engines {
			pids = append(pids, e.PID)
		}
		for _, pid := range pids {
			if pid == 0 {
				continue
			}
			if _, err := devmesh.UsageOf(pid); err == nil {
				return fmt.Errorf("process %d of %s is left", pid, n.Name)
			}
		}
	}
	return nil
}

// TestDev drives `kevlard dev` as a script would.
func TestDev(t *testing.T) {
	base, err := devmesh.FreeBase(firstPort, 3)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kevlard-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd, out := dev(t, dir, base, "--restart", "500ms")
	whole := awaitCluster(t, dir, func(report.Members) error { return nil })
	if len(whole.Nodes) != 3 {
		t.Fatalf("cluster.json: %+v", whole)
	}
	for i, n := range whole.Nodes {
		if !n.Ready || n.PID == 0 || n.State != "alive" || n.API != fmt.Sprintf("http://127.0.0.%d:%d", 11+i, base) {
			t.Errorf("node %d: %+v", i+1, n)
		}
		if host := n.Role == "host"; host != (len(n.Engines) == 1) || host != (len(n.Stages) == 1) {
			t.Errorf("%s, a %s, has engines %+v and stages %+v", n.Name, n.Role, n.Engines, n.Stages)
		}
	}

	busy, busyOut := dev(t, dir+"-2", base)
	if err := busy.Wait(); err == nil || !strings.Contains(busyOut.String(), fmt.Sprintf("pid %d", whole.Nodes[0].PID)) {
		t.Errorf("a second mesh on the same ports: %v, %s: want an error that names pid %d", err, busyOut, whole.Nodes[0].PID)
	}
	if err := os.RemoveAll(dir + "-2"); err != nil {
		t.Error(err)
	}

	victim := whole.Nodes[1]
	if err := runChaos(t, dir, "kill", victim.Name); err != nil {
		t.Fatal(err)
	}
	awaitCluster(t, dir, func(c report.Members) error {
		if len(c.Nodes) != 3 { // dead nodes stay listed
			t.Errorf("%d nodes are listed: %+v", len(c.Nodes), c.Nodes)
		}
		if n := c.Nodes[1]; n.State != "dead" && n.PID == victim.PID { // with another pid it was dead in between
			return fmt.Errorf("the dead node is listed as %+v", n)
		}
		return nil
	})
	again := awaitCluster(t, dir, func(c report.Members) error {
		if n := c.Nodes[1]; !n.Ready || n.PID == victim.PID || n.PID == 0 || len(n.Engines) != 1 {
			return fmt.Errorf("the dead node has not come back: %+v", n)
		}
		return nil
	})

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("dev after SIGTERM: %v: %s", err, out)
	}
	if err := allGone(again); err != nil {
		t.Error(err)
	}
	if _, err := readCluster(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cluster.json after the end: %v", err)
	}
}

// TestDevKilled kills dev itself: nothing may be left.
func TestDevKilled(t *testing.T) {
	base, err := devmesh.FreeBase(firstPort, 3)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kevlard-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd, _ := dev(t, dir, base)
	c := awaitCluster(t, dir, func(report.Members) error { return nil })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	eventually(t, readyWithin, func() error { return allGone(c) })
}

// TestDemo is what a newcomer runs.
func TestDemo(t *testing.T) {
	out, errs, code := kevlard(t, "demo", "-o", "json")
	var r struct {
		Tokens     int     `json:"tokens"`
		TokenExact bool    `json:"token_exact"`
		RecoveryMS float64 `json:"recovery_ms"`
		Killed     struct {
			Node string
			PID  int
		}
		Failovers []struct{ Cause string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("exit %d, %v: stdout %q, stderr %s", code, err, out, errs)
	}
	if code != 0 || !r.TokenExact || r.RecoveryMS <= 0 || r.Killed.Node == "" || len(r.Failovers) == 0 || r.Tokens < 100 {
		t.Errorf("exit %d, %+v: stderr %s", code, r, errs)
	}
	t.Logf("killed %s, recovery %.0f ms", r.Killed.Node, r.RecoveryMS)
}
