package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine/sampler"
	"github.com/kevlard/kevlard/model"
)

// Errors a caller tells apart. Any other error of a stage means that its
// arguments were refused and nothing was computed.
var (
	// ErrUnsupported: this build has no engine (cgo was off).
	ErrUnsupported = errors.New("this build has no engine: rebuild with CGO_ENABLED=1")
	// ErrBatch: the batch breaks a rule; nothing was computed and the stage lives on.
	ErrBatch = errors.New("batch refused")
	// ErrRange: cells outside the pool, or a buffer of the wrong size; the stage lives on.
	ErrRange = errors.New("cell range refused")
	// ErrCompute: ggml failed; the stage is dead.
	ErrCompute = errors.New("compute failed")
	// ErrNoMemory: an allocation failed; the stage is dead.
	ErrNoMemory = errors.New("out of memory")
	// ErrDead: the stage or its process failed or was closed before.
	ErrDead = errors.New("the stage is dead")
)

// Spec says which stage to open. All fields are required; NewSpec takes the first
// three from a manifest.
type Spec struct {
	Path    string         `cbor:"1,keyasint"` // GGUF file, local
	Stamp   model.Stamp    `cbor:"6,keyasint"` // the state of the file that was verified; another is refused
	Shape   model.Shape    `cbor:"7,keyasint"` // the model's hyperparameters
	Layers  kevlard.Layers `cbor:"2,keyasint"` // the layers resident here, inside [0, layers of the model)
	Threads int            `cbor:"3,keyasint"` // compute threads; more than free cores is ruinous (ggml spins at barriers)
	Cells   int            `cbor:"4,keyasint"` // KV pool: positions per layer
	MaxRows int            `cbor:"5,keyasint"` // most rows in one batch; sizes the compute buffers and the shared areas
	// Numerics is what an earlier stage on the same device measured, or zero. It saves
	// the self-test, half of what it costs to start for a small model, if the same program
	// measured it with as many threads.
	Numerics Numerics `cbor:"8,keyasint"`
	// Device is the family of the device, CPU if empty, and Library the path of its backend
	// library. A GPU must be the only one that the process sees (CUDA_VISIBLE_DEVICES).
	Device  string `cbor:"9,keyasint,omitempty"`
	Library string `cbor:"10,keyasint,omitempty"`
}

// Numerics is what the self-test of a program found.
type Numerics struct {
	Program   model.Stamp `cbor:"1,keyasint"` // the state of the program's file; zero: not known
	Threads   int         `cbor:"2,keyasint"`
	Class     string      `cbor:"3,keyasint"` // as in Info
	Invariant bool        `cbor:"4,keyasint"` // as in Info
	Library   model.Stamp `cbor:"5,keyasint"` // the state of the backend library's file; zero: the CPU
}

// program is the state of the file that this process runs, also if it was replaced since.
func program() model.Stamp {
	s, err := model.StampOf("/proc/self/exe")
	if err != nil { // no Linux: nothing is ever known
		return model.Stamp{}
	}
	return s
}

// libraryStamp is the state of a backend library, zero for none.
func libraryStamp(path string) (model.Stamp, error) {
	if path == "" {
		return model.Stamp{}, nil
	}
	return model.StampOf(path)
}

// holds reports whether n was measured by this program and library with so many threads.
func (n Numerics) holds(threads int, library model.Stamp) bool {
	return n.Class != "" && n.Threads == threads && n.Library == library && n.Program != model.Stamp{} && n.Program == program()
}

