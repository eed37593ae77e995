package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/model"
)

// fourHosts is a small mesh in which every stage has two holders.
func fourHosts() devmesh.Options { return devmesh.Options{Nodes: 4, Stages: 2, Gateways: 1} }

// readyz returns the status of a node's /readyz, 0 if it does not answer in a second.
func readyz(ctx context.Context, n *devmesh.Node) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.APIURL()+"/readyz", nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func wantReadyz(t *testing.T, within time.Duration, n *devmesh.Node, want int) {
	t.Helper()
	began := time.Now()
	eventually(t, within, func() error {
		if got := readyz(t.Context(), n); got != want {
			return fmt.Errorf("/readyz of %s is %d, want %d", n.Name(), got, want)
		}
		return nil
	})
	t.Logf("/readyz of %s became %d after %s", n.Name(), want, time.Since(began).Round(time.Millisecond))
}

// background keeps n streams running until stop, one after another in each lane,
// and compares each with its unbroken run.
type background struct {
	cancel  context.CancelFunc
	lanes   sync.WaitGroup
	streams atomic.Int64
	mu      sync.Mutex
	errs    []error
	heard   []time.Time   // the last token of each lane
	gap     time.Duration // the longest between two
}

// hear notes a token of a lane.
func (b *background) hear(lane int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.gap = max(b.gap, now.Sub(b.heard[lane]))
	b.heard[lane] = now
}

func (m *mesh) background(t *testing.T, lanes, tokens int) *background {
	t.Helper()
	requests := storyRequests(m, lanes, tokens)
	want := m.unbroken(t, requests)
	ctx, cancel := context.WithCancel(t.Context())
	b := &background{cancel: cancel, heard: slices.Repeat([]time.Time{time.Now()}, lanes)}
	for i, r := range requests {
		b.lanes.Go(func() {
			for ctx.Err() == nil {
				// The last stream of each lane runs to its end: t.Context, not ctx.
				got := m.client.Stream(t.Context(), r, func(string, load.Piece) { b.hear(i) })
				b.streams.Add(1)
				if got.Err == nil && !got.Same(want[i]) {
					got.Err = errors.New(difference(got, want[i]))
				}
				if got.Err != nil {
					b.mu.Lock()
					b.errs = append(b.errs, fmt.Errorf("lane %d, session %s: %w", i, got.Session, got.Err))
					b.mu.Unlock()
				}
			}
		})
	}
	return b
}

// stop ends the load and demands that every stream was right.
func (b *background) stop(t *testing.T) {
	t.Helper()
	b.cancel()
	b.lanes.Wait()
	for _, err := range b.errs {
		t.Error(err)
	}
	t.Logf("%d streams in the background, %d wrong", b.streams.Load(), len(b.errs))
	if b.streams.Load() == 0 {
		t.Error("no stream ran")
	}
}

// TestEngineKilledAgainAndAgain is K01 (20 times in the long run): afterwards the processor is idle, the log is
// short, and the same daemon serves.
func TestEngineKilledAgainAndAgain(t *testing.T) {
	const idleWithin, logGrowth = 10 * time.Second, 1 << 20
	kills := 4 // the daemon waits twice as long before each restart
	if long() {
		kills = 20
	}
	m := start(t, fourHosts())
	victim := m.Node(2)
	pids := m.pids()
	logBefore := fileSize(t, victim.LogFile())
	traffic := m.background(t, 4, 200)
	for range kills {
		old := m.engine(t, victim, 0)
		m.chaos(t, "kill", "--engine", victim.Name())
		m.engine(t, victim, old)
	}
	traffic.stop(t)
	eventually(t, idleWithin, func() error { return m.quiet(victim) })
	if grown := fileSize(t, victim.LogFile()) - logBefore; grown > logGrowth {
		t.Errorf("the log grew by %d bytes, want at most %d", grown, logGrowth)
	} else {
		t.Logf("the log grew by %d bytes", grown)
	}
	if now := m.pids(); !maps.Equal(now, pids) {
		t.Errorf("daemons were %v, now %v", pids, now)
	}
	m.ready(t)
	judge(t, m.storm(t.Context(), storyRequests(m, 4, 50)).wait(t), m.unbroken(t, storyRequests(m, 4, 50)))
}

// engine waits until the node has a ready engine other than old and returns it.
func (m *mesh) engine(t *testing.T, n *devmesh.Node, old int) int {
	t.Helper()
	pid := 0
	eventually(t, readyWithin, func() error {
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		if len(s.Engines) == 0 || s.Engines[0].PID == old || s.Engines[0].PID == 0 || s.Stages[0].State != "ready" {
			return fmt.Errorf("%s has no new ready engine: engines %+v, stages %+v", n.Name(), s.Engines, s.Stages)
		}
		pid = s.Engines[0].PID
		return nil
	})
	return pid
}

