package engine

import (
	"fmt"
	"io"
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

// layerTensors are the tensors of one layer, by the name after "blk.N.".
var layerTensors = [...]string{
	"attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
	"ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
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
	known := len(layerTensors)
	for i := l.Lo; i < l.Hi; i++ {
		for _, n := range layerTensors {
			name := "blk." + strconv.Itoa(i) + "." + n
			take(name, name)
		}
		if n := w.count("blk." + strconv.Itoa(i) + "."); n > known {
			return nil, fmt.Errorf("layer %d has %d tensors, of which %d are known (%s): the result would be wrong", i, n, known, strings.Join(layerTensors[:], ", "))
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

// checkShapes compares every tensor that a stage may use with the
// hyperparameters: ggml aborts the process on a mismatch.
func (w *weights) checkShapes() error {
	if min(w.Layers, w.Dim, w.Heads, w.KVHeads, w.HeadDim, w.FFN, w.Vocab, w.RopeDim) < 1 || w.Heads%w.KVHeads != 0 || w.RopeDim > w.HeadDim || w.RopeDim%2 != 0 {
		return fmt.Errorf("shape %+v: want whole groups of heads and an even rope dimension inside the head", w.Shape)
	}
	q, kv := w.Heads*w.HeadDim, w.KVHeads*w.HeadDim
	want := map[string][]int{
		"token_embd.weight": {w.Dim, w.Vocab}, "output.weight": {w.Dim, w.Vocab}, "output_norm.weight": {w.Dim}, ropeFactors: {w.RopeDim / 2},
	}
	for i := range w.Layers {
		for j, shape := range [...][]int{{w.Dim}, {w.Dim, q}, {w.Dim, kv}, {w.Dim, kv}, {q, w.Dim}, {w.Dim}, {w.Dim, w.FFN}, {w.Dim, w.FFN}, {w.FFN, w.Dim}} {
			want["blk."+strconv.Itoa(i)+"."+layerTensors[j]] = shape
		}
	}
	for name, t := range w.tensors {
		shape, known := want[name]
		if !known {
			continue
		}
		ok := len(shape) == len(t.shape) && (len(shape) == 2 || t.kind == model.F32)
		for i := 0; ok && i < len(shape); i++ {
			ok = t.shape[i] == uint64(shape[i])
		}
		if !ok {
			return fmt.Errorf("tensor %s has shape %v and type %v: want %v (vectors as f32)", name, t.shape, t.kind, shape)
		}
		if !t.kind.Supported() {
			return fmt.Errorf("tensor %s has type %v, which the engine does not compute", name, t.kind)
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
