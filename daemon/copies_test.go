package daemon_test

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// copied is a pipeline of three stages twice, and a gateway; a copy of each session's
// KV is kept.
func copied(t *testing.T, bulk string, tune ...func(*ring)) (r *ring, gateway *member) {
	r = newRing(t)
	r.bulk = bulk
	r.step = 2 * time.Millisecond
	for _, f := range tune {
		f(r)
	}
	for i, name := range []kevlard.NodeID{"a", "b", "c"} {
		r.start(name+"1", hops[i])
		r.start(name+"2", hops[i])
	}
	gateway = r.start("gate")
	r.ready()
	return r, gateway
}

// replicated reports whether all sessions of a node have standbys for all hops, and
// those have so many positions.
func replicated(t *testing.T, m *member, sessions, positions int) bool {
	t.Helper()
	all := m.Sessions(t.Context(), false).Sessions
	behind := func(s report.Session) bool {
		return len(s.Route) != len(hops) || slices.ContainsFunc(s.Standbys, func(n []string) bool { return len(n) == 0 }) || slices.Min(s.ReplicatedThrough) < positions
	}
	return len(all) >= sessions && !slices.ContainsFunc(all, behind)
}

// sum adds a metric over the daemons of a ring.
func (r *ring) sum(name string) (n float64) {
	r.t.Helper()
	for _, m := range r.all() {
		n += scrape(r.t, m)[name]
	}
	return n
}

// TestFailoverGoesOnFromCopies kills the host of each hop in turn, once its standbys
// have most of the sessions, and wants the sessions to go on from there.
func TestFailoverGoesOnFromCopies(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory")
	for hop := range hops {
		var v *member
		loaded := r.sum("kevlard_kv_positions_total kind=loaded")
		results := streams(t, gateway, 4, 250, func() {
			r.until("the standbys are close behind", func() bool { return replicated(t, gateway, 4, 40) })
			v = victim(t, r, gateway, hop)
			loaded -= scrape(t, v)["kevlard_kv_positions_total kind=loaded"]
			r.kill(v)
		})
		if n, causes := moved(results); n == 0 || !slices.Contains(causes, "reset") {
			t.Errorf("hop %d: %d failovers, causes %v, want reset", hop, n, causes)
		}
		if got := r.sum("kevlard_kv_positions_total kind=loaded") - loaded; got < 40 {
			t.Errorf("hop %d: %v positions were loaded from copies, want at least 40", hop, got)
		}
		r.run(v.cfg)
		r.ready()
	}
	r.idle()
	if n := r.sum("kevlard_kv_rejected_total reason=damaged"); n != 0 {
		t.Errorf("%v pieces were damaged", n)
	}
	r.until("no copies are kept of sessions that are over", func() bool { return r.sum("kevlard_kv_bytes kind=standby tier=ram") == 0 })
	if n := r.sum("kevlard_kv_bytes kind=buffer tier=ram"); n != 0 {
		t.Errorf("%v bytes of buffers are in use", n)
	}
}

// TestCopiesOverTCP kills the host of a hop whose KV went to its standby over TCP.
func TestCopiesOverTCP(t *testing.T) {
	t.Parallel()
	for _, bulk := range []string{"tls", "plain"} {
		t.Run(bulk, func(t *testing.T) {
			r, gateway := copied(t, bulk)
			for _, m := range gateway.Members().Nodes {
				if want := r.members[kevlard.NodeID(m.Name)].BulkAddr(); m.BulkAddr != want || want == "" {
					t.Errorf("node %s has the bulk address %q, want %q", m.Name, m.BulkAddr, want)
				}
				over := "tcp-" + bulk
				if m.Name == gateway.Members().Self {
					over = ""
				}
				if m.Transport != over {
					t.Errorf("KV goes to node %s over %q, want %q", m.Name, m.Transport, over)
				}
			}
			results := streams(t, gateway, 4, 250, func() {
				r.until("the standbys are close behind", func() bool { return replicated(t, gateway, 4, 40) })
				r.kill(victim(t, r, gateway, 1))
			})
			if n, _ := moved(results); n == 0 {
				t.Error("nobody failed over")
			}
			if n := r.sum("kevlard_kv_positions_total kind=loaded"); n < 40 {
				t.Errorf("%v positions were loaded from copies, want at least 40", n)
			}
			if n := r.sum("kevlard_replicated_bytes_total transport=tcp-" + bulk); n == 0 {
				t.Error("no bytes are counted")
			}
		})
	}
}

