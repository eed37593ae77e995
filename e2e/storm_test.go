package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestRandomFaults kills and freezes hosts of every stage, one after another at
// random, under load and with restarts: 200 in the long run (K09: at whatever token
// sessions are). Every stream is token for token the unbroken one, greedy and at temperature 0.8, and nothing is left behind.
func TestRandomFaults(t *testing.T) {
	const lanes, tokens = 6, 300
	faults, opt := 8, fourHosts()
	if long() {
		faults, opt = 200, eightHosts()
	}
	m := start(t, opt)
	warm := m.background(t, lanes, tokens)
	eventually(t, streamWithin, func() error { return warm.atLeast(2 * lanes) })
	warm.stop(t)
	before := m.settled(t, nil)

	const seed = 4
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("%d faults, seed %d", faults, seed)
	traffic := m.background(t, lanes, tokens)
	kinds, did := []string{"kill", "freeze", "kill engine", "freeze engine"}, map[string]int{}
	broken := 0
	for i := range faults {
		if i%len(kinds) == 0 {
			rng.Shuffle(len(kinds), func(a, b int) { kinds[a], kinds[b] = kinds[b], kinds[a] })
		}
		kind, victim := kinds[i%len(kinds)], m.Hosts()[rng.IntN(len(m.Hosts()))]
		at := time.Now()
		sessions := m.through(t, victim, "decode")
		m.breakAndMend(t, kind, victim, 1+rng.IntN(2))
		did[kind]++
		m.ready(t)
		broken += m.recoveries(t, sessions, at)
	}
	traffic.stop(t)
	t.Logf("%v: %d streams failed over", did, broken)
	if broken == 0 {
		t.Error("no stream failed over: nothing was shown")
	}
	after := m.settled(t, before)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		t.Logf("%-9s before %s", name, before[name])
		t.Logf("%-9s after  %s", name, after[name])
	}
}

// breakAndMend breaks the victim in one way and lets it come back, after so many
// seconds where it is frozen.
func (m *mesh) breakAndMend(t *testing.T, kind string, victim *devmesh.Node, seconds int) {
	t.Helper()
	switch kind {
	case "kill":
		m.chaos(t, "kill", victim.Name())
		m.restartLater(t, victim)
	case "freeze":
		m.chaos(t, "freeze", "--for", strconv.Itoa(seconds), victim.Name())
	case "kill engine":
		old := m.engine(t, victim, 0)
		m.chaos(t, "kill", "--engine", victim.Name())
		m.engine(t, victim, old)
	case "freeze engine":
		m.chaos(t, "freeze", "--for", strconv.Itoa(seconds), "--engine", victim.Name())
	}
}

// atLeast returns an error until so many streams have ended.
func (b *background) atLeast(n int64) error {
	if got := b.streams.Load(); got < n {
		return fmt.Errorf("%d streams have ended, want %d", got, n)
	}
	return nil
}

// holdings is what a node holds on to.
type holdings struct {
	goroutines, files, kv float64 // kv in bytes of cells, copies and buffers
	cached                float64 // bytes of prefixes, which stay until the room is wanted
	engine                int64   // bytes resident
}

func (h holdings) String() string {
	return fmt.Sprintf("%v goroutines, %v files, %v bytes of KV and %v cached, engine %d MiB", h.goroutines, h.files, h.kv, h.cached, h.engine>>20)
}

// exceeds says what a node holds more of than before. Goroutines and files may be as
// many more as there can be bulk connections to the other eight nodes: they are made
// when first needed, four to a peer and as many from it, and stay. A new engine has
// not touched less memory than an old one, and the allocator keeps some.
func (h holdings) exceeds(before holdings) error {
	const spare, spareBytes, cacheBytes = 8 + 8*8, 16 << 20, 256 << 20 // [kv] ram_bytes
	switch {
	case h.goroutines > before.goroutines+spare:
	case h.files > before.files+spare:
	case h.kv > before.kv:
	case h.cached > cacheBytes:
	case h.engine > before.engine+spareBytes:
	default:
		return nil
	}
	return fmt.Errorf("it holds %s; before: %s", h, before)
}

// settled waits until no node has a session, and, if before is given, none holds more
// than then. It returns what each holds.
func (m *mesh) settled(t *testing.T, before map[string]holdings) map[string]holdings {
	t.Helper()
	var out map[string]holdings
	eventually(t, readyWithin, func() error {
		if err := m.idle(t.Context()); err != nil {
			return err
		}
		out = map[string]holdings{}
		for _, n := range m.All() {
			h, err := holdingsOf(t.Context(), n)
			if err != nil {
				return err
			}
			out[n.Name()] = h
			if before == nil {
				continue
			}
			if err := h.exceeds(before[n.Name()]); err != nil {
				return fmt.Errorf("%s: %w", n.Name(), err)
			}
		}
		return nil
	})
	return out
}

func holdingsOf(ctx context.Context, n *devmesh.Node) (holdings, error) {
	var h holdings
	c := load.NewClient(n.APIURL())
	defer c.CloseIdle()
	for name, to := range map[string]*float64{"go_goroutines": &h.goroutines, "process_open_fds": &h.files} {
		v, err := c.Metric(ctx, name)
		if err != nil {
			return h, fmt.Errorf("%s: %w", n.Name(), err)
		}
		*to = v
	}
	// Spare block memory is what the most that was held at once has left.
	for kind, to := range map[string]*float64{
		`kind="standby",tier="ram"`: &h.kv, `kind="buffer",tier="ram"`: &h.kv, `kind="session",tier="engine"`: &h.kv, `kind="prefix",tier="ram"`: &h.cached,
	} {
		v, err := c.Metric(ctx, "kevlard_kv_bytes{"+kind+"}")
		if err != nil {
			return h, fmt.Errorf("%s: %w", n.Name(), err)
		}
		*to += v
	}
	pids, err := n.EnginePIDs(ctx)
	if err != nil {
		return h, err
	}
	for _, pid := range pids {
		u, err := devmesh.UsageOf(pid)
		if err != nil {
			return h, err
		}
		h.engine += u.RSS
	}
	return h, nil
}
