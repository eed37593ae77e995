package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights/plan"
)

// network is nodes in memory: calls and pieces are function calls.
type network struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[kevlard.NodeID]*peer
	// meddle may change a piece on its way, before it is counted.
	meddle func(from kevlard.NodeID, body []byte)
	// wait may keep a piece of a sender back, before that.
	wait func(from kevlard.NodeID)
}

type peer struct {
	library  *Library
	server   *Server
	fetcher  *Fetcher
	sent     int64
	rejected []string
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, nodes: map[kevlard.NodeID]*peer{}}
}

// add starts a node that has the given models and keeps in dir what it fetches.
func (n *network) add(name kevlard.NodeID, dir string, models ...*model.Manifest) *peer {
	p := &peer{library: NewLibrary(dir, nil)}
	for _, m := range models {
		p.library.Add(m)
	}
	p.library.Scan(n.t.Context())
	p.server = NewServer(name, p.library, func(_ context.Context, to kevlard.NodeID, header, body []byte) error {
		return n.send(name, to, header, body)
	}, 0, func(int) {})
	p.fetcher = NewFetcher(Config{
		Self: name, Library: p.library, Nodes: func(kevlard.Digest) []kevlard.NodeID { return n.others(name) },
		Call: func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error) {
			peer := n.peer(to)
			if peer == nil {
				return nil, errors.New("not connected")
			}
			return peer.server.Answer(ctx, name, request)
		},
		Fetched: func(int) {},
		Rejected: func(from kevlard.NodeID, detail string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			p.rejected = append(p.rejected, string(from)+": "+detail)
		},
		Timing: plan.Config{NoHolder: 300 * time.Millisecond, ListWait: 100 * time.Millisecond, BackoffMin: time.Millisecond},
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[name] = p
	n.t.Cleanup(p.library.Close)
	return p
}

func (n *network) remove(name kevlard.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.nodes, name)
}

func (n *network) peer(name kevlard.NodeID) *peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[name]
}

func (n *network) others(name kevlard.NodeID) (out []kevlard.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for o := range n.nodes {
		if o != name {
			out = append(out, o)
		}
	}
	slices.Sort(out)
	return out
}

func (n *network) send(from, to kevlard.NodeID, header, body []byte) error {
	peer, sender := n.peer(to), n.peer(from)
	if peer == nil || sender == nil {
		return errors.New("connection broke")
	}
	if !IsPiece(header) {
		return errors.New("not a piece of weights")
	}
	if n.wait != nil {
		n.wait(from)
	}
	n.mu.Lock()
	sender.sent += int64(len(body))
	if n.meddle != nil {
		n.meddle(from, body)
	}
	n.mu.Unlock()
	if buf := peer.fetcher.Buffer(from, header, len(body)); buf != nil {
		copy(buf, body)
		peer.fetcher.Received(from, header, buf)
	}
	return nil
}

// files keeps the models of the tests: making random weights takes longer than the tests.
type files struct {
	mu   sync.Mutex
	dir  string
	made map[uint64]string
}

var made = files{made: map[uint64]string{}}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weights")
	if err != nil {
		panic(err)
	}
	made.dir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// synth returns a model of 4 layers of 2 chunks. The file is not to be written to.
func synth(t *testing.T, seed uint64) *model.Manifest {
	t.Helper()
	made.mu.Lock()
	defer made.mu.Unlock()
	path := made.made[seed]
	if path == "" {
		path = filepath.Join(made.dir, fmt.Sprintf("small%d.gguf", seed))
		if err := model.Synth(path, model.SynthSpec{Type: model.F32, Layers: 4, Dim: 192, Heads: 4, KVHeads: 4, FFN: 400, Vocab: 1000, Seed: seed}, nil); err != nil {
			t.Fatal(err)
		}
		made.made[seed] = path
	}
	m, err := model.Load(path, made.dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// copied returns a copy of a model's file that may be written to.
func copied(t *testing.T, m *model.Manifest) *model.Manifest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.gguf")
	raw, err := os.ReadFile(m.Path)
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// whole checks that a stage is on disk, verified, and computes with what the model has.
func whole(t *testing.T, path string, m *model.Manifest, l kevlard.Layers) {
	t.Helper()
	got, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != m.ID || !got.Holds(l) {
		t.Errorf("%s is model %s without %v, want %s with layers %v", path, got.ID.Short(), got.Absent, m.ID.Short(), l)
	}
	v, err := model.Verify(path, "")
	if err != nil || !v.OK() {
		t.Errorf("%+v, %v: what was fetched is not verified", v, err)
	}
	left, err := filepath.Glob(filepath.Join(path, "*.part"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left of the fetch, %v", left, err)
	}
}

func names(dir string) (out []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
