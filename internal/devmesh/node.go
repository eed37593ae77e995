package devmesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

// ErrRunning is returned by Restart of a node whose process still runs.
var ErrRunning = errors.New("its process still runs")

// errClosing is returned by Restart once Close has begun.
var errClosing = errors.New("the mesh is being closed")

// Node is one daemon of a Mesh. Its methods may be called from any goroutine.
type Node struct {
	spec   spec
	mesh   *Mesh
	client *api.Client

	mu      sync.Mutex
	process *process      // of the latest start
	last    report.Member // from the latest survey
}

// process is one life of a daemon.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after Wait returned
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Name returns the node's name, such as node-1 or gateway-1.
func (n *Node) Name() string { return n.spec.name }

// Layers returns the layers that a host holds.
func (n *Node) Layers() kevlard.Layers { return n.spec.layers }

// IP returns the address that the node listens on.
func (n *Node) IP() string { return n.spec.ip }

// Group returns the group id that the daemon runs in, 0 for ours.
func (n *Node) Group() int { return n.spec.group }

// APIURL returns the base URL of the node's HTTP API.
func (n *Node) APIURL() string { return "http://" + n.spec.addr(0) }

// Control returns the path of the node's control socket.
func (n *Node) Control() string { return n.spec.socket() }

// Dir returns the node's directory.
func (n *Node) Dir() string { return n.spec.dir }

// LogFile returns the path of the daemon's log, to which every life appends.
func (n *Node) LogFile() string { return n.spec.log() }

// PID returns the daemon's process id, or 0 when it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || !n.process.running() {
		return 0
	}
	return n.process.cmd.Process.Pid
}

// EnginePIDs asks the daemon for the processes of its engines.
func (n *Node) EnginePIDs(ctx context.Context) ([]int, error) {
	m, err := n.self(ctx)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range m.Engines {
		pids = append(pids, e.PID)
	}
	return pids, nil
}

// Ended returns a channel that is closed when the current process has ended.
func (n *Node) Ended() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process.ended
}

// Kill sends sig to the daemon. The handle is tied to the process, so a reused
// pid is never hit.
func (n *Node) Kill(sig syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || !n.process.running() {
		return fmt.Errorf("send %s to %s: it does not run", sig, n.spec.name)
	}
	if err := n.process.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %s to %s: %w", sig, n.spec.name, err)
	}
	return nil
}

// KillEngine sends sig to every engine process of the node, after checking that
// each is a child of the daemon, and returns when it did.
func (n *Node) KillEngine(ctx context.Context, sig syscall.Signal) (time.Time, error) {
	pids, err := n.EnginePIDs(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if len(pids) == 0 {
		return time.Time{}, fmt.Errorf("send %s to the engine of %s: it has none", sig, n.spec.name)
	}
	at := time.Now()
	for _, pid := range pids {
		parent, err := parentOf(pid)
		if err != nil {
			return at, fmt.Errorf("send %s to engine %d of %s: %w", sig, pid, n.spec.name, err)
		}
		if daemon := n.PID(); parent != daemon {
			return at, fmt.Errorf("send %s to engine %d of %s: it is a child of %d and not of the daemon %d", sig, pid, n.spec.name, parent, daemon)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			return at, fmt.Errorf("send %s to engine %d of %s: %w", sig, pid, n.spec.name, err)
		}
	}
	return at, nil
}

// Restart starts the daemon again after it has ended.
func (n *Node) Restart() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.startLocked()
}

// startLocked is called with mu held: Close first closes closing and then looks at
// every node under its lock, so no process can slip in behind it.
func (n *Node) startLocked() error {
	select {
	case <-n.mesh.closing:
		return fmt.Errorf("start %s: %w", n.spec.name, errClosing)
	default:
	}
	if n.process != nil && n.process.running() {
		return fmt.Errorf("start %s: %w", n.spec.name, ErrRunning)
	}
	log, err := os.OpenFile(n.spec.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", n.spec.name, err)
	}
	defer log.Close() // the child has its own descriptor
	cmd := exec.Command(n.mesh.opt.Exe, "agent", "--config", n.spec.config())
	cmd.Env = append(os.Environ(), n.mesh.opt.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.mesh.spawner.start(cmd, n.spec.group); err != nil {
		return fmt.Errorf("start %s with %s: %w", n.spec.name, n.mesh.opt.Exe, err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	n.process = p
	n.mesh.waiters.Go(func() { n.await(p) })
	n.mesh.poke()
	return nil
}

// await waits for one life to end and, if the mesh restarts its dead, begins the
// next.
func (n *Node) await(p *process) {
	_ = p.cmd.Wait() // how it ended is in ProcessState, and its last words in the log
	close(p.ended)
	n.mesh.poke()
	select {
	case <-n.mesh.closing:
		return
	default:
		n.mesh.say("%s (pid %d) ended: %s", n.spec.name, p.cmd.Process.Pid, p.cmd.ProcessState)
	}
	if n.mesh.opt.Restart == 0 {
		return
	}
	select {
	case <-n.mesh.closing:
		return
	case <-time.After(n.mesh.opt.Restart):
	}
	switch err := n.Restart(); {
	case err == nil:
		n.mesh.say("%s started again (pid %d)", n.spec.name, n.PID())
	case !errors.Is(err, ErrRunning) && !errors.Is(err, errClosing):
		n.mesh.say("%v", err)
	}
}

// died describes the end of a process that should be running, with the last lines
// of its log; "" while it runs.
func (n *Node) died() string {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil || p.running() {
		return ""
	}
	return fmt.Sprintf("%s ended (%s); the end of %s:\n%s", n.spec.name, p.cmd.ProcessState, n.spec.log(), tail(n.spec.log()))
}

// tail returns the end of a file, for a message.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		if _, err := f.Seek(-logTail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, logTail))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// parentOf returns the parent of a process.
func parentOf(pid int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 16<<10))
	if err != nil {
		return 0, err
	}
	return statusField(string(text), "PPid")
}
