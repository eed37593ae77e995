package devmesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/model"
)

// Mesh is a running local mesh.
type Mesh struct {
	opt     Options
	dir     string
	temp    bool // dir was made by Start and goes with Close
	model   *model.Manifest
	nodes   []*Node // hosts, then gateways
	spawner *spawner

	waiters   sync.WaitGroup // one a process, plus the surveyor
	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error
	changed   chan struct{} // capacity 1: a process started or ended

	mu      sync.Mutex
	onEvent func(string) // told what the mesh does by itself; may be nil
	ready   bool         // Ready has succeeded once: cluster.json is written from then on

	writing sync.Mutex // held while cluster.json is replaced
	written string     // what it says, without round-trip times
}

// Start checks the options and the ports, then starts every daemon. It returns as
// soon as they run; Ready waits until they serve. Cancelling ctx aborts Start but
// does not stop a started mesh: Close does.
func Start(ctx context.Context, o Options) (*Mesh, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	m := &Mesh{opt: o, dir: o.Dir, closing: make(chan struct{}), changed: make(chan struct{}, 1)}
	if err := m.prepareDir(); err != nil {
		return nil, err
	}
	if err := m.launch(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Mesh) prepareDir() error {
	if m.dir == "" {
		dir, err := os.MkdirTemp("", "kevlard-dev-")
		if err != nil {
			return fmt.Errorf("make a directory for the mesh: %w", err)
		}
		m.dir, m.temp = dir, true
		return nil
	}
	dir, err := filepath.Abs(m.dir)
	if err != nil {
		return fmt.Errorf("--dir %s: %w", m.dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	m.dir = dir
	return nil
}

// launch does everything of Start that Close undoes.
func (m *Mesh) launch(ctx context.Context) error {
	path, err := modelFile(m.opt.Model, m.dir)
	if err != nil {
		return err
	}
	manifest, err := model.Load(path, filepath.Join(m.dir, "manifests"))
	if err != nil {
		return err
	}
	m.model = manifest
	specs, err := plan(m.opt, m.dir, manifest.Layers)
	if err != nil {
		return err
	}
	if err := preflight(specs); err != nil {
		return err
	}
	if err := removeFile(m.clusterFile()); err != nil { // of an earlier mesh: its pids mean nothing now
		return err
	}
	secret, err := secretFile(ctx, m.opt.Exe, m.dir)
	if err != nil {
		return err
	}
	m.spawner = newSpawner()
	for _, s := range specs {
		if err := writeConfig(s, m.opt, path, secret, seeds(specs)); err != nil {
			return err
		}
		m.nodes = append(m.nodes, &Node{spec: s, mesh: m, client: api.NewClient(s.socket())})
	}
	for _, n := range m.nodes {
		if err := n.Restart(); err != nil {
			return err
		}
	}
	m.waiters.Go(m.survey)
	return nil
}

// seeds are the gossip addresses that everybody joins: three, so that one dead
// seed does not keep a newcomer out.
func seeds(specs []spec) []string {
	var out []string
	for _, s := range specs[:min(3, len(specs))] {
		out = append(out, s.addr(1))
	}
	return out
}

// OnEvent sets who is told, in a line of text, what the mesh does by itself, such
// as a daemon that ended or was started again.
func (m *Mesh) OnEvent(f func(string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onEvent = f
}

func (m *Mesh) say(format string, args ...any) {
	m.mu.Lock()
	f := m.onEvent
	m.mu.Unlock()
	if f != nil {
		f(fmt.Sprintf(format, args...))
	}
}

// poke brings the next survey forward.
func (m *Mesh) poke() {
	select {
	case m.changed <- struct{}{}:
	default: // one is due already
	}
}

// Dir returns the directory of the mesh, absolute.
func (m *Mesh) Dir() string { return m.dir }

// Stages returns the number of stages of each pipeline.
func (m *Mesh) Stages() int { return m.opt.Stages }

// ModelName returns the name by which clients ask for the model.
func (m *Mesh) ModelName() string { return m.model.Name }

// Model returns what the mesh serves.
func (m *Mesh) Model() *model.Manifest { return m.model }

// Hosts returns the hosts; Hosts()[i] is node-(i+1).
func (m *Mesh) Hosts() []*Node { return m.nodes[:m.opt.Nodes] }

// Gateways returns the gateways.
func (m *Mesh) Gateways() []*Node { return m.nodes[m.opt.Nodes:] }

// All returns hosts, then gateways.
func (m *Mesh) All() []*Node { return m.nodes }

// Node returns host i, from 1.
func (m *Mesh) Node(i int) *Node { return m.nodes[i-1] }

// Gateway returns gateway i, from 1.
func (m *Mesh) Gateway(i int) *Node { return m.Gateways()[i-1] }

// Named returns the node of that name, or nil.
func (m *Mesh) Named(name string) *Node {
	for _, n := range m.nodes {
		if n.spec.name == name {
			return n
		}
	}
	return nil
}

// Entry returns the node that clients should use: the first gateway, else the
// first host.
func (m *Mesh) Entry() *Node {
	if len(m.Gateways()) > 0 {
		return m.Gateway(1)
	}
	return m.Node(1)
}

// Close stops every daemon with SIGTERM, gateways and hosts together, kills what
// is left after a grace period, and removes what Start made: the temporary
// directory, or else cluster.json. It may be called more than once.
func (m *Mesh) Close() error {
	m.closeOnce.Do(func() { m.closeErr = m.stop() })
	return m.closeErr
}

func (m *Mesh) stop() error {
	close(m.closing)
	for _, n := range m.nodes {
		// The daemon may have ended by itself: then there is nothing to stop. One
		// that stands still under SIGSTOP gets the signal when it goes on.
		if n.PID() != 0 {
			_ = n.Kill(syscall.SIGTERM)
			_ = n.Kill(syscall.SIGCONT)
		}
	}
	ended := make(chan struct{})
	go func() {
		m.waiters.Wait()
		close(ended)
	}()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	var killed []error
	select {
	case <-ended:
	case <-grace.C:
		for _, n := range m.nodes {
			if n.PID() != 0 && n.Kill(syscall.SIGKILL) == nil {
				killed = append(killed, fmt.Errorf("%s did not end within %s of SIGTERM and was killed", n.spec.name, stopGrace))
			}
		}
		<-ended
	}
	if m.spawner != nil {
		m.spawner.close()
	}
	if m.temp {
		return errors.Join(errors.Join(killed...), os.RemoveAll(m.dir))
	}
	return errors.Join(errors.Join(killed...), removeFile(m.clusterFile()))
}
