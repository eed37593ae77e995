package model

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// SynthSpec is the shape of a random-weight model.
type SynthSpec struct {
	Name    string // general.name; default "synth"
	Arch    string // default "llama"
	Layers  int
	Dim     int
	Heads   int
	KVHeads int // default Heads
	HeadDim int // values of a head; default Dim/Heads
	FFN     int
	Vocab   int // at least synthMinVocab
	Context int // default 2048
	// Type is the format of the matrices, any served one. Norms and biases are f32.
	Type TensorType
	// Seed determines every weight.
	Seed uint64
	// Tied leaves output.weight out, so that the head uses the embedding.
	Tied bool
	// RopeFactors adds rope_freqs.weight, as Llama 3.1 and later have it.
	RopeFactors bool
	RopeBase    float32 // default 10000
	RopeScale   float32 // positions are divided by it; default 1
}

// Preset returns the spec of this name, with type q8_0 and seed 0.
func Preset(name string) (SynthSpec, error) {
	s, ok := presets()[name]
	if !ok {
		return SynthSpec{}, fmt.Errorf("preset %q: want one of %q", name, PresetNames())
	}
	s.Name = name
	return s, nil
}

// PresetNames lists the presets.
func PresetNames() []string { return slices.Sorted(maps.Keys(presets())) }

func presets() map[string]SynthSpec {
	return map[string]SynthSpec{
		"110m": {Layers: 12, Dim: 768, Heads: 12, KVHeads: 4, FFN: 2048, Vocab: 16384, Type: Q8_0},
		"llama-1b": {
			Layers: 16, Dim: 2048, Heads: 32, KVHeads: 8, FFN: 8192, Vocab: 128256,
			Context: 131072, Type: Q8_0, Tied: true, RopeBase: 500000,
		},
		"llama-8b": {
			Layers: 32, Dim: 4096, Heads: 32, KVHeads: 8, FFN: 14336, Vocab: 128256,
			Context: 131072, Type: Q8_0, RopeBase: 500000,
		},
	}
}

func (s SynthSpec) withDefaults() SynthSpec {
	s.Name = cmp.Or(s.Name, "synth")
	s.Arch = cmp.Or(s.Arch, "llama")
	s.KVHeads = cmp.Or(s.KVHeads, s.Heads)
	s.Context = cmp.Or(s.Context, 2048)
	s.RopeBase = cmp.Or(s.RopeBase, 10000)
	s.RopeScale = cmp.Or(s.RopeScale, 1)
	if s.Heads > 0 {
		s.HeadDim = cmp.Or(s.HeadDim, s.Dim/s.Heads)
	}
	return s
}

// shape is what the finished file is read as.
func (s SynthSpec) shape() Shape {
	a := archs()[s.Arch]
	return Shape{
		Layers: s.Layers, Dim: s.Dim, Heads: s.Heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, FFN: s.FFN,
		Vocab: s.Vocab, Context: s.Context, Tied: s.Tied, RopeDim: s.HeadDim, RopeBase: s.RopeBase,
		RopeScale: s.RopeScale, Eps: synthEps, RopeNeoX: a.neoX, QKVBias: a.qkvBias, QKNorm: a.qkNorm,
	}
}

const synthEps = 1e-5

// Validate reports everything that is wrong with the spec.
func (s SynthSpec) Validate() error {
	s = s.withDefaults()
	var errs []error
	positive := func(name string, n, most int) {
		if n < 1 || n > most {
			errs = append(errs, fmt.Errorf("%s %d: want 1 to %d", name, n, most))
		}
	}
	positive("layers", s.Layers, maxLayers)
	positive("dim", s.Dim, maxWidth)
	positive("heads", s.Heads, maxWidth)
	positive("kv-heads", s.KVHeads, maxWidth)
	positive("ffn", s.FFN, maxWidth)
	positive("context", s.Context, 1<<24)
	a, err := archNamed(s.Arch)
	if err != nil {
		errs = append(errs, err)
	} else if s.RopeFactors && !a.factors {
		errs = append(errs, fmt.Errorf("rope factors: not part of %s", s.Arch))
	}
	if s.Vocab < synthMinVocab || s.Vocab > maxWidth {
		errs = append(errs, fmt.Errorf("vocab %d: want %d to %d", s.Vocab, synthMinVocab, maxWidth))
	}
	if !s.Type.Supported() {
		errs = append(errs, fmt.Errorf("type %s: want one of %v", s.Type, supportedTypes()))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if s.Dim%s.Heads != 0 && s.HeadDim == s.Dim/s.Heads {
		errs = append(errs, fmt.Errorf("dim %d: want an even multiple of %d heads", s.Dim, s.Heads))
	}
	if s.Heads%s.KVHeads != 0 {
		errs = append(errs, fmt.Errorf("heads %d: want a multiple of %d kv-heads", s.Heads, s.KVHeads))
	}
	if err := s.shape().check(); len(errs) == 0 && err != nil {
		errs = append(errs, err)
	}
	if b := int(s.Type.BlockValues()); s.Dim%b != 0 || s.FFN%b != 0 || s.Heads*s.HeadDim%b != 0 {
		errs = append(errs, fmt.Errorf("dim %d, ffn %d and %d heads of %d: want multiples of %d for type %s", s.Dim, s.FFN, s.Heads, s.HeadDim, b, s.Type))
	}
	return errors.Join(errs...)
}

// Synth writes to path a model of the given shape with random weights and a
// byte-level tokenizer. Equal specs give equal files. It needs little memory
// whatever the size, and the file appears at path only when it is complete.
// progress, which may be nil, is told the bytes of weights written so far, from
// several goroutines at once.
func Synth(path string, spec SynthSpec, progress func(done, total int64)) error {
	if err := spec.Validate(); err != nil {
		return fmt.Errorf("synth %s: %w", path, err)
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	if err := synth(path, spec.withDefaults(), progress); err != nil {
		return fmt.Errorf("synth %s: %w", path, err)
	}
	return nil
}

func synth(path string, spec SynthSpec, progress func(done, total int64)) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".synth-*")
	if err != nil {
		return err
	}
	err = spec.write(tmp, progress)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

func (s SynthSpec) write(w *os.File, progress func(done, total int64)) error {
	tensors := s.tensors()
	out := bufio.NewWriter(w)
	start, end, err := s.writeHeader(out, tensors)
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		err = w.Truncate(start + end)
	}
	if err != nil {
		return err
	}
	return writeWeights(w, start, tensors, s.Seed, progress)
}

