package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

// TestZones puts 40 ms between two zones of four hosts that take the stages of the plan.
// Nobody is taken for dead, each zone holds the model, and sessions stay inside the zone
// of their owner. Then the only holder of a stage in one zone dies: the streams go on in
// the other one, and their texts are what they would have been.
func TestZones(t *testing.T) {
	needLong(t, "three minutes")
	needRoot(t, "it makes network namespaces")
	lasts := splitLasts(t, 30*time.Second)
	const apart = 40 * time.Millisecond
	n := newSplitNet(t, splitLayout{hosts: 8, zones: []string{"east", "west"}, apart: apart})
	n.settled(t, time.Now().Add(settleWithin))
	began := time.Now()
	held := n.held(t)
	for _, zone := range []string{"east", "west"} {
		if lacks := n.lacking(held, zone); len(lacks) > 0 {
			t.Errorf("nobody in %s holds %v: %v", zone, lacks, held.stages)
		}
	}
	requests, want := n.unbroken(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var routes zoneRoutes
	var watching sync.WaitGroup
	watching.Go(func() { n.watch(ctx, func(x report.Session) { routes.saw(n, x) }) })
	log := &splitLog{t: t, codes: map[string]int{}}
	enough := make(chan struct{})
	time.AfterFunc(lasts, func() { close(enough) }) // how long nobody may look dead is what is tested
	var streaming sync.WaitGroup
	for _, node := range []int{1, 3, 6, 8} {
		streaming.Go(func() {
			for i := node; ; i++ {
				n.oneAnswer(ctx, log, node, requests[i%len(requests)], want[i%len(want)], nil)
				select {
				case <-enough:
					return
				default:
				}
			}
		})
	}
	streaming.Wait()
	inside, across := routes.counts()
	if inside == 0 || len(across) > 0 || len(log.codes) > 0 {
		t.Errorf("%d routes inside a zone, these across: %v; errors: %v", inside, across, log.codes)
	}
	t.Logf("%d answers in %v, %d routes inside a zone and %d across, round trips in ms %v",
		log.answers, time.Since(began).Round(time.Second), inside, len(across), n.roundTrips(t))
	n.noDeaths(t, began)

	// The owners are in the east, and hold other stages than the victim.
	victim := 4
	owners := slices.DeleteFunc([]int{1, 2, 3}, func(i int) bool { return slices.Equal(held.stages[i], held.stages[victim]) })
	if lacks := n.lacking(heldStages{stages: without(held.stages, victim)}, "east"); len(lacks) == 0 {
		t.Fatalf("host %d is not the only holder of its stages in the east: %v", victim, held.stages)
	}
	routes.reset()
	under := make(chan struct{}, 100)
	for k, node := range owners {
		streaming.Go(func() {
			seen := 0
			n.oneAnswer(ctx, log, node, requests[k%2], want[k%2], func() {
				if seen++; seen == 40 {
					under <- struct{}{}
				}
			})
		})
	}
	for range owners {
		select {
		case <-under:
		case <-time.After(streamWithin):
			t.Fatal("the streams do not get on")
		}
	}
	died := time.Now()
	n.nodes[victim-1].kill()
	streaming.Wait()
	if len(log.codes) > 0 {
		t.Errorf("clients saw %v", log.codes)
	}
	for _, node := range owners {
		across := 0
		for _, e := range n.nodes[node-1].events(t, died) {
			if e.Type == "recovered" {
				across++
				t.Logf("owner %d: %s, token %d, detected after %v ms, a route after %v more, the next token after %v more", node, e.Cause,
					e.Failover.AtToken, e.Failover.DetectMS, e.Failover.RerouteMS, e.Failover.RestoreMS)
			}
		}
		if across == 0 {
			t.Errorf("no stream of host %d went on after the death: it ended too soon", node)
		}
	}
	_, across = routes.counts()
	t.Logf("routes across zones: %v", across)
	if len(across) == 0 {
		t.Error("no session was seen on a route across the zones after the death")
	}

	// Another host of the zone takes the stage on, and routes are inside again.
	eventually(t, settleWithin, func() error {
		if lacks := n.lacking(n.held(t, victim), "east"); len(lacks) > 0 {
			return fmt.Errorf("nobody in the east holds %v", lacks)
		}
		return nil
	})
	t.Logf("the zone holds the model again %v after the death: %v", time.Since(died).Round(100*time.Millisecond), n.moves(t, died, victim))
	eventually(t, settleWithin, func() error {
		routes.reset()
		n.oneAnswer(ctx, log, owners[0], requests[0], want[0], nil)
		if inside, across := routes.counts(); inside == 0 || len(across) > 0 {
			return fmt.Errorf("%d routes inside the zone, across zones %v", inside, across)
		}
		return nil
	})
	n.noDeaths(t, began, victim)
	cancel()
	watching.Wait()
}

// zoneRoutes are routes of sessions, as their owners showed them.
type zoneRoutes struct {
	mu             sync.Mutex
	inside, across map[string]bool
}

func (r *zoneRoutes) saw(n *splitNet, x report.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == nil {
		r.inside, r.across = map[string]bool{}, map[string]bool{}
	}
	if len(x.Route) == 0 {
		return
	}
	route := fmt.Sprintf("%s owns %s term %d: %s", x.Owner, x.ID, x.Term, strings.Join(x.Route, " "))
	for _, at := range x.Route {
		if n.zoneOf(at) != n.zoneOf(x.Owner) {
			r.across[route] = true
			return
		}
	}
	r.inside[route] = true
}

func (r *zoneRoutes) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside, r.across = nil, nil
}

