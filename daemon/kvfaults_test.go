package daemon_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/kvstream/index"
)

// standbyLost reports whether a node's log says that a standby was given up, and why.
func standbyLost(m *member, standby, cause string) bool {
	return slices.ContainsFunc(m.Events(time.Time{}), func(e report.Event) bool {
		return e.Type == "standby-lost" && e.Peer == standby && e.Cause == cause
	})
}

// once lets f run when a stream has shown n tokens.
func once(n int, f func()) func(int) {
	var o sync.Once
	return func(got int) {
		if got >= n {
			o.Do(f)
		}
	}
}

// TestBlackholedStandby (K50): a node swallows all KV that it is sent, as a standby and
// when it fetches. It is replaced, and when the session must go to it, that computes what
// it lacks.
func TestBlackholedStandby(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory", func(r *ring) { r.timing.Stage.SlowStandby = 300 * time.Millisecond })
	j := newJob(1, 900)
	res := generate(t.Context(), gateway, j, once(60, func() {
		r.until("the standbys have something", func() bool { return replicated(t, gateway, 1, 20) })
		s := gateway.Sessions(t.Context(), false).Sessions[0]
		hole := s.Standbys[1][0]
		r.fabric.setMeddle(func(_, to kevlard.NodeID, _, _ []byte) bool { return string(to) != hole })
		r.until("it is given up", func() bool { return standbyLost(gateway, hole, "slow") })
		r.kill(r.members[kevlard.NodeID(s.Route[1])])
	}))
	exact(t, j, res)
	if len(res.end.Failovers) == 0 {
		t.Error("the session did not fail over")
	}
	if n := scrape(t, gateway)["kevlard_failovers_total cause=reset"]; n == 0 {
		t.Error("no failover is counted")
	}
}

// TestFullStandbys: nobody has room for a copy. That is counted, and what is lost is
// computed again.
func TestFullStandbys(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory", func(r *ring) { r.kv = index.Config{Bytes: 1} })
	refused := func() float64 { return r.sum("kevlard_kv_rejected_total reason=capacity") }
	before := 0.0
	results := streams(t, gateway, 4, 250, func() {
		r.until("standbys refuse", func() bool { before = refused(); return before > 0 })
		r.kill(victim(t, r, gateway, 1))
	})
	if n, _ := moved(results); n == 0 {
		t.Error("nobody failed over")
	}
	if n := r.sum("kevlard_kv_positions_total kind=stored") + r.sum("kevlard_kv_positions_total kind=loaded"); n != 0 {
		t.Errorf("%v positions were stored and loaded where there is no room for one", n)
	}
}

