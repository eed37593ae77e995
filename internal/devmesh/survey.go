package devmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
)

// view is one node's answer to a survey.
type view struct {
	cluster report.Members
	err     error
}

// ask puts the same question to all nodes at once. A node whose process is gone,
// or stands still, has an error as its answer.
func (m *Mesh) ask(ctx context.Context) []view {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	views := make([]view, len(m.nodes))
	var wg sync.WaitGroup
	for i, n := range m.nodes {
		if n.PID() == 0 {
			views[i].err = errors.New("its process has ended")
			continue
		}
		wg.Go(func() { views[i].cluster, views[i].err = n.Members(ctx) })
	}
	wg.Wait()
	return views
}

// Ready waits until every node sees every other alive with all its stages, and can
// take a session. It returns early with the end of the log when a daemon ends.
func (m *Mesh) Ready(ctx context.Context) error {
	const first, most = 50 * time.Millisecond, 500 * time.Millisecond
	for pause := first; ; pause = min(2*pause, most) {
		views := m.ask(ctx)
		lacks := m.lacks(views)
		if lacks == "" {
			m.mu.Lock()
			m.ready = true
			m.mu.Unlock()
			return m.writeCluster(views)
		}
		if m.opt.Restart == 0 {
			for _, n := range m.nodes {
				if end := n.died(); end != "" {
					return errors.New(end)
				}
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the mesh to be ready: %w: %s", context.Cause(ctx), lacks)
		case <-m.closing:
			timer.Stop()
			return errors.New("wait for the mesh to be ready: it was closed")
		case <-timer.C:
		}
	}
}

// lacks says what keeps the mesh from being ready, or "".
func (m *Mesh) lacks(views []view) string {
	specs := make([]spec, len(m.nodes))
	for i, n := range m.nodes {
		specs[i] = n.spec
	}
	for i, n := range m.nodes {
		if views[i].err != nil {
			return views[i].err.Error()
		}
		self, ok := member(views[i].cluster, n.spec.name)
		if !ok {
			return n.spec.name + " does not list itself"
		}
		if lack := missing(views[i].cluster, specs); lack != "" {
			return n.spec.name + " " + lack
		}
		if !self.Ready {
			return n.spec.name + " is not ready: " + self.Reason
		}
	}
	return ""
}

// survey asks all nodes again and again and keeps cluster.json up to date.
func (m *Mesh) survey() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with survey: Close closes closing, or cancel ends ctx
		select {
		case <-m.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	timer := time.NewTimer(surveyEvery)
	defer timer.Stop()
	for {
		select {
		case <-m.closing:
			return
		case <-m.changed:
		case <-timer.C:
		}
		m.mu.Lock()
		ready := m.ready
		m.mu.Unlock()
		if ready {
			if err := m.writeCluster(m.ask(ctx)); err != nil && ctx.Err() == nil {
				m.say("%v", err)
			}
		}
		timer.Reset(surveyEvery)
	}
}

func (m *Mesh) clusterFile() string { return filepath.Join(m.dir, "cluster.json") }

// Cluster asks all nodes and merges their answers.
func (m *Mesh) Cluster(ctx context.Context) report.Members { return m.merge(m.ask(ctx)) }

// merge joins the answers of one survey: what the ring knows of a node comes from
// the first node that answered, what only the node itself knows (its processes,
// whether it is ready) from itself. Nodes that no longer run stay listed.
func (m *Mesh) merge(views []view) report.Members {
	out := report.Members{Ring: "default", Self: m.nodes[0].spec.name}
	var ring report.Members
	for _, v := range views {
		if v.err == nil {
			ring = v.cluster
			out.Ring = v.cluster.Ring
			break
		}
	}
	for i, n := range m.nodes {
		e := n.entry(views[i], ring)
		if e.State != "dead" && e.State != "left" { // as members counts
			out.Size++
		}
		out.Nodes = append(out.Nodes, e)
	}
	return out
}

func (n *Node) entry(v view, ring report.Members) report.Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	var e report.Member
	if self, ok := member(v.cluster, n.spec.name); v.err == nil && ok {
		e = self
	} else {
		e = n.last
		if seen, ok := member(ring, n.spec.name); ok {
			e.State, e.Stages = seen.State, seen.Stages
		}
		e.Ready, e.Reason = false, "does not answer on its control socket"
	}
	e.Name, e.Role, e.Control = n.spec.name, n.spec.role, n.spec.socket()
	e.Addr, e.MeshAddr, e.BulkAddr, e.API = n.spec.addr(1), n.spec.addr(2), n.spec.addr(3), n.APIURL()
	if n.process != nil && n.process.running() {
		e.PID = n.process.cmd.Process.Pid
	} else {
		e.PID, e.Engines, e.Stages, e.State = 0, nil, nil, "dead"
		e.Reason = "its process has ended"
	}
	e.Engines, e.Stages = emptyNotNull(e.Engines), emptyNotNull(e.Stages)
	if e.Labels == nil {
		e.Labels = map[string]string{}
	}
	n.last = e
	return e
}

// emptyNotNull keeps null out of the JSON, for scripts that iterate.
func emptyNotNull[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// writeCluster rewrites cluster.json if something that scripts act on changed:
// round-trip times and what moves KV alone do not count.
func (m *Mesh) writeCluster(views []view) error {
	c := m.merge(views)
	stable := c
	stable.Nodes = append([]report.Member(nil), c.Nodes...)
	for i := range stable.Nodes {
		stable.Nodes[i].RTTMS, stable.Nodes[i].Transport = 0, ""
	}
	key, err := json.Marshal(stable)
	if err != nil {
		return fmt.Errorf("encode cluster.json: %w", err)
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	if string(key) == m.written {
		return nil
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode cluster.json: %w", err)
	}
	if err := replaceFile(m.clusterFile(), append(text, '\n'), 0o644); err != nil {
		return err
	}
	m.written = string(key)
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