// synthTensor is a tensor with the distribution of its values.
type synthTensor struct {
	Tensor
	fill fill
}

// tensors lists the tensors in file order, with sizes.
func (s SynthSpec) tensors() []synthTensor {
	var out []synthTensor
	add := func(name string, t TensorType, fill fill, shape ...uint64) {
		size, err := tensorBytes(t, shape)
		if err != nil {
			panic(fmt.Sprintf("model: validated spec %+v gives tensor %s an impossible shape: %v", s, name, err))
		}
		out = append(out, synthTensor{Tensor{Name: name, Type: t, Shape: shape, Size: size}, fill})
	}
	if s.RopeFactors {
		add("rope_freqs.weight", F32, fillFactor, uint64(s.HeadDim)/2)
	}
	dim, vocab := uint64(s.Dim), uint64(s.Vocab)
	add("token_embd.weight", s.Type, fillEmbedding, dim, vocab)
	for n := range s.Layers {
		for _, t := range s.shape().LayerTensors() {
			kind, fill := s.Type, fillMatrix
			if len(t.Shape) == 1 {
				kind, fill = F32, fillOf(t.Name)
			}
			add(fmt.Sprintf("blk.%d.%s", n, t.Name), kind, fill, t.Shape...)
		}
	}
	add("output_norm.weight", F32, fillOne, dim)
	if !s.Tied {
		add("output.weight", s.Type, fillMatrix, dim, vocab)
	}
	return out
}

// fillOf is how the values of a layer's vector are distributed.
func fillOf(name string) fill {
	switch name {
	case "attn_norm.weight", "ffn_norm.weight":
		return fillOne
	case "attn_q_norm.weight", "attn_k_norm.weight":
		return fillNear
	default: // biases, as large as what they are added to
		return fillEmbedding
	}
}

// writeHeader writes all up to the weights, which start at start and take end
// bytes, and sets the tensors' offsets.
func (s SynthSpec) writeHeader(w io.Writer, tensors []synthTensor) (start, end int64, err error) {
	const alignment = 32
	kvs := &kvWriter{}
	kvs.text("general.architecture", s.Arch)
	kvs.text("general.name", s.Name)
	kvs.text("general.description", "random weights for measurements; its output means nothing")
	kvs.u32("general.alignment", alignment)
	for _, n := range []struct {
		key string
		n   int
	}{
		{"vocab_size", s.Vocab},
		{"context_length", s.Context},
		{"embedding_length", s.Dim},
		{"block_count", s.Layers},
		{"feed_forward_length", s.FFN},
		{"attention.head_count", s.Heads},
		{"attention.head_count_kv", s.KVHeads},
		{"attention.key_length", s.HeadDim},
		{"attention.value_length", s.HeadDim},
		{"rope.dimension_count", s.HeadDim},
	} {
		kvs.u32(s.Arch+"."+n.key, uint32(n.n))
	}
	kvs.f32(s.Arch+".rope.freq_base", s.RopeBase)
	if s.RopeScale != 1 {
		kvs.text(s.Arch+".rope.scaling.type", "linear")
		kvs.f32(s.Arch+".rope.scaling.factor", s.RopeScale)
	}
	kvs.f32(s.Arch+".attention.layer_norm_rms_epsilon", synthEps)
	kvs.synthVocab(s.Vocab)

	h := headerWriter{w: w}
	h.preamble(3, len(tensors), kvs.n)
	h.bytes(kvs.b)
	infos := make([]Tensor, len(tensors))
	for i, t := range tensors {
		infos[i] = t.Tensor
	}
	end = h.tensorInfos(infos, alignment)
	for i := range tensors {
		tensors[i].Tensor = infos[i]
	}
	start = alignUp(h.at, alignment)
	h.bytes(make([]byte, start-h.at))
	return start, end, h.err
}
