package model

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Shape is a model's hyperparameters, all of which its results depend on except
// Context.
type Shape struct {
	Layers  int `json:"layers"`
	Dim     int `json:"dim"`      // values in a hidden row
	Heads   int `json:"heads"`    // query heads
	KVHeads int `json:"kv_heads"` // key and value heads; Heads is a multiple
	HeadDim int `json:"head_dim"` // values in a head of queries, keys and values
	FFN     int `json:"ffn"`      // width of the feed-forward part
	Vocab   int `json:"vocab"`    // tokens
	Context int `json:"context"`  // positions the model was trained for
	// Tied says that the head computes with the embedding's matrix.
	Tied bool `json:"tied"`

	RopeDim   int     `json:"rope_dim"`   // leading values of a head that are rotated
	RopeBase  float32 `json:"rope_base"`  // theta
	RopeScale float32 `json:"rope_scale"` // positions are divided by it; 1 is no scaling
	RopeNeoX  bool    `json:"rope_neox"`  // value i of a head turns with i+RopeDim/2, else with its neighbour
	Eps       float32 `json:"eps"`        // of the RMS norms

	QKVBias bool `json:"qkv_bias"` // queries, keys and values have biases
	QKNorm  bool `json:"qk_norm"`  // heads of queries and keys are normed before they are rotated
}

// KVRowBytes returns the bytes of one position's keys and values in one layer
// with elem bytes per value.
func (s Shape) KVRowBytes(elem int) int { return 2 * s.KVHeads * s.HeadDim * elem }

// readShape reads and checks the hyperparameters of f.
func readShape(f *File) (Shape, error) {
	a, err := archNamed(f.Arch())
	if err != nil {
		return Shape{}, err
	}
	if n, ok := f.Uint("split.count"); ok && n > 1 {
		return Shape{}, fmt.Errorf("the file is one of %d parts of a split model: merge them into one file first", n)
	}
	r := hparamReader{f: f, arch: f.Arch()}
	s := Shape{
		Layers:  r.count("block_count", maxLayers),
		Dim:     r.count("embedding_length", maxWidth),
		Heads:   r.count("attention.head_count", maxWidth),
		FFN:     r.count("feed_forward_length", maxWidth),
		Context: r.count("context_length", math.MaxInt32),
		Eps:     r.float("attention.layer_norm_rms_epsilon", 0),

		RopeNeoX: a.neoX, QKVBias: a.qkvBias, QKNorm: a.qkNorm,
	}
	if r.err != nil {
		return Shape{}, r.err
	}
	s.KVHeads = r.countOr("attention.head_count_kv", maxWidth, s.Heads)
	s.HeadDim = r.countOr("attention.key_length", maxWidth, s.Dim/s.Heads)
	s.RopeDim = r.countOr("rope.dimension_count", maxWidth, s.HeadDim)
	s.RopeBase = r.float("rope.freq_base", 10000)
	s.RopeScale = r.ropeScale()
	r.refuse(s)
	if r.err != nil {
		return Shape{}, r.err
	}
	return s, s.check()
}

// check reports combinations that cannot be computed.
func (s Shape) check() error {
	switch {
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("%d heads are no multiple of %d key/value heads", s.Heads, s.KVHeads)
	case s.HeadDim == 0:
		return fmt.Errorf("dim %d is less than %d heads", s.Dim, s.Heads)
	case s.RopeDim > s.HeadDim || s.RopeDim%2 != 0:
		return fmt.Errorf("rope dimension count %d: want an even number up to the head's %d", s.RopeDim, s.HeadDim)
	case s.Heads*s.HeadDim > maxWidth:
		return fmt.Errorf("%d heads of %d values are over the limit of %d", s.Heads, s.HeadDim, maxWidth)
	case !positive(s.Eps) || !positive(s.RopeBase) || !positive(s.RopeScale):
		return fmt.Errorf("eps %g, rope base %g and rope scale %g: want positive numbers", s.Eps, s.RopeBase, s.RopeScale)
	}
	return nil
}

func positive(x float32) bool { return x > 0 && !math.IsInf(float64(x), 0) }

// hparamReader reads "<arch>.<name>" keys and keeps the first error.
type hparamReader struct {
	f    *File
	arch string
	err  error
}

