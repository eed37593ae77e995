package daemon_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/toy"
	"github.com/kevlard/kevlard/internal/loopback"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
	"github.com/kevlard/kevlard/weights"
)

// patience is how long a test waits for what must come: long, because a machine
// that runs other tests too is slow.
const patience = 2 * time.Minute

var toyModel = toymodel.Model{Layers: 8, Vocab: 1000, Width: 64}

func toyTopology() topology.Model {
	return topology.Model{ID: sha256.Sum256([]byte("toy")), Name: "toy", Layers: toyModel.Layers, Context: 1024, Vocab: toyModel.Vocab}
}

// member is one daemon of a test ring.
type member struct {
	*daemon.Daemon
	cfg      daemon.Config
	launcher *toy.Launcher
	cancel   context.CancelFunc
	ended    chan error
}

// ring is several real daemons in this process, over real sockets on loopback.
type ring struct {
	t       *testing.T
	ip      string // of this ring alone: no other socket of the machine takes the port of a node that is down
	step    time.Duration
	poison  kevlard.Token
	timing  node.Timing
	kv      index.Config
	bulk    string                                          // what moves KV, of which then one copy is kept: memory, tls or plain
	fabric  *fabric                                         // of memory
	library func(kevlard.NodeID) *weights.Library           // nil: the daemons' own
	fetched func(kevlard.NodeID) (daemon.LocalModel, error) // of a node; nil: no weights are fetched for stages
	devices func(kevlard.NodeID) chan daemon.DeviceNews     // nil: no node has any
	weights map[kevlard.NodeID]uint64                       // that a node computes with, whatever it says
	mu      sync.Mutex
	members map[kevlard.NodeID]*member
}

func newRing(t *testing.T) *ring {
	r := &ring{t: t, ip: loopback.IP(t), step: time.Millisecond, fabric: newFabric(), members: map[kevlard.NodeID]*member{}}
	// The data directories are removed by a cleanup of the first TempDir; those
	// run last to first, so it must be made before the one that stops the daemons.
	t.TempDir()
	t.Cleanup(r.stopAll)
	return r
}

// port is an address of the ring whose port is still to be chosen.
func (r *ring) port() string { return r.ip + ":0" }

// start adds a node with the given layers; without layers it is a gateway.
func (r *ring) start(name kevlard.NodeID, layers ...kevlard.Layers) *member {
	r.t.Helper()
	cfg := r.config(name)
	for _, l := range layers {
		cfg.Role = "host"
		cfg.Assigned = append(cfg.Assigned, daemon.AssignedStage{Model: toyTopology(), Layers: l, Width: toyModel.Width})
	}
	return r.run(cfg)
}

// config is that of a gateway, with those that run as its seeds.
func (r *ring) config(name kevlard.NodeID) daemon.Config {
	r.t.Helper()
	cfg := daemon.Config{
		Name: name, Ring: "test-" + strings.ReplaceAll(r.ip, ".", "-"), Secret: []byte("0123456789abcdef0123456789abcdef"), DataDir: r.t.TempDir(),
		GossipBind: r.port(), MeshListen: r.port(), Dev: true, Version: "test", Role: "gateway", Timing: r.timing, KV: r.kv,
	}
	switch r.bulk {
	case "tls", "plain":
		cfg.BulkListen, cfg.BulkPlain = r.port(), r.bulk == "plain"
		fallthrough
	case "memory":
		cfg.Standbys = 1
	}
	for _, m := range r.all() {
		cfg.Join = append(cfg.Join, m.GossipAddr())
	}
	return cfg
}

func (r *ring) run(cfg daemon.Config) *member {
	r.t.Helper()
	computed := toyModel
	computed.Weights = r.weights[cfg.Name]
	m := &member{cfg: cfg, launcher: &toy.Launcher{Model: computed, Step: r.step, Poison: r.poison}, ended: make(chan error, 1)}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("KEVLARD_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("at", cfg.Name)
	}
	deps := daemon.Deps{Launcher: m.launcher, Log: log}
	if r.library != nil {
		deps.Library = r.library(cfg.Name)
	}
	if r.fetched != nil {
		deps.Fetched = func(context.Context, string) (daemon.LocalModel, error) { return r.fetched(cfg.Name) }
	}
	if r.devices != nil {
		news := r.devices(cfg.Name)
		deps.Devices = func(ctx context.Context, tell func(daemon.DeviceNews)) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case n := <-news:
					tell(n)
				}
			}
		}
	}
	if r.bulk == "memory" {
		deps.Mover = r.fabric.join(cfg.Name)
	}
	var err error
	if m.Daemon, err = daemon.New(cfg, deps); err != nil {
		r.t.Fatal(err)
	}
	m.cfg.GossipBind, m.cfg.MeshListen, m.cfg.BulkListen = m.GossipAddr(), m.MeshAddr(), m.BulkAddr() // a restart has the same ports
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.ended <- m.Run(ctx) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members[cfg.Name] = m
	return m
}

func (r *ring) all() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*member
	for _, m := range r.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *member) int { return slices.Compare([]byte(a.cfg.Name), []byte(b.cfg.Name)) })
	return out
}

