package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// TestZones chooses among two pipelines in two zones, a then b and c then d.
func TestZones(t *testing.T) {
	stage := func(n kevlard.NodeID, lo int, zone string) topology.Candidate {
		return topology.Candidate{Node: n, Class: "x", Zone: zone, Layers: kevlard.Layers{Lo: lo, Hi: lo + 2}}
	}
	hop := func(n kevlard.NodeID, lo int) kevlard.Hop {
		return kevlard.Hop{Node: n, Layers: kevlard.Layers{Lo: lo, Hi: lo + 2}}
	}
	type numbers map[kevlard.NodeID]int
	const far = 80 * time.Millisecond
	for _, tc := range []struct {
		name   string
		home   string
		rtt    map[string]time.Duration
		held   numbers
		load   numbers
		broken kevlard.NodeID
		before kevlard.Route
		copies []kevlard.Hop
		want   []kevlard.NodeID
	}{
		{name: "inside the owner's zone", home: "west", rtt: map[string]time.Duration{"east": far}, want: []kevlard.NodeID{"c", "d"}},
		{name: "the nearer zone of an owner in neither", rtt: map[string]time.Duration{"east": far, "west": time.Millisecond}, want: []kevlard.NodeID{"c", "d"}},
		{name: "zones at no distance: the owner's among equals", home: "west", want: []kevlard.NodeID{"c", "d"}},
		{name: "zones at no distance: the least loaded", home: "west", load: numbers{"c": 1, "d": 1}, want: []kevlard.NodeID{"a", "b"}},
		{name: "a few sessions more are better than the way", home: "west", rtt: map[string]time.Duration{"east": far}, load: numbers{"c": 8, "d": 8}, want: []kevlard.NodeID{"c", "d"}},
		{name: "many are not", home: "west", rtt: map[string]time.Duration{"east": far}, load: numbers{"c": 20, "d": 20}, want: []kevlard.NodeID{"a", "b"}},
		{name: "no mixture for one session", home: "west", rtt: map[string]time.Duration{"east": far}, load: numbers{"c": 5}, want: []kevlard.NodeID{"c", "d"}},
		{name: "what the zone lacks comes from the other", home: "west", rtt: map[string]time.Duration{"east": far}, broken: "d", want: []kevlard.NodeID{"a", "b"}},
		{
			name: "a session stays where it can", home: "west", rtt: map[string]time.Duration{"east": far}, broken: "d",
			before: kevlard.Route{hop("c", 0), hop("d", 2)}, copies: []kevlard.Hop{hop("a", 0), hop("b", 2)}, want: []kevlard.NodeID{"c", "b"},
		},
		{name: "a prefix that is far is not followed", home: "west", rtt: map[string]time.Duration{"east": far}, held: numbers{"a": 100, "b": 100}, want: []kevlard.NodeID{"c", "d"}},
		{name: "one at no distance is", home: "west", rtt: map[string]time.Duration{"east": time.Millisecond}, held: numbers{"a": 100, "b": 100}, want: []kevlard.NodeID{"a", "b"}},
		{name: "idle nodes that are far overload nobody", home: "west", rtt: map[string]time.Duration{"east": far}, held: numbers{"c": 100, "d": 100}, load: numbers{"c": 9, "d": 9}, want: []kevlard.NodeID{"c", "d"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := problem{
				Ask: Ask{
					Layers: 4, Worth: 32, Zone: tc.home, Previous: tc.before, Copies: tc.copies,
					Usable: func(n kevlard.NodeID) bool { return n != tc.broken },
				},
				Candidates: []topology.Candidate{stage("a", 0, "east"), stage("c", 0, "west"), stage("b", 2, "east"), stage("d", 2, "west")},
				load:       tc.load, rtt: tc.rtt,
			}
			for _, c := range a.Candidates {
				a.Held = append(a.Held, Held{kevlard.Hop{Node: c.Node, Layers: c.Layers}, tc.held[c.Node]})
			}
			var got []kevlard.NodeID
			for _, h := range a.route().Route {
				got = append(got, h.Node)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("route over %v, want %v", got, tc.want)
			}
		})
	}
}
