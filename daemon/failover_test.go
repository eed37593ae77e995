package daemon_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// spared is a pipeline of three stages, a host that holds all of them as well,
// and a gateway.
func spared(t *testing.T) (r *ring, gateway *member) {
	r = newRing(t)
	r.step = 2 * time.Millisecond
	r.timing.Stage.StallKill = time.Hour // a frozen engine stays until the test thaws it
	r.start("a", hops[0])
	r.start("b", hops[1])
	r.start("c", hops[2])
	r.start("spare", hops...)
	gateway = r.start("gate")
	r.ready()
	return r, gateway
}

// streams runs n jobs of the given length and calls hurt once, when all of them
// have shown a few tokens. Each must be token-exact.
func streams(t *testing.T, gateway *member, n, length int, hurt func()) []result {
	t.Helper()
	var all, running sync.WaitGroup
	results := make([]result, n)
	running.Add(n)
	for i := range n {
		all.Go(func() {
			j := newJob(i, length)
			var once sync.Once
			results[i] = generate(t.Context(), gateway, j, func(got int) {
				if got >= 5 {
					once.Do(running.Done)
				}
			})
			once.Do(running.Done)
			exact(t, j, results[i])
		})
	}
	running.Wait()
	hurt()
	all.Wait()
	return results
}

// hops are the stages of spared, in order.
var hops = []kevlard.Layers{span(0, 3), span(3, 6), span(6, 8)}

// victim returns a host that a session runs through now at the given hop.
func victim(t *testing.T, r *ring, gateway *member, hop int) *member {
	t.Helper()
	for _, s := range gateway.Sessions(t.Context(), false).Sessions {
		if len(s.Route) == len(hops) {
			return r.members[kevlard.NodeID(s.Route[hop])]
		}
	}
	t.Fatalf("no session has a route: %+v", gateway.Sessions(t.Context(), false))
	return nil
}

func moved(results []result) (n int, causes []string) {
	for _, r := range results {
		n += len(r.end.Failovers)
		for _, f := range r.end.Failovers {
			if !slices.Contains(causes, f.Cause) {
				causes = append(causes, f.Cause)
			}
		}
	}
	return n, causes
}

// TestKilledNode kills the host of the first, the middle and the last stage, and
// restarts it.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	for hop := range 3 {
		var v *member
		results := streams(t, gateway, 6, 120, func() {
			v = victim(t, r, gateway, hop)
			r.kill(v)
		})
		if n, causes := moved(results); n == 0 || !slices.Contains(causes, "reset") {
			t.Errorf("hop %d: %d failovers, causes %v, want reset", hop, n, causes)
		}
		r.run(v.cfg)
		r.ready()
	}
	r.idle()
}

func TestKilledEngine(t *testing.T) {
	r, gateway := spared(t)
	var v *member
	results := streams(t, gateway, 6, 120, func() {
		v = victim(t, r, gateway, 1)
		v.launcher.Engine(key(hops[1])).Kill()
	})
	if n, causes := moved(results); n == 0 || !slices.Contains(causes, "engine-exit") {
		t.Errorf("%d failovers, causes %v, want engine-exit", n, causes)
	}
	r.until("the engine is back", func() bool { return v.Status().Ready && v.launcher.Starts() == len(v.cfg.Assigned)+1 })
	if !slices.ContainsFunc(v.Events(time.Time{}), func(e report.Event) bool { return e.Type == "engine-exit" && e.Cause == "signal: killed" }) {
		t.Error("no event names the engine's exit and its signal")
	}
	r.idle()
}

// TestRecoveryIsCountedWhenItEnds wants the histogram to move while the session
// that recovered goes on, and not again when that ends.
func TestRecoveryIsCountedWhenItEnds(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	count := func() float64 { return scrape(t, gateway)["kevlard_recovery_seconds phase=restore"] }
	j := newJob(1, 600)
	var once sync.Once
	during := 0.0
	res := generate(t.Context(), gateway, j, func(n int) {
		if n > 5 {
			once.Do(func() { victim(t, r, gateway, 1).launcher.Engine(key(hops[1])).Kill() })
		}
		if n%100 == 0 && n < 600 {
			during = max(during, count())
		}
	})
	exact(t, j, res)
	if n := float64(len(res.end.Failovers)); n == 0 || during == 0 || count() != n {
		t.Errorf("%v failovers; %v counted while the session ran, %v after it", n, during, count())
	}
}

