package scheduler

import (
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// TestAffinity chooses among two pipelines, a then b and c then d.
func TestAffinity(t *testing.T) {
	stage := func(n kevlard.NodeID, lo int) topology.Candidate {
		return topology.Candidate{Node: n, Class: "x", Layers: kevlard.Layers{Lo: lo, Hi: lo + 2}}
	}
	type numbers map[kevlard.NodeID]int
	for _, tc := range []struct {
		name   string
		held   numbers
		load   numbers
		broken kevlard.NodeID
		avoid  [2]kevlard.NodeID
		want   []kevlard.NodeID
	}{
		{name: "nobody has anything", want: []kevlard.NodeID{"a", "b"}},
		{name: "the least loaded", load: numbers{"a": 1, "b": 1}, want: []kevlard.NodeID{"c", "d"}},
		{name: "where the prefix is", held: numbers{"c": 100, "d": 100}, want: []kevlard.NodeID{"c", "d"}},
		{name: "the longer prefix", held: numbers{"a": 50, "b": 50, "c": 100, "d": 100}, want: []kevlard.NodeID{"c", "d"}},
		{name: "a route has what all its stages have", held: numbers{"a": 50, "b": 50, "c": 100, "d": 40}, want: []kevlard.NodeID{"a", "b"}},
		{name: "stages of several pipelines", held: numbers{"c": 100, "b": 100}, want: []kevlard.NodeID{"c", "b"}},
		{name: "equal prefixes: the least loaded", held: numbers{"a": 64, "b": 64, "c": 64, "d": 64}, load: numbers{"a": 2}, want: []kevlard.NodeID{"c", "b"}},
		{name: "under the threshold", held: numbers{"c": 64, "d": 64}, load: numbers{"c": 8, "d": 8}, want: []kevlard.NodeID{"c", "d"}},
		{name: "over the threshold", held: numbers{"c": 64, "d": 64}, load: numbers{"c": 9, "d": 9}, want: []kevlard.NodeID{"a", "b"}},
		{name: "all are busy", held: numbers{"c": 64, "d": 64}, load: numbers{"a": 40, "b": 40, "c": 80, "d": 80}, want: []kevlard.NodeID{"c", "d"}},
		{name: "not worth it", held: numbers{"c": 31, "d": 31}, load: numbers{"c": 1}, want: []kevlard.NodeID{"a", "b"}},
		{name: "an idle node that is down does not matter", held: numbers{"c": 64, "d": 64}, load: numbers{"c": 5, "d": 5}, broken: "a", want: []kevlard.NodeID{"c", "d"}},
		{name: "the holder is down", held: numbers{"c": 64, "d": 64}, broken: "c", want: []kevlard.NodeID{"a", "b"}},
		{name: "the link is blamed", held: numbers{"c": 64, "d": 64}, avoid: [2]kevlard.NodeID{"c", "d"}, want: []kevlard.NodeID{"a", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := problem{
				Ask:        Ask{Layers: 4, Worth: 32, Usable: func(n kevlard.NodeID) bool { return n != tc.broken }, Avoid: []Edge{{tc.avoid[0], tc.avoid[1]}}},
				Candidates: []topology.Candidate{stage("a", 0), stage("c", 0), stage("b", 2), stage("d", 2)},
				load:       tc.load,
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