// TestDamagedAndLostRows (K48) flips a bit of each fifth piece on the way and loses each
// seventh: the copies must be right and grow all the same.
func TestDamagedAndLostRows(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory")
	var pieces atomic.Int64
	r.fabric.setMeddle(func(_, _ kevlard.NodeID, _, body []byte) bool {
		n := int(pieces.Add(1))
		if n%5 == 0 {
			body[n%len(body)] ^= 1 << (n % 8)
		}
		return n%7 != 0
	})
	results := streams(t, gateway, 4, 250, func() {
		r.until("the standbys have something", func() bool { return replicated(t, gateway, 4, 40) })
		r.kill(victim(t, r, gateway, 1))
	})
	if n, _ := moved(results); n == 0 {
		t.Error("nobody failed over")
	}
	if n := r.sum("kevlard_kv_rejected_total reason=damaged"); n == 0 {
		t.Error("no piece counts as damaged")
	}
	if n := r.sum("kevlard_kv_positions_total kind=loaded"); n == 0 {
		t.Error("no position was loaded from a copy")
	}
	if !slices.ContainsFunc(r.all(), func(m *member) bool {
		return slices.ContainsFunc(m.Events(time.Time{}), func(e report.Event) bool { return e.Type == "kv-rejected" && e.Cause == "damaged" && e.Peer != "" })
	}) {
		t.Error("no event names a damaged piece and its sender")
	}
}

// TestKilledEngineKeepsCopies kills an engine whose node has the copies of others:
// those outlive it.
func TestKilledEngineKeepsCopies(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory")
	j := newJob(1, 600)
	var once sync.Once
	var held float64
	res := generate(t.Context(), gateway, j, func(n int) {
		if n < 100 {
			return
		}
		once.Do(func() {
			r.until("the standbys are close behind", func() bool { return replicated(t, gateway, 1, 90) })
			s := gateway.Sessions(t.Context(), false).Sessions[0]
			standby := r.members[kevlard.NodeID(s.Standbys[1][0])]
			starts := standby.launcher.Starts()
			standby.launcher.Engine(key(hops[1])).Kill()
			r.until("the engine is back", func() bool { return standby.launcher.Starts() > starts && standby.Status().Ready })
			held = scrape(t, standby)["kevlard_kv_bytes kind=standby tier=ram"]
			r.kill(r.members[kevlard.NodeID(s.Route[1])])
			r.until("the session runs on its standby", func() bool {
				now := gateway.Sessions(t.Context(), false).Sessions
				return len(now) == 0 || now[0].Term > s.Term && now[0].Route[1] == s.Standbys[1][0]
			})
		})
	})
	exact(t, j, res)
	if held == 0 {
		t.Error("the copies died with the engine")
	}
	// A machine that is too slow for a living node may silence one more.
	if f := res.end.Failovers; len(f) == 0 || f[0].From == 0 || slices.ContainsFunc(f[1:], func(f kevlard.Failover) bool { return f.Cause != "silence" }) {
		t.Errorf("failovers %+v, want that of the kill, which takes the copy", f)
	}
}

// TestNothingOfCopiesIsLeft starts and stops rings that keep copies, under load.
func TestNothingOfCopiesIsLeft(t *testing.T) {
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("file descriptors can't be counted here: %v", err)
		}
		return len(entries)
	}
	cycle := func() {
		r, gateway := copied(t, "tls")
		s, err := gateway.Generate(t.Context(), "s", newJob(1, 900).req)
		if err != nil {
			t.Fatal(err)
		}
		r.until("something is copied", func() bool { return replicated(t, gateway, 1, 10) })
		r.stopAll() // wants no error: buffers and memory that are not given back are one
		r.members = nil
		_ = s.Close() // the daemon is gone already
	}
	const once = 5 // what libraries start or open once and keep
	goroutines, fds := runtime.NumGoroutine(), files()
	for range 2 {
		cycle()
	}
	newRing(t).until("goroutines and files are as before", func() bool {
		return runtime.NumGoroutine() <= goroutines+once && files() <= fds+once
	})
}
