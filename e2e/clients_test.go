package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestClientGoes is K71: a client that closes after 5 tokens of 900 stops the work
// in all stages at once: long before it would have ended. How long that takes is logged.
func TestClientGoes(t *testing.T) {
	m := start(t, fourHosts())
	generated := func() float64 {
		return m.sum(t, `kevlard_tokens_total{kind="generated"}`)
	}
	for round := range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		seen, before := 0, generated()
		r := m.client.Stream(ctx, storyRequests(m, 1, 900)[0], func(_ string, p load.Piece) {
			if seen += len(p.IDs); seen >= 5 {
				cancel()
			}
		})
		cancel()
		if r.Err == nil || seen < 5 || seen > 400 {
			t.Fatalf("round %d: the stream ended after %d tokens with %v: it was not cut off", round, seen, r.Err)
		}
		gone := time.Now()
		eventually(t, readyWithin, func() error { return m.idle(t.Context()) })
		t.Logf("all stages idle %s after the client went", time.Since(gone).Round(time.Millisecond))
		if n := generated() - before; n < 5 || n > 500 {
			t.Errorf("round %d: %.0f tokens of 900 were generated", round, n)
		}
	}
	for _, n := range m.Hosts() {
		eventually(t, 10*time.Second, func() error { return m.quiet(n) })
	}
}

// TestAbortsDuringPrefill is K13: nine of ten requests are aborted while their
// prompts are computed. All slots are free then (in how long is logged), and requests are as
// fast as before.
func TestAbortsDuringPrefill(t *testing.T) {
	during := 5 * time.Second
	if long() {
		during = time.Minute
	}
	m := start(t, fourHosts())
	requests := longPrompts(m, 10, 5)
	calm := m.unbroken(t, requests)
	deadline := time.Now().Add(during)
	aborted, whole := 0, 0
	for round := 0; time.Now().Before(deadline); round++ {
		results := make(chan error)
		for i, r := range requests {
			ctx, cancel := context.WithCancel(t.Context())
			if i != round%len(requests) {
				time.AfterFunc(time.Duration(5+10*i)*time.Millisecond, cancel)
			}
			go func() {
				defer cancel()
				got := m.client.Stream(ctx, r, nil)
				switch {
				case i != round%len(requests):
					results <- nil // aborted, or done before
				case got.Err != nil:
					results <- got.Err
				case !got.Same(calm[i]):
					results <- fmt.Errorf("stream %d: %s", i, difference(got, calm[i]))
				default:
					results <- nil
				}
			}()
		}
		for range requests {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		aborted, whole = aborted+len(requests)-1, whole+1
	}
	ended := time.Now()
	eventually(t, readyWithin, func() error { return m.idle(t.Context()) })
	t.Logf("%d requests aborted, %d not; all slots free after %s", aborted, whole, time.Since(ended).Round(time.Millisecond))
	again := m.unbroken(t, requests)
	judge(t, again, calm)
	t.Logf("first token of the last of %d long prompts: %s before, %s after", len(requests), slowest(calm), slowest(again))
}

func slowest(results []load.Result) time.Duration {
	var d time.Duration
	for _, r := range results {
		d = max(d, r.FirstToken())
	}
	return d.Round(time.Millisecond)
}

// TestSaturated is the test against false alarms: without a fault nothing may be
// taken for one, however busy the machine is, and memory stays flat.
func TestSaturated(t *testing.T) {
	const lanes, rounding = 24, 24 << 20
	during, tokens := 15*time.Second, 150
	if long() {
		during, tokens = 10*time.Minute, 400
	}
	m := start(t, eightHosts())
	traffic := m.background(t, lanes, tokens)
	settled, end := time.After(during/3), time.After(during)
	<-settled // the length of the measurement
	before := m.resident(t)
	<-end
	after := m.resident(t)
	traffic.stop(t)
	for name, rss := range after {
		if grown := rss - before[name]; grown > before[name]/5+rounding {
			t.Errorf("%s grew from %d to %d MiB in the last two thirds", name, before[name]>>20, rss>>20)
		}
	}
	for _, n := range m.All() {
		events, err := n.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			switch e.Type {
			case "failover", "silent", "self-doubt", "refused", "edge-blamed", "engine-stall", "engine-exit", "poison", "node-dead", "node-suspect":
				t.Errorf("%s reports %+v", n.Name(), e)
			}
		}
		c := load.NewClient(n.APIURL())
		failovers, err := c.Metric(t.Context(), "kevlard_failovers_total")
		c.CloseIdle()
		if err != nil {
			t.Fatalf("%s: %v", n.Name(), err)
		}
		if failovers != 0 {
			t.Errorf("%s counts %v failovers", n.Name(), failovers)
		}
	}
}

// resident returns the memory of every daemon and engine.
func (m *mesh) resident(t *testing.T) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, n := range m.All() {
		pids, err := n.EnginePIDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, pid := range append([]int{n.PID()}, pids...) {
			out[fmt.Sprintf("%s process %d", n.Name(), i)] = residentOf(t, pid)
		}
	}
	return out
}