func (r *zoneRoutes) counts() (inside int, across []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inside), slices.Sorted(maps.Keys(r.across))
}

func (n *splitNet) zoneOf(name string) string {
	return n.zones[slices.IndexFunc(n.nodes, func(s *single) bool { return s.name == name })]
}

// oneAnswer gets one answer of a node, without an error.
func (n *splitNet) oneAnswer(ctx context.Context, log *splitLog, node int, request map[string]any, want answer, fresh func()) {
	r := &roamer{net: n, log: log, request: request, want: want, rng: rand.New(rand.NewPCG(uint64(node), 3)), fresh: fresh}
	r.visit(ctx, node, -1)
	log.mu.Lock()
	defer log.mu.Unlock()
	if !r.done || !r.got.same(want) {
		log.t.Errorf("host %d: got\n%+v\nwant\n%+v\nseen %v", node, r.got, want, r.seen)
		return
	}
	log.answers++
}

// lacking lists the ranges of the model that no host of a zone holds.
func (n *splitNet) lacking(h heldStages, zone string) (out [][2]int) {
	for _, stages := range h.stages {
		for _, r := range stages {
			held := false
			for i, others := range h.stages {
				held = held || n.zones[i-1] == zone && slices.Contains(others, r)
			}
			if !held && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out
}

func without(stages map[int][][2]int, host int) map[int][][2]int {
	out := map[int][][2]int{}
	for i, s := range stages {
		if i != host {
			out[i] = s
		}
	}
	return out
}

// noDeaths holds that no host took another for dead, but those that are.
func (n *splitNet) noDeaths(t *testing.T, since time.Time, dead ...int) {
	t.Helper()
	for i, s := range n.nodes {
		if slices.Contains(dead, i+1) {
			continue
		}
		for _, e := range s.events(t, since) {
			if e.Type == "node-dead" && !slices.ContainsFunc(dead, func(d int) bool { return n.nodes[d-1].name == e.Peer }) {
				t.Errorf("%s took %s for dead: %+v", s.name, e.Peer, e)
			}
		}
	}
}

// roundTrips are what host 1 measured to a host of each zone.
func (n *splitNet) roundTrips(t *testing.T) (out []float64) {
	t.Helper()
	m, err := api.NewClient(n.nodes[0].socket()).Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range m.Nodes {
		if x.Name == n.nodes[1].name || x.Name == n.nodes[len(n.nodes)-1].name {
			out = append(out, x.RTTMS)
		}
	}
	return out
}
