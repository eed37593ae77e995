package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
	"pgregory.net/rapid"
)

// drawAsk makes a small problem; its candidates are sorted as topology sorts them.
func drawAsk(t *rapid.T) problem {
	layers := rapid.IntRange(1, 5).Draw(t, "layers")
	nodes := []kevlard.NodeID{"a", "b", "c", "d"}
	loads := map[kevlard.NodeID]int{}
	broken := map[kevlard.NodeID]bool{}
	for _, n := range nodes {
		loads[n] = rapid.IntRange(0, 3).Draw(t, "load")
		broken[n] = rapid.IntRange(0, 5).Draw(t, "broken") == 0
	}
	a := problem{Ask: Ask{Layers: layers, Usable: func(n kevlard.NodeID) bool { return !broken[n] }}, load: loads}
	zone := drawZones(t, &a, nodes)
	for range rapid.IntRange(0, 3).Draw(t, "edges") {
		a.Avoid = append(a.Avoid, Edge{rapid.SampledFrom(nodes).Draw(t, "from"), rapid.SampledFrom(nodes).Draw(t, "to")})
	}
	for range rapid.IntRange(0, 9).Draw(t, "candidates") {
		lo := rapid.IntRange(0, layers-1).Draw(t, "lo")
		n := rapid.SampledFrom(nodes).Draw(t, "node")
		a.Candidates = append(a.Candidates, topology.Candidate{
			Node: n, Class: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "class"), Zone: zone[n],
			Layers: kevlard.Layers{Lo: lo, Hi: rapid.IntRange(lo+1, layers).Draw(t, "hi")},
		})
	}
	a.Candidates = sortCandidates(a.Candidates)
	a.Class = rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "wanted")
	for _, c := range a.Candidates {
		if rapid.IntRange(0, 3).Draw(t, "previous") == 0 {
			a.Previous = append(a.Previous, kevlard.Hop{Node: c.Node, Layers: c.Layers})
		}
	}
	return a
}

// drawZones gives nodes zones and the owner one, which may be none of theirs.
func drawZones(t *rapid.T, a *problem, nodes []kevlard.NodeID) map[kevlard.NodeID]string {
	zones := rapid.SampledFrom([][]string{{""}, {"east", "west"}, {"", "east", "west"}}).Draw(t, "zones")
	a.Zone = rapid.SampledFrom([]string{"", "east", "west"}).Draw(t, "home")
	a.rtt = map[string]time.Duration{}
	for _, z := range zones {
		if z != a.Zone {
			a.rtt[z] = time.Duration(rapid.IntRange(0, 100).Draw(t, "rtt")) * time.Millisecond
		}
	}
	out := map[kevlard.NodeID]string{}
	for _, n := range nodes {
		out[n] = rapid.SampledFrom(zones).Draw(t, "zone")
	}
	return out
}

// brute finds the cheapest route by trying all of them.
func brute(a problem) (best int64) {
	best = -1
	var walk func(at int, cost int64, class string, last kevlard.NodeID, zone string)
	walk = func(at int, cost int64, class string, last kevlard.NodeID, zone string) {
		if at == a.Layers {
			if cost += a.link(zone, a.Zone); best < 0 || cost < best {
				best = cost
			}
			return
		}
		for _, c := range a.Candidates {
			switch {
			case c.Layers.Lo != at || !a.Usable(c.Node):
			case a.Class != "" && c.Class != a.Class, class != "" && c.Class != class:
			case last != "" && slices.Contains(a.Avoid, Edge{last, c.Node}):
			default:
				walk(c.Layers.Hi, cost+costOf(a, c)+a.link(zone, c.Zone), c.Class, c.Node, c.Zone)
			}
		}
	}
	walk(0, 0, "", "", a.Zone)
	return best
}

// costOf is the rule of the package comment's constants, written out once more.
func costOf(a problem, c topology.Candidate) int64 {
	cost := int64(100 + 1000*a.load[c.Node])
	if len(a.Previous) > 0 && !slices.Contains(a.Previous, kevlard.Hop{Node: c.Node, Layers: c.Layers}) {
		cost += 10000
	}
	return cost
}

func TestRouteAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAsk(t)
		want := brute(a)
		got := a.route()
		if (got.Route == nil) != (want < 0) {
			t.Fatalf("route %v, the best costs %d", got.Route, want)
		}
		if got.Route == nil {
			return
		}
		if !got.Route.Covers(a.Layers) {
			t.Fatalf("route %v does not cover %d layers", got.Route, a.Layers)
		}
		cost, zone := int64(0), a.Zone
		for i, h := range got.Route {
			at := slices.IndexFunc(a.Candidates, func(c topology.Candidate) bool {
				return c.Node == h.Node && c.Layers == h.Layers && c.Class == got.Class
			})
			if at < 0 || !a.Usable(h.Node) || i > 0 && slices.Contains(a.Avoid, Edge{got.Route[i-1].Node, h.Node}) {
				t.Fatalf("route %v of class %q takes hop %d, which it may not", got.Route, got.Class, i)
			}
			cost += costOf(a, a.Candidates[at]) + a.link(zone, a.Candidates[at].Zone)
			zone = a.Candidates[at].Zone
		}
		cost += a.link(zone, a.Zone)
		if cost != want {
			t.Fatalf("route %v costs %d, the best costs %d", got.Route, cost, want)
		}
	})
}

// TestRouteAgainstPlain: one router and one table, whose loads change, choose what an
// algorithm chooses that looks at every candidate.
func TestRouteAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []kevlard.NodeID
		for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
			nodes = append(nodes, kevlard.NodeID(fmt.Sprintf("n%02d", i)))
		}
		a := problem{load: map[kevlard.NodeID]int{}}
		a.Layers = rapid.IntRange(1, 5).Draw(t, "layers")
		most := rapid.SampledFrom([]int{0, 2, 30}).Draw(t, "most")
		zone := drawZones(t, &a, nodes)
		for _, n := range nodes {
			a.load[n] = rapid.IntRange(0, most).Draw(t, "load")
			for range rapid.IntRange(0, 3).Draw(t, "stages") {
				lo := rapid.SampledFrom([]int{0, 0, a.Layers / 2, a.Layers - 1}).Draw(t, "lo")
				hi := rapid.SampledFrom([]int{lo + 1, (lo + a.Layers + 1) / 2, a.Layers, a.Layers, a.Layers + 1}).Draw(t, "hi")
				a.Candidates = append(a.Candidates, topology.Candidate{Node: n, Zone: zone[n], Class: rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(t, "class"), Layers: kevlard.Layers{Lo: lo, Hi: max(hi, lo+1)}})
			}
		}
		a.Candidates = sortCandidates(a.Candidates)
		a.Table = a.table()
		var r Router
		some := func() []kevlard.Hop {
			var out []kevlard.Hop
			for _, c := range a.Candidates {
				if rapid.IntRange(0, 5).Draw(t, "known") == 0 {
					out = append(out, kevlard.Hop{Node: c.Node, Layers: c.Layers})
				}
			}
			if rapid.IntRange(0, 5).Draw(t, "gone") == 0 { // of a stage that is not there
				out = append(out, kevlard.Hop{Node: rapid.SampledFrom(nodes).Draw(t, "node"), Layers: kevlard.Layers{Lo: 0, Hi: 9}}, kevlard.Hop{Node: "gone", Layers: kevlard.Layers{Lo: 0, Hi: 1}})
			}
			return out
		}
		for range rapid.IntRange(1, 4).Draw(t, "decisions") {
			broken := map[kevlard.NodeID]bool{}
			for _, n := range nodes {
				if rapid.IntRange(0, 2).Draw(t, "moves") == 0 {
					a.load[n] = rapid.IntRange(0, most).Draw(t, "load")
					a.Table.Set(n, a.load[n])
				}
				broken[n] = rapid.IntRange(0, 5).Draw(t, "broken") == 0
			}
			a.Usable = func(n kevlard.NodeID) bool { return !broken[n] }
			a.Class = rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "wanted")
			a.Worth = rapid.IntRange(0, 40).Draw(t, "worth")
			a.Previous, a.Copies, a.Held, a.Avoid = nil, nil, nil, nil
			if rapid.Bool().Draw(t, "again") {
				a.Previous, a.Copies = some(), some()
			}
			for _, h := range some() {
				a.Held = append(a.Held, Held{h, rapid.IntRange(0, 64).Draw(t, "held")})
			}
			for range rapid.IntRange(0, 6).Draw(t, "edges") {
				a.Avoid = append(a.Avoid, Edge{rapid.SampledFrom(nodes).Draw(t, "from"), rapid.SampledFrom(nodes).Draw(t, "to")})
			}
			want, got := a.plain(), r.Route(a.Ask)
			if !slices.Equal(got.Route, want.Route) || got.Class != want.Class || !slices.Equal(got.Missing, want.Missing) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
	})
}

