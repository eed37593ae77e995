package devmesh

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const chaosWithin = 20 * time.Second // a process has the state that a signal gives it

// chaosScript returns a command for one of the scripts in scripts/chaos.
func chaosScript(name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join("..", "..", "scripts", "chaos", name), args...)
}

// chaos runs a script that must succeed and returns what it printed.
func chaos(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := chaosScript(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// chaosRow waits until list shows a node like the pattern and returns its engines.
func chaosRow(t *testing.T, m *Mesh, node, pattern string) string {
	t.Helper()
	want := regexp.MustCompile(`(?m)^` + node + ` +` + pattern + `$`)
	for deadline := time.Now().Add(chaosWithin); ; time.Sleep(5 * time.Millisecond) {
		out := chaos(t, "list", "--dir", m.Dir())
		if found := want.FindStringSubmatch(out); found != nil {
			return found[len(found)-1]
		}
		if time.Now().After(deadline) {
			t.Fatalf("list shows\n%swant a line %s", out, want)
		}
	}
}

func TestChaosKill(t *testing.T) {
	m := startStandIns(t, Options{Nodes: 4, Stages: 2, Gateways: 1, Dir: t.TempDir()})
	old := chaosRow(t, m, "node-1", fmt.Sprintf(`running +%d +(\d+)`, m.Node(1).PID()))

	if got, want := chaos(t, "kill", "--dir", m.Dir(), "--engine", "node-1"), "killed "+old+"\n"; got != want {
		t.Errorf("kill --engine printed %q, want %q", got, want)
	}
	chaosRow(t, m, "node-1", fmt.Sprintf(`running +%d +(-)`, m.Node(1).PID()))

	pids := fmt.Sprint("killed ", m.Node(2).PID(), " ", m.Node(4).PID(), "\n")
	if got := chaos(t, "kill", "node-2", "--dir", m.Dir(), "node-4"); got != pids {
		t.Errorf("kill printed %q, want %q", got, pids)
	}
	for _, n := range []*Node{m.Node(2), m.Node(4)} {
		<-n.Ended()
		if how := n.died(); !strings.Contains(how, "signal: killed") {
			t.Errorf("%s: %s", n.Name(), how)
		}
		chaosRow(t, m, n.Name(), `dead +- +(-)`)
	}
	chaosRow(t, m, "node-3", fmt.Sprintf(`running +%d +(\d+)`, m.Node(3).PID()))
	chaosRow(t, m, "gateway-1", fmt.Sprintf(`running +%d +(-)`, m.Gateway(1).PID()))
}

func TestChaosFreeze(t *testing.T) {
	m := startStandIns(t, Options{Nodes: 1, Dir: t.TempDir()})
	pid := m.Node(1).PID()
	running := fmt.Sprintf(`running +%d +(\d+)`, pid)
	engine := chaosRow(t, m, "node-1", running)

	for _, c := range []struct {
		name, flags, printed, shown string
	}{
		{"daemon", "", fmt.Sprint("frozen until thaw: ", pid), fmt.Sprintf(`frozen +%d +(\d+)`, pid)},
		{"engine", "--engine", "frozen until thaw: " + engine, fmt.Sprintf(`running +%d +(\d+ \(frozen\))`, pid)},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := append([]string{"--dir", m.Dir()}, strings.Fields(c.flags)...)
			if got := chaos(t, "freeze", append(flags, "--for", "ever", "node-1")...); got != c.printed+"\n" {
				t.Errorf("freeze printed %q, want %q", got, c.printed)
			}
			chaosRow(t, m, "node-1", c.shown)
			chaos(t, "thaw", append(flags, "node-1")...)
			chaosRow(t, m, "node-1", running)
			chaos(t, "thaw", append(flags, "node-1")...) // of one that is awake
			chaosRow(t, m, "node-1", running)
		})
	}
	t.Run("for a time", func(t *testing.T) {
		for _, d := range []string{"1ms", "20ms", "0.02", "0.02s", "0.0005m"} {
			chaos(t, "freeze", "--for", d, "--dir", m.Dir(), "node-1")
			chaosRow(t, m, "node-1", running)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		cmd := chaosScript("freeze", "--dir", m.Dir(), "--for", "1h", "node-1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out // so that Wait waits for all that hold them: for the script's children too
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		chaosRow(t, m, "node-1", fmt.Sprintf(`frozen +%d +(\d+)`, pid))
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
		if !ok || exit.ExitCode() != 130 {
			t.Errorf("freeze after SIGTERM: %v, want exit code 130", exit)
		}
		chaosRow(t, m, "node-1", running)
	})
}

// TestChaosRefuses is the table of what the scripts do not take, and how they say so.
func TestChaosRefuses(t *testing.T) {
	m := startStandIns(t, Options{Nodes: 2, Stages: 2, Gateways: 1, Dir: t.TempDir()})
	chaos(t, "kill", "--dir", m.Dir(), "node-2")
	<-m.Node(2).Ended()
	empty := t.TempDir()
	// A file of a mesh that is gone: the number is another process's now, ours.
	stale := t.TempDir()
	text := fmt.Sprintf("{\n  \"nodes\": [\n    {\n      \"name\": \"node-1\",\n      \"pid\": %d\n    }\n  ]\n}\n", os.Getpid())
	if err := os.WriteFile(filepath.Join(stale, "cluster.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	dir := "--dir " + m.Dir()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"kill", 2, "kill: --dir is missing: want the directory that kevlard dev --dir was given"},
		{"kill --dir", 2, "kill: --dir needs a value"},
		{"kill " + dir, 2, "kill: NODE is missing: want one or more of node-1, node-2, gateway-1"},
		{"kill " + dir + " --soft node-1", 2, "kill: --soft is unknown: want --dir --engine or --help"},
		{"kill " + dir + " --for 2s node-1", 2, "kill: --for is unknown: want --dir --engine or --help"},
		{"kill " + dir + " node-9", 2, "kill: node node-9 is not in " + m.clusterFile() + ": want one of node-1, node-2, gateway-1"},
		{"kill " + dir + " node-1 node-9", 2, "kill: node node-9 is not in " + m.clusterFile() + ": want one of node-1, node-2, gateway-1"},
		{"kill " + dir + " node-[1]", 2, "kill: node 'node-[1]': want a name as scripts/chaos/list shows it"},
		{"kill " + dir + " node-2", 1, "kill: node-2 is not running"},
		{"kill " + dir + " node-1 node-2", 1, "kill: node-2 is not running"},
		{"kill " + dir + " --engine node-2", 1, "kill: node-2 is not running"},
		{"kill " + dir + " --engine gateway-1", 1, "kill: gateway-1 has no running engine"},
		{"kill --dir " + empty + " node-1", 1, "kill: there is no " + empty + "/cluster.json: is a mesh running, and ready, with --dir " + empty + "?"},
		{"kill --dir " + stale + " node-1", 1, "kill: node-1 is not running"},
		{"thaw " + dir + " node-2", 1, "thaw: node-2 is not running"},
		{"thaw " + dir, 2, "thaw: NODE is missing: want one or more of node-1, node-2, gateway-1"},
		{"freeze " + dir + " node-2", 1, "freeze: node-2 is not running"},
		{"freeze " + dir + " --for", 2, "freeze: --for needs a value"},
		{"freeze " + dir + " --for long node-1", 2, "freeze: --for long: want a time from 1ms to 1h, such as 500ms, 2s or 1m, or ever"},
		{"freeze " + dir + " --for 0 node-1", 2, "freeze: --for 0: want a time"},
		{"freeze " + dir + " --for 61m node-1", 2, "freeze: --for 61m: want a time"},
		{"freeze " + dir + " --for 1.2.3s node-1", 2, "freeze: --for 1.2.3s: want a time"},
		{"freeze " + dir + " --for s node-1", 2, "freeze: --for s: want a time"},
		{"freeze " + dir + " --for -1s node-1", 2, "freeze: --for -1s: want a time"},
		{"list " + dir + " node-1", 2, "list: list takes no NODE, but got node-1"},
		{"list " + dir + " --engine", 2, "list: --engine is unknown: want --dir or --help"},
	} {
		t.Run(strings.ReplaceAll(c.args, m.Dir(), "DIR"), func(t *testing.T) {
			f := strings.Fields(c.args)
			cmd := chaosScript(f[0], f[1:]...)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			exit, _ := errors.AsType[*exec.ExitError](cmd.Run())
			if exit == nil || exit.ExitCode() != c.code || stdout.Len() > 0 {
				t.Errorf("%v, stdout %q: want exit code %d and nothing on stdout", exit, &stdout, c.code)
			}
			if got := stderr.String(); !strings.HasPrefix(got, c.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("stderr %q, want one line %q", got, c.want)
			}
		})
	}
	for _, script := range []string{"kill", "freeze", "thaw", "list"} {
		if out := chaos(t, script, "--help"); !strings.HasPrefix(out, "usage: "+script+" --dir DIR") {
			t.Errorf("%s --help: %s", script, out)
		}
	}
	chaosRow(t, m, "node-1", fmt.Sprintf(`running +%d +(\d+)`, m.Node(1).PID())) // nothing above touched it
}
