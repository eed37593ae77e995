package model

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// archSpec is a small model of the architecture that suits every type.
func archSpec(arch string) SynthSpec {
	return SynthSpec{Arch: arch, Layers: 2, Dim: 256, Heads: 4, KVHeads: 2, HeadDim: 128, FFN: 256, Vocab: 300, Type: F16, Seed: 1}
}

// TestArchitectures: a synthetic model of each architecture and type is read as the
// shape that was asked for, with the tensors of that architecture.
func TestArchitectures(t *testing.T) {
	extra := map[string][]string{
		"llama": nil, "mistral3": nil,
		"qwen2": {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
		"qwen3": {"attn_q_norm.weight", "attn_k_norm.weight"},
	}
	for _, arch := range supportedArchs() {
		for _, kind := range supportedTypes() {
			t.Run(fmt.Sprintf("%s %s", arch, kind), func(t *testing.T) {
				s := archSpec(arch)
				s.Type, s.RopeScale = kind, 2
				m := load(t, synthFile(t, s), "")
				qwen := strings.HasPrefix(arch, "qwen")
				want := Shape{
					Layers: 2, Dim: 256, Heads: 4, KVHeads: 2, HeadDim: 128, FFN: 256, Vocab: 300, Context: 2048, RopeDim: 128,
					RopeBase: 10000, RopeScale: 2, Eps: 1e-5, RopeNeoX: qwen, QKVBias: arch == "qwen2", QKNorm: arch == "qwen3",
				}
				if m.Shape != want || m.Arch != arch {
					t.Errorf("%s: shape %+v: want %+v", m.Arch, m.Shape, want)
				}
				layer := m.Units[1]
				for _, n := range extra[arch] {
					if !slices.Contains(layer.Tensors, "blk.0."+n) {
						t.Errorf("layer 0 lacks %s: %q", n, layer.Tensors)
					}
				}
				if len(layer.Tensors) != 9+len(extra[arch]) {
					t.Errorf("layer 0 has tensors %q", layer.Tensors)
				}
			})
		}
	}
}

// TestDigestsCoverAdditions: a layer's digest depends on every bias and every norm
// of heads, on which of them is which, and on the kind of rope.
func TestDigestsCoverAdditions(t *testing.T) {
	for arch, names := range map[string][]string{
		"qwen2": {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
		"qwen3": {"attn_q_norm.weight", "attn_k_norm.weight"},
	} {
		path := synthFile(t, archSpec(arch))
		base := digestsOf(load(t, path, ""))
		for _, n := range names {
			got := digestsOf(load(t, rewrite(t, path, sameName, noKeys, func(name string, b []byte) {
				if name == "blk.1."+n {
					b[len(b)-4] ^= 1
				}
			}), ""))
			for unit, d := range got {
				if (d != base[unit]) != (unit == "layer.1") {
					t.Errorf("%s: a bit of blk.1.%s: unit %s differs %t", arch, n, unit, d != base[unit])
				}
			}
		}
		a, b := "blk.0."+names[len(names)-2], "blk.0."+names[len(names)-1]
		swapped := digestsOf(load(t, rewrite(t, path, func(n string) string {
			switch n {
			case a:
				return b
			case b:
				return a
			}
			return n
		}, noKeys, sameBytes), ""))
		if swapped["layer.0"] == base["layer.0"] {
			t.Errorf("%s: %s and %s in each other's place give the same digest", arch, a, b)
		}
	}
	s := Shape{Heads: 1}
	r := s.layerRecipe()
	if s.RopeNeoX = true; s.layerRecipe() == r {
		t.Error("the kind of rope is not in the recipe")
	}
}

// TestArchitecturesRefused changes one thing of a good model; the error must name it.
func TestArchitecturesRefused(t *testing.T) {
	paths := make(map[string]string)
	for _, arch := range supportedArchs() {
		paths[arch] = synthFile(t, archSpec(arch))
	}
	keys := func(arch string, put func(w *kvWriter)) string {
		return rewrite(t, paths[arch], sameName, put, sameBytes)
	}
	rename := func(arch, from, to string) string {
		return rewrite(t, paths[arch], func(n string) string {
			if n == from {
				return to
			}
			return n
		}, noKeys, sameBytes)
	}
	for _, c := range []struct{ name, path, want string }{
		{"a bias is missing", rename("qwen2", "blk.1.attn_k.bias", ""), `tensor "blk.1.attn_k.bias" is missing`},
		{"a norm is missing", rename("qwen3", "blk.0.attn_k_norm.weight", ""), `tensor "blk.0.attn_k_norm.weight" is missing`},
		{"a bias of another part", rename("qwen2", "output.weight", "blk.0.attn_output.bias"), `tensor "blk.0.attn_output.bias" is not part of a supported qwen2 model`},
		{"biases in llama", rename("llama", "output.weight", "blk.0.attn_q.bias"), `tensor "blk.0.attn_q.bias" is not part of a supported llama model`},
		{"norms in qwen2", rename("qwen2", "output.weight", "blk.0.attn_q_norm.weight"), "is not part of a supported qwen2 model"},
		{"factors in qwen2", rename("qwen2", "output.weight", "rope_freqs.weight"), `tensor "rope_freqs.weight" is not part of`},
		{"a picture's tensors", rename("mistral3", "output.weight", "v.patch_conv.weight"), `tensor "v.patch_conv.weight" is not part of`},
		{"window", keys("llama", func(w *kvWriter) { w.u32("llama.attention.sliding_window", 512) }), `key "llama.attention.sliding_window": 512 is less than the context of 2048`},
		{"temperature", keys("mistral3", func(w *kvWriter) { w.f32("mistral3.attention.temperature_scale", 0.1) }), `key "mistral3.attention.temperature_scale"`},
		{"extended context", keys("mistral3", func(w *kvWriter) { w.u32("mistral3.rope.scaling.original_context_length", 512) }), "extended contexts of mistral3"},
		{"yarn", keys("qwen2", func(w *kvWriter) { w.text("qwen2.rope.scaling.type", "yarn") }), `"yarn": want none or linear`},
		{"half rope", keys("qwen3", func(w *kvWriter) { w.u32("qwen3.rope.dimension_count", 64) }), "want all 128 values of a head"},
		{"mistral", keys("llama", func(w *kvWriter) { w.text("general.architecture", "mistral") }), `architecture "mistral" is not supported: want one of ["llama" "mistral3" "qwen2" "qwen3"]`},
		{"experts", keys("qwen3", func(w *kvWriter) { w.u32("qwen3.expert_count", 8) }), "mixtures of experts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Load(c.path, ""); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %v: want the path and %q in it", err, c.want)
			}
		})
	}
	// A window as long as the context hides nothing.
	if _, err := Load(keys("llama", func(w *kvWriter) { w.u32("llama.attention.sliding_window", 2048) }), ""); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*SynthSpec){
		`architecture "gpt2" is not supported`: func(s *SynthSpec) { s.Arch = "gpt2" },
		"rope factors: not part of qwen2":      func(s *SynthSpec) { s.RopeFactors = true },
		"want multiples of 256 for type q4_k":  func(s *SynthSpec) { s.Type, s.HeadDim = Q4_K, 96 },
	} {
		s := archSpec("qwen2")
		change(&s)
		if err := Synth(filepath.Join(t.TempDir(), "m.gguf"), s, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want %q in it", err, want)
		}
	}
}

// TestLayerTensorNames: the names of a layer's tensors are unique,
// since they are roles in digests.
func TestLayerTensorNames(t *testing.T) {
	s := Shape{Dim: 4, Heads: 2, KVHeads: 1, HeadDim: 2, FFN: 8, QKVBias: true, QKNorm: true}
	shapes := make(map[string][]uint64)
	for _, x := range s.LayerTensors() {
		shapes[x.Name] = x.Shape
	}
	if len(shapes) != len(s.LayerTensors()) {
		t.Error("two tensors have the same name")
	}
	for name, want := range map[string][]uint64{"attn_k.bias": {2}, "attn_q.bias": {4}, "attn_v.bias": {2}, "attn_q_norm.weight": {2}, "attn_k.weight": {4, 2}} {
		if !reflect.DeepEqual(shapes[name], want) {
			t.Errorf("%s is %v: want %v", name, shapes[name], want)
		}
	}
}
