package topology

import "github.com/kevlard/kevlard"

// Capacity is what a node says about what it could hold: the planner's input, beside
// what it holds. All of it is optional in a record; a node that says nothing keeps the
// stages it has and is given none.
type Capacity struct {
	// Auto says that the node takes the stages that the plan gives it (assign = "auto").
	// Stages of other nodes are counted and never moved.
	Auto    bool      `cbor:"1,keyasint,omitempty"`
	Devices []Device  `cbor:"2,keyasint,omitempty"`
	Weights []Weights `cbor:"3,keyasint,omitempty"` // of the models that it knows
	Local   []Local   `cbor:"4,keyasint,omitempty"` // what it can read without asking a peer
	Serve   []Serve   `cbor:"5,keyasint,omitempty"` // the models it may hold; none named: all
	Failed  []Failed  `cbor:"6,keyasint,omitempty"` // loads that failed here and are not tried again for now
}

// Device is one GPU, or the CPU: a stage lives on one.
type Device struct {
	Budget int64 `cbor:"1,keyasint"`           // bytes for the weights and KV of all stages on it
	Speed  int   `cbor:"2,keyasint,omitempty"` // measured, in permille of any reference all nodes share; 0: unknown, 1000
}

// Local says which layers of a model a node can read from its own disk. A range that
// begins at layer 0 includes the embedding, one that ends at the last layer the head.
type Local struct {
	Model  kevlard.Digest   `cbor:"1,keyasint"`
	Layers []kevlard.Layers `cbor:"2,keyasint"`
}

// Serve names a model that a node may hold, and its share. Where nodes differ, the
// largest number of each counts for the ring; 0 leaves the default.
type Serve struct {
	Name     string `cbor:"1,keyasint"`
	Weight   int    `cbor:"2,keyasint,omitempty"` // share of the work against other models, 1 to 1000
	Stages   int    `cbor:"3,keyasint,omitempty"` // wanted stages of a pipeline
	Replicas int    `cbor:"4,keyasint,omitempty"` // wanted holders of each layer
}

// Failed is a load that a node gave up.
type Failed struct {
	Key    kevlard.StageKey `cbor:"1,keyasint"`
	Reason string           `cbor:"2,keyasint,omitempty"`
}

// Weights are the bytes of a model's units as an engine holds them.
type Weights struct {
	Model     kevlard.Digest `cbor:"1,keyasint"`
	Globals   int64          `cbor:"2,keyasint,omitempty"` // in every stage
	Embedding int64          `cbor:"3,keyasint,omitempty"` // in the first
	Head      int64          `cbor:"4,keyasint,omitempty"` // in the last
	Layers    []Run          `cbor:"5,keyasint"`           // in order
	KV        int64          `cbor:"6,keyasint,omitempty"` // room for KV that a stage must have for each layer
}

// Run is a number of layers of one size, next to each other.
type Run struct {
	Count int   `cbor:"1,keyasint"`
	Bytes int64 `cbor:"2,keyasint"`
}

// Check reports whether w makes sense for a model of n layers: counts add up and no
// sum of sizes overflows.
func (w Weights) Check(n int) bool {
	sane := func(b int64) bool { return 0 <= b && b <= maxUnit }
	if n < 1 || n > maxLayers || len(w.Layers) > n || !sane(w.Globals) || !sane(w.Embedding) || !sane(w.Head) || !sane(w.KV) {
		return false
	}
	for _, r := range w.Layers {
		if r.Count < 1 || r.Count > n || !sane(r.Bytes) || r.Bytes == 0 {
			return false
		}
		n -= r.Count
	}
	return n == 0
}

// Limits of what the planner computes with; what is beyond is left alone.
const (
	maxLayers  = 1024    // of a model: a larger one is not planned
	maxUnit    = 1 << 45 // bytes of a unit: weights that say more are not believed
	maxWeight  = 1000
	minSpeed   = 50 // permille
	maxSpeed   = 20_000
	maxDevices = 64      // of a node: the rest is not used
	maxCopies  = 64      // wanted holders of a range that configuration can ask for
	maxRounds  = 4       // of filling and balancing
	maxSteps   = 100_000 // looked at for one chain of moves; beyond, single moves have to do
)
