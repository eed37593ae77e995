package scheduler

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Table keeps the candidates of a model in the order in which routes want them, so that
// a decision looks at few of them. Not safe for concurrent use.
type Table struct {
	nodes map[kevlard.NodeID]int // index in places
	// places are, for each node, its load and where it stands.
	places []place
	rows   []row // by layers, then class
}

// place is one node.
type place struct {
	node kevlard.NodeID
	load int
	rows []int
}

// row is the candidates of equal layers and class, by load, then node: all that tells
// them apart, unless something is known of them for the session at hand.
type row struct {
	layers kevlard.Layers
	class  string
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
	find := func(c topology.Candidate) (int, bool) {
		return slices.BinarySearchFunc(t.rows, c, func(r row, c topology.Candidate) int {
			return cmp.Or(r.layers.Compare(c.Layers), cmp.Compare(r.class, c.Class))
		})
	}
	for _, c := range candidates {
		if i, ok := find(c); !ok {
			t.rows = slices.Insert(t.rows, i, row{layers: c.Layers, class: c.Class})
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