// Validate reports every field that is out of its range.
func (s Spec) Validate() error {
	var errs []error
	if s.Path == "" {
		errs = append(errs, errors.New("path is empty: name a GGUF file"))
	}
	if s.Layers.Lo < 0 || s.Layers.Hi <= s.Layers.Lo {
		errs = append(errs, fmt.Errorf("layers %v: want 0 <= lo < hi", s.Layers))
	}
	check := func(name string, v, limit int) {
		if v < 1 || v > limit {
			errs = append(errs, fmt.Errorf("%s is %d: want 1 to %d", name, v, limit))
		}
	}
	check("threads", s.Threads, maxThreads)
	check("cells", s.Cells, maxCells)
	check("max rows", s.MaxRows, maxRows)
	if (Family(s.Device) == CPU) != (s.Library == "") {
		errs = append(errs, fmt.Errorf("device %q with library %q: want a library for all but the CPU", s.Device, s.Library))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("engine spec: %w", err)
	}
	return nil
}

// Part is a run of consecutive rows of one session. Row i (0 <= i < N) stands at
// position Pos+i, sits in cell Cell+Pos+i and attends to cells
// [Cell, Cell+Pos+i]. Who owns which cells is the caller's business: extents of
// the parts of one batch must not overlap in written cells.
type Part struct {
	Cell     int              `cbor:"1,keyasint"`           // first cell of the session's extent
	Pos      int              `cbor:"2,keyasint"`           // position of the first row
	N        int              `cbor:"3,keyasint"`           // number of rows, at least 1
	Tokens   []kevlard.Token  `cbor:"4,keyasint,omitempty"` // stages with lo == 0 only: N ids
	Sample   bool             `cbor:"5,keyasint,omitempty"` // last stage: choose the token after the part's last row
	Sampling kevlard.Sampling `cbor:"6,keyasint"`           // used with Sample
	// History is the session's tokens up to and including the last row: all or the
	// latest, at least sampler.Recent of them when Sampling penalizes, else none.
	History []kevlard.Token `cbor:"7,keyasint,omitempty"`
}

// Batch is the work of one Forward. Prefill chunks and decodes of many sessions
// mix freely: results are bitwise the same as one by one.
type Batch struct {
	Parts []Part
	Rows  []byte // stages with lo > 0: sum(N) x Dim little-endian float32; else nil
}

// Result is what one Forward computed.
type Result struct {
	Rows    []byte            // sum(N) x Dim little-endian float32, the caller's to keep; nil at the last stage
	Sampled []kevlard.Sampled // one per Sample part, in the order of the parts
	Compute time.Duration     // time inside the stage
}

// Info describes a loaded stage.
type Info struct {
	Dim         int            `cbor:"1,keyasint"`  // floats per row
	Vocab       int            `cbor:"2,keyasint"`  // tokens are [0,Vocab)
	ModelLayers int            `cbor:"3,keyasint"`  // layers of the whole model
	Layers      kevlard.Layers `cbor:"4,keyasint"`  // layers resident here
	Cells       int            `cbor:"5,keyasint"`  // KV pool, positions per layer
	CellBytes   int            `cbor:"6,keyasint"`  // bytes of one cell as Read and Write carry it, all resident layers
	WeightBytes int64          `cbor:"7,keyasint"`  // bytes of the resident units
	KVBytes     int64          `cbor:"8,keyasint"`  // bytes of the KV pool in device memory
	MaxRows     int            `cbor:"9,keyasint"`  // most rows of one batch
	KVFormat    string         `cbor:"10,keyasint"` // how Read and Write carry a cell
	Class       string         `cbor:"11,keyasint"` // numerics class, 32 hex digits: equal classes compute equal bits
	Invariant   bool           `cbor:"12,keyasint"` // bits do not depend on batch company, chunking or cells
	Device      string         `cbor:"13,keyasint"` // as Spec.Device: "cpu", "cuda"
	Numerics    Numerics       `cbor:"14,keyasint"` // for the Spec of the next stage
}

// First reports whether the stage takes tokens, not rows.
func (i Info) First() bool { return i.Layers.Lo == 0 }

// Last reports whether the stage gives tokens, not rows.
func (i Info) Last() bool { return i.Layers.Hi == i.ModelLayers }

