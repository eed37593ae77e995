package engine

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// tensor is one named array of a model: where its bytes are and what they mean.
type tensor struct {
	name  string
	kind  model.TensorType
	shape []uint64
	size  int64
	data  io.ReaderAt // size bytes from 0
}

// weights is what a stage needs to know of a model file, or of the synthetic
// model of the self-test.
type weights struct {
	model.Shape
	tensors map[string]tensor
}

const ropeFactors = "rope_freqs.weight"

// stage returns the tensors that layers l compute with, under the names the
// backend will know them by: a tied head alone gets a copy of the embedding as
// its output; a stage with both ends shares one tensor.
func (w *weights) stage(l kevlard.Layers) ([]tensor, error) {
	if l.Lo < 0 || l.Hi > w.Layers || l.Lo >= l.Hi {
		return nil, fmt.Errorf("layers %v: the model has layers [0,%d)", l, w.Layers)
	}
	var out []tensor
	var missing []string
	take := func(name, as string) {
		t, ok := w.tensors[name]
		if !ok {
			missing = append(missing, name)
			return
		}
		t.name = as
		out = append(out, t)
	}
	if l.Lo == 0 {
		take("token_embd.weight", "token_embd.weight")
	}
	known := w.LayerTensors()
	for i := l.Lo; i < l.Hi; i++ {
		for _, t := range known {
			name := "blk." + strconv.Itoa(i) + "." + t.Name
			take(name, name)
		}
		if n := w.count("blk." + strconv.Itoa(i) + "."); n > len(known) {
			return nil, fmt.Errorf("layer %d has %d tensors, of which %d are known: the result would be wrong", i, n, len(known))
		}
	}
	if _, ok := w.tensors[ropeFactors]; ok {
		take(ropeFactors, ropeFactors)
	}
	if l.Hi == w.Layers {
		take("output_norm.weight", "output_norm.weight")
		if _, untied := w.tensors["output.weight"]; untied {
			take("output.weight", "output.weight")
		} else if l.Lo > 0 {
			take("token_embd.weight", "output.weight")
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("missing tensors: %s", strings.Join(missing, ", "))
	}
	return out, nil
}

// untie gives the head of a stage that has both ends a copy of a tied embedding: the
// embedding stays in the host's memory, and the head is to be where the layers are.
func (w *weights) untie(tensors []tensor, l kevlard.Layers) []tensor {
	if _, untied := w.tensors["output.weight"]; untied || l.Lo != 0 || l.Hi != w.Layers {
		return tensors
	}
	head := w.tensors["token_embd.weight"]
	head.name = "output.weight"
	return append(slices.Clone(tensors), head)
}

// checkShapes compares every tensor that a stage may use with the
// hyperparameters: ggml aborts the process on a mismatch.
func (w *weights) checkShapes() error {
	if min(w.Layers, w.Dim, w.Heads, w.KVHeads, w.HeadDim, w.FFN, w.Vocab, w.RopeDim) < 1 || w.Heads%w.KVHeads != 0 || w.RopeDim > w.HeadDim || w.RopeDim%2 != 0 {
		return fmt.Errorf("shape %+v: want whole groups of heads and an even rope dimension inside the head", w.Shape)
	}
	dim, vocab := uint64(w.Dim), uint64(w.Vocab)
	want := map[string][]uint64{
		"token_embd.weight": {dim, vocab}, "output.weight": {dim, vocab}, "output_norm.weight": {dim}, ropeFactors: {uint64(w.RopeDim / 2)},
	}
	for i := range w.Layers {
		for _, t := range w.LayerTensors() {
			want["blk."+strconv.Itoa(i)+"."+t.Name] = t.Shape
		}
	}
	for name, t := range w.tensors {
		shape, known := want[name]
		if !known {
			continue
		}
		if !slices.Equal(t.shape, shape) || len(shape) == 1 && t.kind != model.F32 {
			return fmt.Errorf("tensor %s has shape %v and type %v: want %v (vectors as f32)", name, t.shape, t.kind, shape)
		}
		if !t.kind.Supported() {
			return fmt.Errorf("tensor %s has type %v, which the engine does not compute", name, t.kind)
		}
		if b := t.kind.BlockValues(); t.shape[0]%b != 0 {
			return fmt.Errorf("tensor %s has rows of %d values: want a multiple of %d for type %v", name, t.shape[0], b, t.kind)
		}
	}
	return nil
}

func (w *weights) count(prefix string) (n int) {
	for name := range w.tensors {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}
