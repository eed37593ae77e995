//go:build cgo

package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/ollama/ollama/ml"
	_ "github.com/ollama/ollama/ml/backend" // registers ggml

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine/sampler"
)

// computeMu lets one graph run at a time in this process: all ml.Backends of a
// process share one CPU backend with one work buffer, and two graphs at once give
// silently wrong results. It is also held while a backend is made.
var computeMu sync.Mutex

// layer holds the weights of one resident layer.
type layer struct {
	attnNorm, q, k, v, o, ffnNorm, gate, up, down ml.Tensor

	// Nil where the model has none.
	qBias, kBias, vBias ml.Tensor
	qNorm, kNorm        ml.Tensor // of each head
	factors             ml.Tensor // of rope
}

// Stage is a contiguous run of layers of one model, resident in this process,
// with its pool of KV cells. Forward calls exclude one another; Read, Write and
// Copy may run beside a Forward as long as the cells differ from those of its
// batch.
type Stage struct {
	info    Info
	w       *weights
	dev     device
	flash   bool // attention is one operation of the device
	backend ml.Backend
	copier  copier
	embd    ml.Tensor // first stage
	outNorm ml.Tensor // last stage
	output  ml.Tensor // last stage
	layers  []layer
	kvctx   ml.Context
	keys    []ml.Tensor // per layer [kvHeads*headDim, cells] float32
	values  []ml.Tensor

	forward sync.Mutex      // held through a Forward
	mask    []byte          // reused by Forward; guarded by forward
	sampler sampler.Sampler // guarded by forward

	mu   sync.Mutex
	dead error // why the stage can't be used any more; guarded by mu
}

// Open loads the layers of spec into memory. progress, when not nil, is told the
// bytes loaded so far and in all. The numerics class is measured on the way, unless
// spec.Numerics tells it.
func Open(spec Spec, progress func(done, total int64)) (*Stage, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	w, file, err := openWeights(spec)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lib, err := libraryStamp(spec.Library)
	if err != nil {
		return nil, fmt.Errorf("backend library: %w", err)
	}
	computeMu.Lock()
	dev, err := openDevice(spec)
	computeMu.Unlock()
	if err != nil {
		return nil, err
	}
	n := spec.Numerics
	if !n.holds(spec.Threads, lib) {
		n = Numerics{Program: program(), Threads: spec.Threads, Library: lib}
		if n.Class, n.Invariant, err = selfTest(spec.Threads, dev); err != nil {
			return nil, fmt.Errorf("engine self-test: %w", err)
		}
	}
	s, err := open(w, spec, dev, progress)
	if err != nil {
		return nil, fmt.Errorf("open layers %v of %s: %w", spec.Layers, spec.Path, err)
	}
	s.info.Class, s.info.Invariant, s.info.Numerics = n.Class, n.Invariant, n
	return s, nil
}

// open builds a stage of w: ggml allocates by a skeleton file that has the
// tensors' names, types and shapes but no data; then the bytes are streamed in.
// The library's own loader would map the whole file's tensors.
func open(w *weights, spec Spec, dev device, progress func(done, total int64)) (s *Stage, err error) {
	tensors, err := w.stage(spec.Layers)
	if err != nil {
		return nil, err
	}
	s = &Stage{w: w, dev: dev, info: Info{
		Dim: w.Dim, Vocab: w.Vocab, ModelLayers: w.Layers, Layers: spec.Layers,
		Cells: spec.Cells, MaxRows: spec.MaxRows, Device: dev.family, KVFormat: kvFormat,
		CellBytes: spec.Layers.Len() * 2 * w.KVHeads * w.HeadDim * 4,
	}}
	defer func() {
		if err != nil {
			s.free()
			s = nil
		}
	}()
	defer recoverTo(&err)
	computeMu.Lock()
	defer computeMu.Unlock()
	if dev.onGPU() {
		tensors = w.untie(tensors, spec.Layers)
	}
	if err := s.allocate(tensors, spec); err != nil {
		return s, err
	}
	if err := s.rehearse(); err != nil { // before the weights are read, which can take minutes
		return s, err
	}
	load := func() error { return s.load(tensors, progress) }
	if totalBytes(tensors) <= hastyLoad {
		return s, load()
	}
	return s, idly(load)
}