// kill ends a daemon without a goodbye; its sockets break.
func (r *ring) kill(m *member) {
	r.t.Helper()
	r.mu.Lock()
	delete(r.members, m.cfg.Name)
	r.mu.Unlock()
	m.cancel()
	r.wait(m)
}

func (r *ring) wait(m *member) {
	r.t.Helper()
	select {
	case err := <-m.ended:
		if err != nil {
			r.t.Errorf("node %s: %v", m.cfg.Name, err)
		}
	case <-time.After(patience):
		r.t.Errorf("node %s does not stop", m.cfg.Name)
	}
}

func (r *ring) stopAll() {
	all := r.all()
	for _, m := range all {
		m.cancel()
	}
	for _, m := range all {
		r.wait(m)
	}
}

// until polls what a test waits for; it is the one place where tests wait.
func (r *ring) until(what string, ok func() bool, explain ...func()) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			for _, e := range explain {
				e()
			}
			r.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// ready waits until every node shows every node as alive and ready.
func (r *ring) ready() {
	r.t.Helper()
	all := r.all()
	var why kevlard.NodeID
	r.until("all nodes see all nodes ready", func() bool {
		for _, m := range all {
			n := 0
			for _, o := range m.Members().Nodes {
				if o.State == "alive" && o.Ready {
					n++
				}
			}
			if n != len(all) {
				why = m.cfg.Name
				return false
			}
		}
		return true
	}, func() {
		for _, m := range all {
			if m.cfg.Name == why {
				r.t.Logf("node %s shows %+v, status %+v", why, m.Members().Nodes, m.Status())
			}
		}
	})
}

// idle waits until no stage holds a session and no node owns one.
func (r *ring) idle() {
	r.t.Helper()
	r.until("all stages are free", func() bool {
		for _, m := range r.all() {
			if s := m.Status(); s.Sessions.Owned != 0 || s.Sessions.Hosted != 0 {
				return false
			}
		}
		return true
	})
}

func span(lo, hi int) kevlard.Layers { return kevlard.Layers{Lo: lo, Hi: hi} }

func key(l kevlard.Layers) kevlard.StageKey {
	return kevlard.StageKey{Model: toyTopology().ID, Layers: l}
}

func prompt(seed, n int) []kevlard.Token {
	out := make([]kevlard.Token, n)
	for i := range out {
		out[i] = kevlard.Token((seed*7919+i*104729)%(toyModel.Vocab-1)) + 1
	}
	return out
}

// job is one session of a test and what it must yield.
type job struct {
	name kevlard.SessionID
	req  node.Request
}

func newJob(i, n int) job {
	s := kevlard.Sampling{Seed: uint64(i)}
	if i%2 == 1 {
		s.Temperature = 0.8
	} else {
		s.Logprobs, s.TopLogprobs = true, i%kevlard.MaxTopLogprobs
	}
	return job{kevlard.SessionID(fmt.Sprintf("s-%d", i)), node.Request{Model: toyTopology().ID, Prompt: prompt(i, 5+11*i), MaxTokens: n, Sampling: s}}
}

// result is what a client saw.
type result struct {
	tokens   []kevlard.Token
	logprobs []kevlard.Logprobs
	end      daemon.Update
	err      error
}

// generate runs a job; at is called with the number of tokens after each update.
func generate(ctx context.Context, m *member, j job, at func(n int)) result {
	s, err := m.Generate(ctx, j.name, j.req)
	if err != nil {
		return result{err: err}
	}
	return read(ctx, s, at)
}

// read takes a stream to its end.
func read(ctx context.Context, s *daemon.Stream, at func(n int)) result {
	var r result
	for {
		u, err := s.Next(context.WithoutCancel(ctx))
		if err != nil {
			r.err = err
			return r
		}
		r.tokens = append(r.tokens, u.Tokens...)
		r.logprobs = append(r.logprobs, u.Logprobs...)
		if at != nil {
			at(len(r.tokens))
		}
		if u.Done {
			r.end = u
			return r
		}
	}
}

// exact checks a result against the fault-free run.
func exact(t *testing.T, j job, r result) {
	t.Helper()
	if r.err != nil || r.end.Err != nil || r.end.Reason != "length" {
		t.Errorf("%s: ended with reason %q, failure %v, error %v after %d tokens", j.name, r.end.Reason, r.end.Err, r.err, len(r.tokens))
		return
	}
	sampled := toyModel.ReferenceSampled(j.req.Prompt, j.req.MaxTokens, j.req.Sampling)
	var logprobs []kevlard.Logprobs
	for _, s := range sampled {
		if s.Logprobs != nil {
			logprobs = append(logprobs, *s.Logprobs)
		}
	}
	if !reflect.DeepEqual(r.logprobs, logprobs) {
		t.Errorf("%s: %d tokens' logprobs, want %d, or one differs", j.name, len(r.logprobs), len(logprobs))
	}
	want := kevlard.Tokens(sampled)
	if !slices.Equal(r.tokens, want) {
		at := 0
		for at < min(len(want), len(r.tokens)) && want[at] == r.tokens[at] {
			at++
		}
		t.Errorf("%s: %d tokens, the first wrong one at %d of %d", j.name, len(r.tokens), at, len(want))
	}
}
