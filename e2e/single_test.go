package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/model/fairy"
)

// singleIP is where agents listen that a test configures by hand.
const singleIP = "127.0.0.11"

// single is an agent whose configuration a test spoils or changes before it starts.
type single struct {
	name string
	dir  string
	base int // API port; the next three are gossip, mesh and bulk
	conf map[string]map[string]any
	wrap []string // a command that gets the agent's command line as its arguments
	attr syscall.SysProcAttr
	env  []string // beside the test's own

	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr syncBuffer
	ended  chan struct{}
}

// syncBuffer is written by the process and read by the test at the same time.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newSingle prepares a gateway without models on loopback. Its files go with the
// test, unless it failed.
func newSingle(t *testing.T, name string) *single {
	t.Helper()
	base, err := devmesh.FreeBase(firstPort+3000, 1)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kevlard-e2e-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &single{name: name, dir: dir, base: base}
	s.conf = map[string]map[string]any{
		"node":    {"name": name, "role": "gateway", "data_dir": filepath.Join(dir, "data")},
		"ring":    {"bind": s.addr(1), "advertise": singleIP, "secret_file": filepath.Join(dir, "secret"), "dev": true},
		"mesh":    {"bind": s.addr(2), "bulk_port": base + 3},
		"api":     {"listen": s.addr(0)},
		"models":  {"dirs": []string{filepath.Join(dir, "models")}},
		"engine":  {"threads": 1},
		"control": {"socket": filepath.Join(dir, "k.sock")},
	}
	if _, errs, code := kevlard(t, "keygen", "--out", filepath.Join(dir, "secret")); code != 0 {
		t.Fatal(errs)
	}
	if err := os.Mkdir(filepath.Join(dir, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("files of %s are kept in %s; it said:\n%s", name, dir, s.stderr.String())
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *single) addr(offset int) string {
	return net.JoinHostPort(singleIP, strconv.Itoa(s.base+offset))
}

func (s *single) socket() string { return s.conf["control"]["socket"].(string) }

func (s *single) set(table, key string, value any) { s.conf[table][key] = value }

// holds makes it a host of the bundled model's layers [lo,hi), after edit changed
// the file.
func (s *single) holds(t *testing.T, lo, hi int, edit func([]byte) []byte) {
	t.Helper()
	file := fairy.GGUF()
	if edit != nil {
		file = edit(bytes.Clone(file))
	}
	path := filepath.Join(s.dir, "models", "m.gguf")
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
	s.set("node", "role", "host")
	s.set("models", "assign", []map[string]any{{"model": path, "lo": lo, "hi": hi}})
}

// isGiven makes it a host that has the bundled model and takes the stages that the plan
// gives it.
func (s *single) isGiven(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "models", "m.gguf"), fairy.GGUF(), 0o644); err != nil {
		t.Fatal(err)
	}
	s.set("node", "role", "host")
}

// config writes the configuration file and returns its path.
func (s *single) config(t *testing.T) string {
	t.Helper()
	text, err := toml.Marshal(s.conf)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "kevlard.toml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mark is in the environment of the agent and of all that it starts.
func (s *single) mark() string { return "KEVLARD_E2E_SINGLE=" + s.dir }

// start starts the agent, in a process group of its own.
func (s *single) start(t *testing.T) {
	t.Helper()
	args := append(append([]string{}, s.wrap...), kevlardBin, "agent", "--config", s.config(t))
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(append(os.Environ(), s.mark()), s.env...)
	s.stdout.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, &s.stderr
	attr := s.attr
	attr.Setpgid = true
	s.cmd.SysProcAttr = &attr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(ended)
	}(s.cmd, s.ended)
}

// kill ends it and its wrapper, whatever they do.
func (s *single) kill() {
	if s.cmd == nil {
		return
	}
	select {
	case <-s.ended:
		return
	default:
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended just now
	<-s.ended
}

// await returns the exit code of the agent once it has ended.
func (s *single) await(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(within):
		t.Fatalf("%s did not end in %v; it said:\n%s", s.name, within, s.stderr.String())
	}
	return s.cmd.ProcessState.ExitCode()
}

// stop ends it as a supervisor does.
func (s *single) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.await(t, time.Minute); code != 0 {
		t.Errorf("%s exits %d after SIGTERM", s.name, code)
	}
}

// up waits until the agent answers on its control socket.
func (s *single) up(t *testing.T) *api.Client {
	t.Helper()
	c := api.NewClient(s.socket())
	eventually(t, readyWithin, func() error {
		select {
		case <-s.ended:
			t.Fatalf("%s ended: %v", s.name, s.cmd.ProcessState)
		default:
		}
		_, err := c.Status(t.Context())
		return err
	})
	return c
}

// processes lists what runs with the agent's mark.
func (s *single) processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, []byte(s.mark()+"\x00")) {
			continue // ended meanwhile, or another's
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline")) // it only decorates the message
		out = append(out, filepath.Base(filepath.Dir(f))+": "+strings.ReplaceAll(string(line), "\x00", " "))
	}
	return out
}

// leftovers lists what an agent that did not start has left: processes, bound
// ports, sockets, and files that are not whole.
func (s *single) leftovers(t *testing.T) []string {
	t.Helper()
	out := s.processes(t)
	for offset := range 4 {
		for _, network := range []string{"tcp", "udp"} {
			if err := tryBind(network, s.addr(offset)); err != nil {
				out = append(out, err.Error())
			}
		}
	}
	err := filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := e.Name()
		whole := name == "node.key" || name == "peers.json" || strings.HasSuffix(name, ".digests.json") && name[0] != '.'
		given := filepath.Dir(path) == s.dir && e.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(s.dir, "models")+"/")
		if !whole && !given {
			out = append(out, fmt.Sprintf("%s (%v)", path, e.Type()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryBind(network, addr string) error {
	if network == "udp" {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	// Closed connections may linger on the port; only a listener is in the way.
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// needRoot skips a test that mounts or makes network namespaces.
func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("%s: run it as root", what)
	}
}

// system runs a command that must do.
func system(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatal(errors.Join(fmt.Errorf("%s %s: %s", name, strings.Join(args, " "), out), err))
	}
	return string(out)
}
