package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

const (
	firstPort    = 21000            // meshes of these tests look for free ports from here
	readyWithin  = 60 * time.Second // a started or restarted mesh serves
	streamWithin = 5 * time.Minute  // one batch of streams has ended, one way or another
)

// mesh is a running mesh with a client at its entry.
type mesh struct {
	*devmesh.Mesh
	client *load.Client
}

// start starts a mesh and waits until it serves. It is stopped with the test; the
// logs stay if the test failed.
func start(t *testing.T, o devmesh.Options) *mesh {
	t.Helper()
	base, err := devmesh.FreeBase(firstPort, o.Nodes+o.Gateways)
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: with a long test name the control sockets' paths get too long.
	dir, err := os.MkdirTemp("", "kevlard-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	o.Exe, o.BasePort, o.Dir = kevlardBin, base, dir
	m, err := devmesh.Start(t.Context(), o)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	out := &mesh{m, load.NewClient(m.Entry().APIURL())}
	t.Cleanup(func() {
		out.client.CloseIdle()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs are kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	out.ready(t)
	return out
}

// ready waits until the whole mesh serves.
func (m *mesh) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	if err := m.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until check returns nil and fails with its last error at the
// deadline.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	const every = 10 * time.Millisecond
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(every)
	}
}

// restart brings dead nodes back and waits until the mesh is whole.
func (m *mesh) restart(t *testing.T, nodes ...*devmesh.Node) {
	t.Helper()
	for _, n := range nodes {
		<-n.Ended()
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	m.ready(t)
}

// pids returns the processes of all nodes but some.
func (m *mesh) pids(except ...*devmesh.Node) map[string]int {
	out := map[string]int{}
	for _, n := range m.All() {
		if !slices.Contains(except, n) {
			out[n.Name()] = n.PID()
		}
	}
	return out
}

// events returns the event log of the node that clients use.
func (m *mesh) events(t *testing.T) []report.Event {
	t.Helper()
	events, err := m.Entry().Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// recoveries counts the failovers that ended well, of the given sessions and after
// an instant.
func (m *mesh) recoveries(t *testing.T, sessions []string, after time.Time) int {
	t.Helper()
	n := 0
	for _, e := range m.events(t) {
		if e.Type == "recovered" && e.At.After(after) && slices.Contains(sessions, e.Session) {
			n++
		}
	}
	return n
}

// fenced returns the late items that all nodes have dropped so far. Nodes whose
// process is gone do not count.
func (m *mesh) fenced(t *testing.T) float64 {
	t.Helper()
	var sum float64
	for _, n := range m.All() {
		if n.PID() == 0 {
			continue
		}
		c := load.NewClient(n.APIURL())
		v, err := c.Metric(t.Context(), "kevlard_fenced_items_total")
		c.CloseIdle()
		if err != nil {
			t.Fatalf("%s: %v", n.Name(), err)
		}
		sum += v
	}
	return sum
}

// idle returns an error while any node still owns or holds a session.
func (m *mesh) idle(ctx context.Context) error {
	for _, n := range m.All() {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if s.Sessions.Owned != 0 || s.Sessions.Hosted != 0 {
			return errors.New(n.Name() + " still has sessions: owned or hosted is not 0")
		}
	}
	return nil
}

// kevlard runs a verb of the binary and returns its output and exit code.
func kevlard(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), kevlardBin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("kevlard %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// chaos runs one of the scripts of scripts/chaos against the mesh: tests break hosts
// with what admins are given. The script finds processes by itself, so it never hits
// any that the test did not mean.
func (m *mesh) chaos(t *testing.T, script string, args ...string) {
	t.Helper()
	if err := m.tryChaos(t, script, args...); err != nil {
		t.Fatal(err)
	}
}

func (m *mesh) tryChaos(t *testing.T, script string, args ...string) error {
	t.Helper()
	return runChaos(t, m.Dir(), script, args...)
}

// runChaos is for a mesh that runs in another process.
func runChaos(t *testing.T, dir, script string, args ...string) error {
	t.Helper()
	path := filepath.Join("..", "scripts", "chaos", script)
	out, err := exec.CommandContext(t.Context(), path, append([]string{"--dir", dir}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", script, strings.Join(args, " "), err, out)
	}
	return nil
}
