package stage

import "github.com/kevlard/kevlard"

// Batch is what a stage gives its engine at once: parts of different sessions,
// prefill chunks and decodes mixed.
type Batch struct {
	ID    uint64
	Parts []Part
}

// Part is the work of one session in a batch. Row i sits in KV cell
// Cell+Pos+i and attends to the cells from Cell to itself.
type Part struct {
	Cell     int // first cell of the session's extent
	Pos      kevlard.Pos
	Tokens   []kevlard.Token
	Rows     []byte // nil at a first stage
	Sample   bool
	Sampling kevlard.Sampling
	History  []kevlard.Token // all tokens up to and including the last of this part; only with Sample
}