// quiet returns an error unless the node's daemon and engines together used less
// than a tenth of one processor during half a second.
func (m *mesh) quiet(n *devmesh.Node) error {
	const window, most = 500 * time.Millisecond, 5 // ticks of 10 ms
	ticks := func() (int64, error) {
		pids, err := n.EnginePIDs(context.Background())
		if err != nil {
			return 0, err
		}
		var sum int64
		for _, pid := range append(pids, n.PID()) {
			u, err := devmesh.UsageOf(pid)
			if err != nil {
				return 0, err
			}
			sum += u.CPU
		}
		return sum, nil
	}
	before, err := ticks()
	if err != nil {
		return err
	}
	time.Sleep(window) // a measurement takes its time
	after, err := ticks()
	if err != nil {
		return err
	}
	if after-before > most {
		return fmt.Errorf("%s used %d ms of processor in %s", n.Name(), 10*(after-before), window)
	}
	return nil
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestFrozenEngine is K18: the engine stands still, its daemon does not. The node
// says that it cannot serve, and routes go elsewhere.
func TestFrozenEngine(t *testing.T) {
	const redWithin, greenWithin = 10 * time.Second, 30 * time.Second
	m := start(t, fourHosts())
	victim := m.Node(2)
	traffic := m.background(t, 4, 300)
	m.through(t, victim, "decode")
	m.chaos(t, "freeze", "--engine", "--for", "ever", victim.Name())
	wantReadyz(t, redWithin, victim, http.StatusServiceUnavailable)
	if got := readyz(t.Context(), m.Entry()); got != http.StatusOK {
		t.Errorf("/readyz of the gateway is %d while the other pipeline serves", got)
	}
	if err := m.tryChaos(t, "thaw", "--engine", victim.Name()); err != nil {
		t.Log(err) // the daemon may be replacing the frozen engine just now
	}
	wantReadyz(t, greenWithin, victim, http.StatusOK)
	traffic.stop(t)
}

// TestEngineKilledOfTheOnlyHolder is K19 and K02: with no other holder the loss
// shows in /readyz within 5 s, and a request fails within its deadline instead of
// hanging.
func TestEngineKilledOfTheOnlyHolder(t *testing.T) {
	const redWithin = 5 * time.Second
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 1})
	m.chaos(t, "kill", "--engine", m.Node(2).Name())
	wantReadyz(t, redWithin, m.Node(2), http.StatusServiceUnavailable)
	wantReadyz(t, readyWithin, m.Node(2), http.StatusOK) // the daemon starts it again

	// K02: a host that is not the head dies for good.
	others := m.pids(m.Node(2))
	m.chaos(t, "kill", m.Node(2).Name())
	wantReadyz(t, redWithin, m.Entry(), http.StatusServiceUnavailable)
	began := time.Now()
	r := m.client.Stream(t.Context(), storyRequests(m, 1, 20)[0], nil)
	if e, ok := r.Err.(*load.APIError); !ok || e.Status != http.StatusServiceUnavailable {
		t.Errorf("a request without a route: %v, want HTTP 503", r.Err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %s to refuse", took)
	}
	if now := m.pids(m.Node(2)); !maps.Equal(now, others) {
		t.Errorf("other daemons were %v, now %v", others, now)
	}
	m.restart(t, m.Node(2))
}

// TestEnginesHoldTheirUnitsOnly serves a model of random weights, big enough that a
// unit too many would show, over four stages.
func TestEnginesHoldTheirUnitsOnly(t *testing.T) {
	const most = 60 << 20 // beyond the weights: the process, KV and compute buffers
	spec, err := model.Preset("110m")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "synth.gguf")
	if err := model.Synth(path, spec, nil); err != nil {
		t.Fatal(err)
	}
	m := start(t, devmesh.Options{Nodes: 4, Stages: 4, Gateways: 1, Model: path})
	m.unbroken(t, storyRequests(m, 4, 50))
	for _, n := range m.Hosts() {
		s, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range s.Engines {
			rss := residentOf(t, e.PID)
			t.Logf("%s [%d,%d): weights %d MiB, resident %d MiB", n.Name(), e.Lo, e.Hi, e.WeightBytes>>20, rss>>20)
			if e.WeightBytes == 0 || rss > e.WeightBytes+most {
				t.Errorf("%s: resident %d bytes, weights %d: want at most %d more", n.Name(), rss, e.WeightBytes, most)
			}
		}
	}
}

// TestOrphans is K76: a daemon killed with SIGKILL takes its engine along, and the
// next one loads.
func TestOrphans(t *testing.T) {
	const goneWithin = 30 * time.Second // how soon is in the log
	m := start(t, devmesh.Options{Nodes: 1, Stages: 1})
	for range 3 {
		pid := m.engine(t, m.Node(1), 0)
		m.chaos(t, "kill", m.Node(1).Name())
		killed := time.Now()
		eventually(t, goneWithin, func() error {
			if _, err := devmesh.UsageOf(pid); err == nil {
				return fmt.Errorf("engine %d outlives its daemon", pid)
			}
			return nil
		})
		t.Logf("gone after %s", time.Since(killed).Round(time.Millisecond))
		m.restart(t, m.Node(1))
	}
}