func TestFrozenEngine(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	var v *member
	results := streams(t, gateway, 6, 120, func() {
		v = victim(t, r, gateway, 1)
		v.launcher.Engine(key(hops[1])).Freeze()
		r.until("the node calls itself not ready", func() bool { ok, _ := v.Ready(); return !ok })
	})
	if n, _ := moved(results); n == 0 {
		t.Error("nobody failed over")
	}
	before := v.Status().Sessions.FencedItems
	v.launcher.Engine(key(hops[1])).Thaw()
	r.until("the late result is fenced and the node ready again", func() bool {
		ok, _ := v.Ready()
		return ok && v.Status().Sessions.FencedItems > before
	})
	if v.launcher.Starts() != len(v.cfg.Assigned) {
		t.Errorf("%d engine starts: an engine that wakes up need not be restarted", v.launcher.Starts())
	}
	r.idle()
}

// TestLastHolderDies wants an error, not a stop, and service again after a
// restart.
func TestLastHolderDies(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	r.timing.Session.RecoverDeadline = time.Second
	gateway := r.start("gate")
	r.start("a", span(0, 4))
	b := r.start("b", span(4, 8))
	r.ready()
	j := newJob(2, 900)
	var once sync.Once
	res := generate(t.Context(), gateway, j, func(n int) {
		if n > 5 {
			once.Do(func() { r.kill(b) })
		}
	})
	if res.end.Reason != "error" || res.end.Err == nil || res.end.Err.Code != "no_route" {
		t.Errorf("ended with %q, %v, want the failure no_route", res.end.Reason, res.end.Err)
	}
	if ok, why := gateway.Ready(); ok || why == "" {
		t.Errorf("the gateway calls itself ready (%q) without layers [4,8)", why)
	}
	want := toyModel.Reference(j.req.Prompt, len(res.tokens), j.req.Sampling)
	if !slices.Equal(res.tokens, want) {
		t.Error("what was shown before the error is not exact")
	}
	r.run(b.cfg)
	r.until("the gateway is ready", func() bool { ok, _ := gateway.Ready(); return ok })
	j = newJob(3, 30)
	exact(t, j, generate(t.Context(), gateway, j, nil))
}

// TestPoison sends a request that kills engines among others that do not.
func TestPoison(t *testing.T) {
	r := newRing(t)
	r.poison = 999
	gateway := r.start("gate")
	r.start("a", span(0, 8))
	r.start("b", span(0, 8))
	r.ready()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			j := newJob(i, 120)
			exact2 := func(res result) {
				want := toyModel.Reference(j.req.Prompt, j.req.MaxTokens, j.req.Sampling)
				if slices.Contains(want, r.poison) || slices.Contains(j.req.Prompt, r.poison) {
					t.Fatalf("the test's own job %d is poisonous: choose another", i)
				}
				exact(t, j, res)
			}
			exact2(generate(t.Context(), gateway, j, nil))
		})
	}
	bad := newJob(9, 50)
	bad.req.Prompt[3] = r.poison
	res := generate(t.Context(), gateway, bad, nil)
	if res.end.Err == nil || res.end.Err.Code != "poisoned" || res.end.Err.Status != 500 {
		t.Errorf("the poisonous request ended with %q, %v, want poisoned", res.end.Reason, res.end.Err)
	}
	all.Wait()
	r.idle()
}

func TestEngineThatCannotStart(t *testing.T) {
	r := newRing(t)
	a := r.start("a", span(0, 8))
	r.ready()
	a.launcher.Refuse(errors.New("no such file: toy.gguf"))
	a.launcher.Engine(key(span(0, 8))).Kill()
	r.until("a start has failed", func() bool { return a.launcher.Starts() > 2 })
	r.until("the status says so", func() bool {
		s := a.Status()
		return !s.Ready && len(s.Problems) > 0 && slices.ContainsFunc(s.Stages, func(st report.Stage) bool { return st.Reason != "" })
	})
	a.launcher.Refuse(nil)
	r.until("it starts in the end", func() bool { ok, _ := a.Ready(); return ok })
}