// TestLateRows: rows of a session that was aborted come when another session's copies
// are where its own were.
func TestLateRows(t *testing.T) {
	t.Parallel()
	type piece struct {
		from, to     kevlard.NodeID
		header, body []byte
	}
	r, gateway := copied(t, "memory")
	var mu sync.Mutex
	var late []piece
	r.fabric.setMeddle(func(from, to kevlard.NodeID, header, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		late = append(late, piece{from, to, slices.Clone(header), slices.Clone(body)})
		return false
	})
	held := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(late)
	}
	s, err := gateway.Generate(t.Context(), "aborted", newJob(3, 900).req)
	if err != nil {
		t.Fatal(err)
	}
	r.until("rows are under way to all standbys", func() bool { return held() >= len(hops) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.idle()
	r.fabric.setMeddle(nil)
	stale := 0.0
	j := newJob(1, 600)
	res := generate(t.Context(), gateway, j, once(60, func() {
		r.until("the standbys have something", func() bool { return replicated(t, gateway, 1, 40) })
		for _, p := range late {
			r.fabric.mu.Lock()
			to := r.fabric.members[p.to]
			r.fabric.mu.Unlock()
			if err := to.take(p.from, 0, p.header, p.body); err != nil {
				t.Error(err)
			}
		}
		r.until("the late rows are refused", func() bool {
			stale = r.sum("kevlard_kv_rejected_total reason=stale")
			return stale >= float64(len(late))
		})
		r.kill(victim(t, r, gateway, 1))
	}))
	exact(t, j, res)
	if len(res.end.Failovers) == 0 || r.sum("kevlard_kv_positions_total kind=loaded") < 40 {
		t.Errorf("failovers %+v; the copy was not used", res.end.Failovers)
	}
}

// TestReceiverDies is K14: a node dies while a transfer to it stands still. Those who
// live are healthy all the time, and their engines go on.
func TestReceiverDies(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory")
	var hole atomic.Value // the node to which transfers stand still
	hole.Store(kevlard.NodeID(""))
	reached, release := make(chan struct{}), make(chan struct{})
	var first sync.Once
	r.fabric.setMeddle(func(_, to kevlard.NodeID, _, _ []byte) bool {
		if to == hole.Load() {
			first.Do(func() { close(reached) })
			<-release
		}
		return true
	})
	defer close(release)
	j := newJob(1, 600)
	res := generate(t.Context(), gateway, j, once(30, func() {
		r.until("the standbys have something", func() bool { return replicated(t, gateway, 1, 10) })
		s := gateway.Sessions(t.Context(), false).Sessions[0]
		hole.Store(kevlard.NodeID(s.Standbys[1][0]))
		<-reached
		r.kill(r.members[kevlard.NodeID(s.Standbys[1][0])])
		r.until("the standby is given up", func() bool {
			for _, m := range r.all() {
				if ok, why := m.Ready(); !ok {
					t.Errorf("%s calls itself not ready: %s", m.cfg.Name, why)
				}
			}
			return slices.ContainsFunc(gateway.Events(time.Time{}), func(e report.Event) bool {
				return e.Type == "standby-lost" && e.Peer == s.Standbys[1][0]
			})
		})
	}))
	exact(t, j, res)
	for _, m := range r.all() {
		if n := m.launcher.Starts(); n != len(m.cfg.Assigned) {
			t.Errorf("%s started %d engines for %d stages", m.cfg.Name, n, len(m.cfg.Assigned))
		}
		for _, e := range m.Events(time.Time{}) {
			if e.Type == "engine-stall" {
				t.Errorf("%s: %+v", m.cfg.Name, e)
			}
		}
	}
}

// TestOwnerRestarts is K54: an owner of sessions, all that knows where their copies are,
// dies and comes back. The copies of another owner's sessions stay what they are, and a
// session goes on from them.
func TestOwnerRestarts(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory", func(r *ring) { r.step = 4 * time.Millisecond })
	other := r.start("gate2")
	r.until("the other gateway is ready", func() bool { ok, _ := other.Ready(); return ok })
	if _, err := other.Generate(t.Context(), "doomed", newJob(3, 900).req); err != nil {
		t.Fatal(err)
	}
	mark := 0
	j := newJob(1, 700)
	res := generate(t.Context(), gateway, j, once(60, func() {
		r.until("copies of both are kept", func() bool { return replicated(t, gateway, 1, 40) && replicated(t, other, 1, 10) })
		r.kill(other)
		other = r.run(other.cfg)
		r.until("it is back", func() bool { ok, _ := other.Ready(); return ok })
		again := newJob(5, 30)
		exact(t, again, generate(t.Context(), other, again, nil))
		s := gateway.Sessions(t.Context(), false).Sessions
		if len(s) != 1 {
			t.Errorf("the session ended too early: %+v", s)
			return
		}
		mark = s[0].ReplicatedThrough[1]
		r.kill(r.members[kevlard.NodeID(s[0].Route[1])])
	}))
	exact(t, j, res)
	if n := r.sum("kevlard_kv_positions_total kind=loaded"); mark == 0 || n < float64(mark) {
		t.Errorf("%v positions were loaded, the copy had at least %d", n, mark)
	}
}
