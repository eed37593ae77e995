package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// State is what the ring thinks of a node.
type State string

// The states of a node. Only alive nodes are routed to.
const (
	Alive    State = "alive"
	Suspect  State = "suspect"
	Dead     State = "dead"
	Left     State = "left"
	Draining State = "draining"
)

// StageState is how far a node is with a stage of its own.
type StageState string

// The states of a stage.
const (
	Cold    StageState = "cold"    // assigned, engine not running (also while restarts back off)
	Loading StageState = "loading" // weights are being read
	Ready   StageState = "ready"
	Stalled StageState = "stalled" // the engine is overdue; not routed to
	// Retiring is a stage that is being given up: its sessions go elsewhere.
	Retiring StageState = "draining"
)

// Model is what nodes say of a model they hold stages of.
type Model struct {
	ID      kevlard.Digest `cbor:"1,keyasint"`
	Name    string         `cbor:"2,keyasint"`
	Layers  int            `cbor:"3,keyasint"`
	Context int            `cbor:"4,keyasint"` // the most positions of a session
	Vocab   int            `cbor:"5,keyasint"`
	Width   int            `cbor:"6,keyasint,omitempty"` // bytes of one row of hidden state; 0: not said
}

// Stage is one stage resident on a node, as advertised in its record.
type Stage struct {
	Key      kevlard.StageKey `cbor:"1,keyasint"`
	State    StageState       `cbor:"2,keyasint"`
	Class    string           `cbor:"3,keyasint,omitempty"` // numerics class, once ready
	Progress int              `cbor:"4,keyasint,omitempty"` // of loading, in permille
	Reason   string           `cbor:"5,keyasint,omitempty"` // why it is not ready
	Cells    int              `cbor:"6,keyasint,omitempty"` // KV positions the engine can hold
	// Releasing says that the stage is about to be given up: it still serves, and others
	// no longer count on it.
	Releasing bool `cbor:"7,keyasint,omitempty"`
	Device    int  `cbor:"8,keyasint,omitempty"` // index in the node's devices
	// Waits says that its load waits for something that shows no progress and will end, such
	// as the fetch of another stage.
	Waits bool `cbor:"9,keyasint,omitempty"`
	// RowMicros is how long the engine takes for one row, in microseconds, measured over a
	// minute; 0: not known.
	RowMicros int `cbor:"10,keyasint,omitempty"`
	// Agrees and Disputes name other holders of these layers that the node has audited, by
	// what they compute from the same input: as it does, or otherwise.
	Agrees   []kevlard.NodeID `cbor:"11,keyasint,omitempty"`
	Disputes []kevlard.NodeID `cbor:"12,keyasint,omitempty"`
}

// Node is one member as the view's owner sees it. Its record (Models, Stages,
// Capacity) may be older than its State.
type Node struct {
	ID    kevlard.NodeID
	Boot  kevlard.BootID
	Role  string // host or gateway
	Zone  string // a failure domain, from the configuration; "" is unknown
	State State
	// Avoid says that the node wants work to go elsewhere while it can: a device of it is not
	// well.
	Avoid  bool
	Models []Model
	Stages []Stage
	// Heard is when the view's owner last heard from the node itself; 0: it does not know.
	// A Reformer looks at it where the node is dead, plans never do.
	Heard kevlard.Instant
	Capacity
}

// View is one node's immutable snapshot of the ring, sorted by node ID. Views of
// two nodes are never assumed equal.
type View struct {
	Nodes []Node
	// Absent is how many nodes were members lately and are not among Nodes, because this
	// one was started anew since and has not met them.
	Absent int
}

// Node returns the node with the given ID.
func (v View) Node(id kevlard.NodeID) (Node, bool) {
	i, ok := slices.BinarySearchFunc(v.Nodes, id, func(n Node, id kevlard.NodeID) int { return cmp.Compare(n.ID, id) })
	if !ok {
		return Node{}, false
	}
	return v.Nodes[i], true
}

// Model finds a model by its ID among all nodes.
func (v View) Model(id kevlard.Digest) (Model, bool) {
	for _, n := range v.Nodes {
		for _, m := range n.Models {
			if m.ID == id {
				return m, true
			}
		}
	}
	return Model{}, false
}

// Models lists every model that some node holds, by name and ID. Of the names that nodes
// have for one (it may be that of a file) the first counts.
func (v View) Models() []Model {
	var out []Model
	for _, n := range v.Nodes {
		out = append(out, n.Models...)
	}
	slices.SortFunc(out, func(a, b Model) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	seen := map[kevlard.Digest]bool{}
	return slices.DeleteFunc(out, func(m Model) bool {
		again := seen[m.ID]
		seen[m.ID] = true
		return again
	})
}

// valid reports whether an advertised range makes sense: a record is only as good
// as its author.
func valid(l kevlard.Layers) bool { return 0 <= l.Lo && l.Lo < l.Hi }

// Candidate is a stage that could be a hop of a route.
type Candidate struct {
	Node   kevlard.NodeID
	Boot   kevlard.BootID
	Layers kevlard.Layers
	Class  string
	Zone   string
}

// Candidates lists the ready stages of a model on live nodes, in the order of
// layers, then node ID.
func (v View) Candidates(model kevlard.Digest) []Candidate {
	var out []Candidate
	for _, n := range v.Nodes {
		if n.State != Alive && n.State != Suspect {
			continue
		}
		for _, s := range n.Stages {
			if s.Key.Model == model && s.State == Ready && valid(s.Key.Layers) {
				out = append(out, Candidate{n.ID, n.Boot, s.Key.Layers, s.Class, n.Zone})
			}
		}
	}
	slices.SortFunc(out, func(a, b Candidate) int {
		return cmp.Or(a.Layers.Compare(b.Layers), cmp.Compare(a.Node, b.Node))
	})
	return out
}