// recoverTo turns a panic of the library into err. Panics of ours keep their
// text in it.
func recoverTo(err *error) {
	switch p := recover().(type) {
	case nil:
	case ml.ErrNoMem:
		*err = fmt.Errorf("%w: ggml could not allocate: grant fewer cells or layers", ErrNoMemory)
	default:
		*err = fmt.Errorf("%w: %v", ErrCompute, p)
	}
}

// Info describes the stage.
func (s *Stage) Info() Info { return s.info }

// Forward runs the batch. After an error that is ErrCompute or ErrNoMemory the
// stage is dead.
func (s *Stage) Forward(b Batch) (Result, error) {
	s.forward.Lock()
	defer s.forward.Unlock()
	start := time.Now()
	n, err := s.info.check(b)
	if err != nil {
		return Result{}, err
	}
	rows, logits, err := s.compute(b, n)
	if err != nil {
		return Result{}, err
	}
	res := Result{Rows: rows}
	for _, p := range b.Parts {
		if !p.Sample {
			continue
		}
		token, err := s.sampler.Sample(logits[:s.info.Vocab], p.History, p.Sampling, p.Pos+p.N)
		if err != nil {
			return Result{}, s.fail(fmt.Errorf("%w: sample at position %d: %w", ErrCompute, p.Pos+p.N, err))
		}
		chosen := kevlard.Sampled{Token: token}
		if p.Sampling.Logprobs {
			chosen.Logprobs = sampler.Logprobs(logits[:s.info.Vocab], token, p.Sampling.TopLogprobs)
		}
		res.Sampled = append(res.Sampled, chosen)
		logits = logits[s.info.Vocab:]
	}
	res.Compute = time.Since(start)
	return res, nil
}

// compute runs the batch of n rows as graphs of at most graphParts parts. It
// returns the hidden rows, or at the last stage the logits of the Sample parts.
func (s *Stage) compute(b Batch, n int) (rows []byte, logits []float32, err error) {
	computeMu.Lock()
	defer computeMu.Unlock()
	if err := s.alive(); err != nil {
		return nil, nil, err
	}
	in := b.Rows
	for lo := 0; lo < len(b.Parts); lo += graphParts {
		parts := b.Parts[lo:min(lo+graphParts, len(b.Parts))]
		var mine []byte
		if in != nil {
			k := 0
			for _, p := range parts {
				k += p.N
			}
			mine, in = in[:k*s.info.Dim*4], in[k*s.info.Dim*4:]
		}
		r, l, err := s.run(parts, mine)
		if err != nil {
			return nil, nil, s.fail(err)
		}
		if len(parts) == len(b.Parts) {
			return r, l, nil
		}
		rows, logits = append(rows, r...), append(logits, l...)
	}
	return rows, logits, nil
}

func (s *Stage) alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return fmt.Errorf("%w: %w", ErrDead, s.dead)
	}
	return nil
}

// fail marks the stage dead and returns err.
func (s *Stage) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead == nil {
		s.dead = err
	}
	return err
}

// Close frees the stage's memory. No other call may be running or follow, except
// those that then say ErrDead.
func (s *Stage) Close() {
	computeMu.Lock()
	defer computeMu.Unlock()
	if s.alive() != nil && s.backend == nil {
		return
	}
	s.fail(fmt.Errorf("closed"))
	s.free()
}

func (s *Stage) free() {
	s.copier.free()
	s.copier = copier{}
	if s.kvctx != nil {
		s.kvctx.Close()
	}
	if s.backend != nil {
		s.backend.Close()
	}
	s.kvctx, s.backend, s.keys, s.values, s.layers = nil, nil, nil, nil, nil
}
