package model

import (
	"fmt"
	"maps"
	"slices"
)

// arch is what distinguishes the served architectures, which are otherwise the
// same: norm, attention with rotated heads, norm, gated feed-forward.
type arch struct {
	neoX    bool // rope turns value i with value i+half, not neighbours
	qkvBias bool // queries, keys and values have biases
	qkNorm  bool // heads of queries and keys are normed before rope
	factors bool // rope_freqs.weight may be there
}

// archs are the served architectures by their GGUF name. Mistral's own models are
// written as llama up to 7B v0.3 and Nemo, and as mistral3 from Small 3.1 on.
func archs() map[string]arch {
	return map[string]arch{
		"llama":    {factors: true},
		"mistral3": {},
		"qwen2":    {neoX: true, qkvBias: true},
		"qwen3":    {neoX: true, qkNorm: true},
	}
}

// supportedArchs lists the architectures that are served.
func supportedArchs() []string { return slices.Sorted(maps.Keys(archs())) }

// archNamed returns the architecture of this name, or an error that lists them.
func archNamed(name string) (arch, error) {
	a, ok := archs()[name]
	if !ok {
		return arch{}, fmt.Errorf("architecture %q is not supported: want one of %q", name, supportedArchs())
	}
	return a, nil
}

// LayerTensor is a tensor of one layer that a model of some shape has.
type LayerTensor struct {
	// Name is the tensor's name after "blk.N.", which is the role it plays too.
	Name string
	// Shape is what it must be; one dimension means a vector, stored as f32.
	Shape []uint64
}

// LayerTensors lists the tensors of one layer.
func (s Shape) LayerTensors() []LayerTensor {
	dim, ffn := uint64(s.Dim), uint64(s.FFN)
	q, kv, head := uint64(s.Heads*s.HeadDim), uint64(s.KVHeads*s.HeadDim), uint64(s.HeadDim)
	out := []LayerTensor{
		{"attn_norm.weight", []uint64{dim}},
		{"attn_q.weight", []uint64{dim, q}},
		{"attn_k.weight", []uint64{dim, kv}},
		{"attn_v.weight", []uint64{dim, kv}},
		{"attn_output.weight", []uint64{q, dim}},
		{"ffn_norm.weight", []uint64{dim}},
		{"ffn_gate.weight", []uint64{dim, ffn}},
		{"ffn_up.weight", []uint64{dim, ffn}},
		{"ffn_down.weight", []uint64{ffn, dim}},
	}
	if s.QKVBias {
		out = append(out, LayerTensor{"attn_q.bias", []uint64{q}}, LayerTensor{"attn_k.bias", []uint64{kv}}, LayerTensor{"attn_v.bias", []uint64{kv}})
	}
	if s.QKNorm {
		out = append(out, LayerTensor{"attn_q_norm.weight", []uint64{head}}, LayerTensor{"attn_k_norm.weight", []uint64{head}})
	}
	return out
}
