package bench

import (
	"fmt"
	"math"
	"testing"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// halfOf is one half with a stream that took so many milliseconds, over node-1 and
// node-2 of four.
func halfOf(took int, sender, receiver, owner float64, routes ...[]string) halfResult {
	if routes == nil {
		routes = [][]string{{"node-1", "node-2"}}
	}
	return halfResult{
		streams: []load.Result{result("s", took/2, took)},
		routes:  routes,
		spent: map[string]spent{
			"node-1": {daemon: sender, engine: 10}, "node-2": {engine: 10},
			"node-3": {daemon: receiver}, "node-4": {},
			"gateway-1": {daemon: owner}, "gateway-2": {daemon: 0.5},
		},
	}
}

func TestWeigh(t *testing.T) {
	other := []string{"node-3", "node-4"}
	halves := [2][]halfResult{
		off: {halfOf(100, 1, 1, 1), halfOf(200, 1, 1, 1), halfOf(100, 1, 1, 1)},
		on:  {halfOf(103, 2, 1.5, 1.25), halfOf(202, 2, 1.5, 1.25), halfOf(100, 5, 1, 1, []string{"node-1", "node-2"}, other)},
	}
	r := OverheadReport{Stages: 2, PromptTokens: 9}
	weigh(&r, halves, 3e9)
	if !near(r.LatencyMeanPct, 100*(math.Cbrt(1.03*1.01)-1)) || r.LatencyCI95[0] >= r.LatencyMeanPct || r.LatencyCI95[1] <= r.LatencyMeanPct {
		t.Errorf("latency %v %v", r.LatencyMeanPct, r.LatencyCI95)
	}
	if !near(r.LatencyP99Pct, 1) || r.Off.LatencyMS.P99 != 200 || !near(r.TokenP99Pct, 1) {
		t.Errorf("p99 %v %v, halves %+v %+v", r.LatencyP99Pct, r.TokenP99Pct, r.Off, r.On)
	}
	if r.BytesPerToken != 1e8 { // 3 streams of 9 tokens and 1 that is an input
		t.Errorf("%v bytes a token", r.BytesPerToken)
	}
	// Two pairs of 1 + 0.5 + 0.25 s more, one of 4 s: 7.5 s for 3 GB.
	if !near(r.CPUSecondsGB, 2.5) {
		t.Errorf("%v s a GB", r.CPUSecondsGB)
	}
	// The third pair changed its route; 2 GB are left to the other two.
	for name, c := range map[string]struct{ got, want RoleCPU }{
		"sender":   {r.CPU.Sender, RoleCPU{SecondsGB: 1, Daemon: 1}},
		"receiver": {r.CPU.Receiver, RoleCPU{SecondsGB: 0.5, Daemon: 0.5}},
		"owner":    {r.CPU.Owner, RoleCPU{SecondsGB: 0.25, Daemon: 0.25}},
	} {
		if !near(c.got.SecondsGB, c.want.SecondsGB) || !near(c.got.Daemon, c.want.Daemon) || c.got.Engine != 0 {
			t.Errorf("%s %+v, want %+v", name, c.got, c.want)
		}
	}
	if r.CPU.Pairs != 2 {
		t.Errorf("%d pairs kept their route", r.CPU.Pairs)
	}
}

func TestByRoleWantsOneRoute(t *testing.T) {
	if _, ok := byRole(halfResult{}, 2); ok {
		t.Error("no route passed")
	}
	if _, ok := byRole(halfOf(1, 1, 1, 1, []string{"node-1"}), 2); ok {
		t.Error("a route of too few stages passed")
	}
}

func TestSince(t *testing.T) {
	got := since(map[string]spent{"a": {1, 2}}, map[string]spent{"a": {4, 8}, "b": {1, 1}})
	if fmt.Sprint(got) != "map[a:{3 6} b:{1 1}]" {
		t.Errorf("got %v", got)
	}
}