// TestMissingNamesTheGap checks what is said when there is no route: layers that
// no usable candidate of the class serves.
func TestMissingNamesTheGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAsk(t)
		got := a.route()
		if got.Route != nil {
			if got.Missing != nil {
				t.Fatalf("a route and missing layers %v", got.Missing)
			}
			return
		}
		missing := make([]bool, a.Layers)
		for i := range missing {
			missing[i] = true
		}
		for _, c := range a.Candidates {
			if a.Usable(c.Node) && (a.Class == "" || c.Class == a.Class) {
				for i := c.Layers.Lo; i < c.Layers.Hi; i++ {
					missing[i] = false
				}
			}
		}
		for _, m := range got.Missing {
			for i := m.Lo; i < m.Hi; i++ {
				if !missing[i] {
					t.Fatalf("layer %d is called missing in %v", i, got.Missing)
				}
				missing[i] = false
			}
		}
		if slices.Contains(missing, true) {
			t.Fatalf("missing %v leaves some out", got.Missing)
		}
	})
}

// TestRouteDependsOnNoOrder builds the same view in two orders: two nodes must
// choose alike.
func TestRouteDependsOnNoOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAsk(t)
		b := a
		b.Candidates = rapid.Permutation(a.Candidates).Draw(t, "order")
		byNode := topology.View{}
		model := kevlard.Digest{1}
		for _, c := range b.Candidates {
			i := slices.IndexFunc(byNode.Nodes, func(n topology.Node) bool { return n.ID == c.Node })
			if i < 0 {
				i = len(byNode.Nodes)
				byNode.Nodes = append(byNode.Nodes, topology.Node{ID: c.Node, State: topology.Alive})
			}
			n := &byNode.Nodes[i]
			n.Zone = c.Zone
			n.Stages = append(n.Stages, topology.Stage{Key: kevlard.StageKey{Model: model, Layers: c.Layers}, State: topology.Ready, Class: c.Class})
		}
		b.Candidates = byNode.Candidates(model)
		if x, y := a.route(), b.route(); !slices.Equal(x.Route, y.Route) || x.Class != y.Class {
			t.Fatalf("%v of %q, and in another order %v of %q", x.Route, x.Class, y.Route, y.Class)
		}
	})
}

func TestTiesGoToTheLesserNode(t *testing.T) {
	half := func(n kevlard.NodeID, lo int) topology.Candidate {
		return topology.Candidate{Node: n, Class: "x", Layers: kevlard.Layers{Lo: lo, Hi: lo + 2}}
	}
	a := problem{
		Ask:        Ask{Layers: 4, Usable: func(kevlard.NodeID) bool { return true }},
		Candidates: []topology.Candidate{half("a", 0), half("b", 0), half("a", 2), half("b", 2), half("c", 2)},
		load:       map[kevlard.NodeID]int{"a": 1, "b": 1, "c": 1},
	}
	for _, tc := range []struct {
		name       string
		change     func(*problem)
		first, end kevlard.NodeID
	}{
		{"all equal", func(*problem) {}, "a", "a"},
		{"the edge is blamed", func(a *problem) {
			a.Avoid = []Edge{{"a", "a"}}
		}, "a", "b"},
		{"a is loaded", func(a *problem) {
			a.load = map[kevlard.NodeID]int{"a": 3}
		}, "b", "b"},
		{"stays where it was", func(a *problem) {
			a.Previous = kevlard.Route{{Node: "b", Layers: kevlard.Layers{Lo: 0, Hi: 2}}, {Node: "c", Layers: kevlard.Layers{Lo: 2, Hi: 4}}}
		}, "b", "c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := a
			tc.change(&a)
			got := a.route()
			if len(got.Route) != 2 || got.Route[0].Node != tc.first || got.Route[1].Node != tc.end {
				t.Errorf("route %v, want %s then %s", got.Route, tc.first, tc.end)
			}
		})
	}
}
