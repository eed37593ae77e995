package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Table keeps the candidates of a model in the order in which routes want them, so that
// a decision looks at few of them. Not safe for concurrent use.
type Table struct {
	nodes map[kevlard.NodeID]int // index in places
	// places are, for each node, its load and where it stands.
	places []place
	rows   []row    // by layers, then class, then zone
	zones  []string // of the candidates, sorted
	far    []int64  // by zone: the cost of a link to it from another one
}

// place is one node.
type place struct {
	node kevlard.NodeID
	load int
	rows []int
}

// row is the candidates of equal layers, class and zone, by load, then node: all that
// tells them apart, unless something is known of them for the session at hand.
type row struct {
	layers kevlard.Layers
	class  string
	zone   int
	at     []standing
}

// standing is one candidate of a row.
type standing struct {
	load  int
	node  kevlard.NodeID
	place int
}

func compareStanding(a, b standing) int {
	if a.load != b.load {
		return cmp.Compare(a.load, b.load)
	}
	return cmp.Compare(a.node, b.node)
}

// NewTable returns the table of ready stages that hold so many sessions.
func NewTable(candidates []topology.Candidate, load func(kevlard.NodeID) int) *Table {
	t := &Table{nodes: map[kevlard.NodeID]int{}}
	for _, c := range candidates {
		t.zones = append(t.zones, c.Zone)
	}
	slices.Sort(t.zones)
	t.zones = slices.Compact(t.zones)
	t.far = make([]int64, len(t.zones))
	find := func(c topology.Candidate) (int, bool) {
		zone := t.zone(c.Zone)
		return slices.BinarySearchFunc(t.rows, c, func(r row, c topology.Candidate) int {
			return cmp.Or(r.layers.Compare(c.Layers), cmp.Compare(r.class, c.Class), cmp.Compare(r.zone, zone))
		})
	}
	for _, c := range candidates {
		if i, ok := find(c); !ok {
			t.rows = slices.Insert(t.rows, i, row{layers: c.Layers, class: c.Class, zone: t.zone(c.Zone)})
		}
	}
	for _, c := range candidates {
		p, ok := t.nodes[c.Node]
		if !ok {
			p = len(t.places)
			t.nodes[c.Node] = p
			t.places = append(t.places, place{node: c.Node, load: load(c.Node)})
		}
		i, _ := find(c)
		if slices.Contains(t.places[p].rows, i) {
			continue // said twice
		}
		t.places[p].rows = append(t.places[p].rows, i)
		t.rows[i].at = append(t.rows[i].at, standing{t.places[p].load, c.Node, p})
	}
	for i := range t.rows {
		slices.SortFunc(t.rows[i].at, compareStanding)
	}
	return t
}

// Zones lists the zones of the candidates, sorted. Routes differ by them if there are two
// or more.
func (t *Table) Zones() []string { return t.zones }

// SetRTT notes the round trip from the owner of the sessions to a zone. Between two zones
// it is taken to be that of the farther one. Until it is known, links between zones cost
// little.
func (t *Table) SetRTT(zone string, rtt time.Duration) {
	if i := t.zone(zone); i >= 0 {
		t.far[i] = max(costZone, min(rtt, maxRTT).Microseconds()/2*costLink/1000)
	}
}

// zone is the index of a zone, -1 if no candidate is there.
func (t *Table) zone(name string) int {
	if i, ok := slices.BinarySearch(t.zones, name); ok {
		return i
	}
	return -1
}

// link is the cost of a link between zones.
func (t *Table) link(a, b int) int64 {
	switch {
	case a == b:
		return 0
	case a < 0:
		return max(costZone, t.far[b])
	case b < 0:
		return max(costZone, t.far[a])
	}
	return max(costZone, t.far[a], t.far[b])
}

// Set notes how many sessions a node holds now. Nodes without a candidate are ignored.
func (t *Table) Set(n kevlard.NodeID, load int) {
	i, ok := t.nodes[n]
	if !ok || t.places[i].load == load {
		return
	}
	p := &t.places[i]
	was, is := standing{p.load, n, i}, standing{load, n, i}
	p.load = load
	for _, r := range p.rows {
		at := t.rows[r].at
		from, _ := slices.BinarySearchFunc(at, was, compareStanding)
		to, _ := slices.BinarySearchFunc(at, is, compareStanding)
		if to > from {
			to-- // its old place goes
			copy(at[from:to], at[from+1:to+1])
		} else {
			copy(at[to+1:from+1], at[to:from])
		}
		at[to] = is
	}
}
