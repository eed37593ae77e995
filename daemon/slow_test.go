package daemon_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// TestThrottledDevice slows the engine of one of two equal hosts down under load (K68): its
// node says so in an event, every node names it in its status and shows by how much, and it
// is taken back when it is over. No stage moves.
func TestThrottledDevice(t *testing.T) {
	r := newRing(t)
	r.step = 5 * time.Millisecond
	r.timing.Stage.Tempo = 300 * time.Millisecond
	g := r.start("g")
	all := span(0, toyModel.Layers)
	r.start("a", all)
	b := r.start("b", all)
	r.ready()
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i := range 4 {
		load.Go(func() {
			for n := i; ctx.Err() == nil; n += 4 {
				j := newJob(n%20, 40)
				j.name = kevlard.SessionID(fmt.Sprintf("load-%d", n))
				exact(t, j, generate(t.Context(), g, j, nil))
			}
		})
	}
	defer load.Wait()
	defer stop()
	said := func(what string) bool {
		return slices.ContainsFunc(b.Events(time.Time{}), func(e report.Event) bool { return e.Type == what })
	}
	named := func(m *member) bool {
		return slices.ContainsFunc(m.Status().Problems, func(p report.Problem) bool { return strings.HasPrefix(p.What, "node b takes ") })
	}
	engine := b.launcher.Engine(key(all))
	engine.Throttle(60 * time.Millisecond)
	r.until("b says that its stage is slow", func() bool { return said("stage-slow") })
	r.until("others name it", func() bool { return named(g) && named(b) })
	for _, n := range g.Members().Nodes {
		for _, s := range n.Stages {
			if s.RowMS <= 0 || (s.Slowness >= 2) != (n.Name == "b") {
				t.Errorf("node %s shows %+v", n.Name, s)
			}
		}
	}
	values := scrape(t, b)
	labels := " hi=8 lo=0 model=" + toyTopology().ID.String()
	if slow, busy := values["kevlard_stage_slowness"+labels], values["kevlard_stage_busy_seconds_total"+labels]; slow < 2 || busy <= 0 {
		t.Errorf("slowness %v, busy for %v s", slow, busy)
	}
	engine.Throttle(5 * time.Millisecond)
	r.until("b says that it is over", func() bool { return said("stage-even") })
	r.until("nobody names it any more", func() bool { return !named(g) && !named(b) })
	if n := b.launcher.Starts(); n != 1 {
		t.Errorf("%d engines were started at b: its stage moved", n)
	}
}
