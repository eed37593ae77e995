package daemon_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// TestProcessGone kills daemons: the others show them as dead when their ports refuse
// connections, before gossip would have, in a ring of four, three and two. The same node
// is back in a new life.
func TestProcessGone(t *testing.T) {
	r := newRing(t)
	r.start("a", span(0, 8))
	for _, n := range []kevlard.NodeID{"b", "c", "d"} {
		r.start(n)
	}
	r.ready()
	var gone []*member
	for len(r.all()) > 1 {
		victim := r.all()[len(r.all())-1]
		r.kill(victim)
		gone = append(gone, victim)
		at := time.Now()
		for _, m := range r.all() {
			r.until("it is shown as dead", func() bool { return stateOf(m, victim.cfg.Name) == "dead" })
		}
		took := time.Since(at)
		found := 0
		r.until("somebody tells that it found so by itself", func() bool { // the event comes behind the view
			found = 0
			for _, m := range r.all() {
				found += len(slices.DeleteFunc(m.Events(time.Time{}), func(e report.Event) bool { return e.Type != "process-gone" || e.Peer != string(victim.cfg.Name) }))
			}
			return found > 0
		})
		t.Logf("all %d others showed it as dead after %v, %d of them by themselves", len(r.all()), took.Round(time.Millisecond), found)
	}
	for _, m := range gone {
		r.run(m.cfg)
	}
	r.ready()
}