func (r *hparamReader) fail(name, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("key %q: %w", r.arch+"."+name, fmt.Errorf(format, args...))
	}
}

// count reads a required integer from 1 to most.
func (r *hparamReader) count(name string, most int) int {
	key := r.arch + "." + name
	n, ok := r.f.Uint(key)
	kind := r.f.Kind(key)
	switch {
	case kind == "":
		r.fail(name, "missing")
	case !ok && strings.HasPrefix(kind, "array"):
		r.fail(name, "is an %s: layers that differ are not supported", kind)
	case !ok:
		r.fail(name, "is a %s: want a non-negative integer", kind)
	case n == 0 || n > uint64(most):
		r.fail(name, "%d: want 1 to %d", n, most)
	default:
		return int(n)
	}
	return 1
}

func (r *hparamReader) countOr(name string, most, otherwise int) int {
	if r.f.Kind(r.arch+"."+name) == "" {
		return otherwise
	}
	return r.count(name, most)
}

// float reads a number; it is required if otherwise is 0.
func (r *hparamReader) float(name string, otherwise float32) float32 {
	x, ok := r.f.Float(r.arch + "." + name)
	kind := r.f.Kind(r.arch + "." + name)
	switch {
	case ok:
		return float32(x)
	case kind != "":
		r.fail(name, "is a %s: want a floating-point number", kind)
	case otherwise == 0:
		r.fail(name, "missing")
	}
	return otherwise
}

// ropeScale reads linear position scaling under its present and its old key.
func (r *hparamReader) ropeScale() float32 {
	kind, _ := r.f.String(r.arch + ".rope.scaling.type")
	if kind != "" && kind != "none" && kind != "linear" {
		r.fail("rope.scaling.type", "%q: want none or linear", kind)
	}
	if kind == "none" {
		return 1
	}
	// Writers put 0 for "no scaling".
	return cmp.Or(r.float("rope.scaling.factor", 1), r.float("rope.scale_linear", 1), 1)
}

// refuse rejects variants of the architecture that would compute something else.
func (r *hparamReader) refuse(s Shape) {
	if n, ok := r.f.Uint(r.arch + ".attention.sliding_window"); ok && n > 0 && n < uint64(s.Context) {
		r.fail("attention.sliding_window", "%d is less than the context of %d: windows are not supported", n, s.Context)
	}
	for _, name := range []string{"attention.temperature_scale", "attention.scale", "logit_scale"} {
		if x, ok := r.f.Float(r.arch + "." + name); ok && x != 0 {
			r.fail(name, "%g: not supported", x)
		}
	}
	// Mistral 3 scales queries by position where it extends its context.
	if n, ok := r.f.Uint(r.arch + ".rope.scaling.original_context_length"); ok && n > 0 && r.arch == "mistral3" {
		r.fail("rope.scaling.original_context_length", "%d: extended contexts of mistral3 are not supported", n)
	}
	if r.arch == "qwen3" && s.RopeDim != s.HeadDim {
		r.fail("rope.dimension_count", "%d: want all %d values of a head", s.RopeDim, s.HeadDim)
	}
	if n, ok := r.f.Uint(r.arch + ".expert_count"); ok && n > 0 {
		r.fail("expert_count", "%d: mixtures of experts are not supported", n)
	}
	if n := r.countOr("attention.value_length", maxWidth, s.HeadDim); n != s.HeadDim {
		r.fail("attention.value_length", "%d: values wider or narrower than keys (%d) are not supported", n, s.HeadDim)
	}
}

// checkTokens compares the tokenizer's vocabulary with the embedding.
func checkTokens(f *File, vocab int) error {
	n := f.Len("tokenizer.ggml.tokens")
	if n < 0 {
		return errors.New(`key "tokenizer.ggml.tokens": missing: the file has no tokenizer`)
	}
	if n != vocab {
		return fmt.Errorf("the tokenizer has %d tokens but token_embd.weight has %d rows", n, vocab)
	}
	if v, ok := f.Uint(f.Arch() + ".vocab_size"); ok && v != uint64(vocab) {
		return fmt.Errorf("key %q is %d but token_embd.weight has %d rows", f.Arch()+".vocab_size", v, vocab)
	}
	return nil
}