// check refuses a batch that ggml would abort on, or that reads outside the
// pool. It returns the number of rows.
func (i Info) check(b Batch) (int, error) {
	if len(b.Parts) == 0 {
		return 0, fmt.Errorf("%w: it has no parts", ErrBatch)
	}
	rows := 0
	for k, p := range b.Parts {
		bad := func(format string, args ...any) (int, error) {
			return 0, fmt.Errorf("%w: part %d: %s", ErrBatch, k, fmt.Sprintf(format, args...))
		}
		// Each summand is bounded before it is added, so nothing overflows.
		if p.N < 1 || p.N > i.MaxRows || p.Cell < 0 || p.Cell > i.Cells || p.Pos < 0 || p.Pos > i.Cells {
			return bad("n %d, cell %d, pos %d: want 1 to %d rows inside %d cells", p.N, p.Cell, p.Pos, i.MaxRows, i.Cells)
		}
		if end := p.Cell + p.Pos + p.N; end > i.Cells {
			return bad("it ends at cell %d of %d", end, i.Cells)
		}
		if rows += p.N; rows > i.MaxRows {
			return bad("the batch passes %d rows", i.MaxRows)
		}
		if !i.First() && len(p.Tokens) != 0 {
			return bad("%d tokens, but the stage starts at layer %d: send rows", len(p.Tokens), i.Layers.Lo)
		}
		if i.First() && len(p.Tokens) != p.N {
			return bad("%d tokens for %d rows", len(p.Tokens), p.N)
		}
		for _, t := range p.Tokens {
			if t < 0 || int(t) >= i.Vocab {
				return bad("token %d: want 0 to %d", t, i.Vocab-1)
			}
		}
		if p.Sample && !i.Last() {
			return bad("it asks for a token of layers %v, which are not the last", i.Layers)
		}
		if p.Sample {
			if err := i.checkSampling(p); err != nil {
				return bad("%v", err)
			}
		}
	}
	want := 0
	if !i.First() {
		want = rows * i.Dim * 4
	}
	if len(b.Rows) != want {
		return 0, fmt.Errorf("%w: %d row bytes, want %d (%d rows of %d float32)", ErrBatch, len(b.Rows), want, rows, i.Dim)
	}
	return rows, nil
}

// checkSampling refuses what the sampler would fail at, or silently ignore.
func (i Info) checkSampling(p Part) error {
	if err := p.Sampling.Check(); err != nil {
		return err
	}
	if want := min(p.Pos+p.N, sampler.Window); p.Sampling.Penalizes() && len(p.History) < want {
		return fmt.Errorf("sampling: penalties with a history of %d tokens: want the latest %d", len(p.History), want)
	}
	for _, b := range p.Sampling.Bias {
		if int(b.Token) >= i.Vocab {
			return fmt.Errorf("sampling: logit_bias for token %d: want 0 to %d", b.Token, i.Vocab-1)
		}
	}
	banned := make(map[kevlard.Token]bool, len(p.Sampling.Ban))
	for _, t := range p.Sampling.Ban {
		if int(t) >= i.Vocab {
			return fmt.Errorf("sampling: ban of token %d: want 0 to %d", t, i.Vocab-1)
		}
		banned[t] = true
	}
	if len(banned) >= i.Vocab {
		return fmt.Errorf("sampling: ban of all %d tokens: want one left", i.Vocab)
	}
	return nil
}

// checkCells refuses a run of cells outside the pool, or a buffer of another size
// than the run (buf < 0: there is none).
func (i Info) checkCells(cell, n, buf int) error {
	if cell < 0 || n < 0 || cell > i.Cells || n > i.Cells-cell {
		return fmt.Errorf("%w: [%d,%d+%d) of %d cells", ErrRange, cell, cell, n, i.Cells)
	}
	if i.CellBytes > 0 && n > math.MaxInt/i.CellBytes {
		return fmt.Errorf("%w: %d cells overflow", ErrRange, n)
	}
	if buf >= 0 && buf != n*i.CellBytes {
		return fmt.Errorf("%w: %d bytes for %d cells of %d bytes", ErrRange, buf, n, i.CellBytes)
	}
	return nil
}
