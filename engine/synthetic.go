//go:build cgo

package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/kevlard/kevlard/model"
)

// syntheticWeights is a small model of llama's kind with a layer of each type that
// stores values one by one or in small blocks, and with rope factors.
func syntheticWeights() *weights {
	return syntheticModel(syntheticShape(), model.F32, model.F16, model.Q8_0)
}

// syntheticBlocks is a small model with all that qwen2 and qwen3 add, and a layer
// of each of the other types.
func syntheticBlocks() *weights {
	s := syntheticShape()
	s.Layers, s.Dim, s.HeadDim, s.RopeDim, s.FFN = 4, 256, 64, 64, 256
	s.RopeNeoX, s.QKVBias, s.QKNorm = true, true, true
	return syntheticModel(s, model.BF16, model.Q4_0, model.Q4_K, model.Q6_K)
}

func syntheticShape() model.Shape {
	return model.Shape{
		Layers: 3, Dim: 128, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: 160, Vocab: 320, Context: 256,
		RopeDim: 32, RopeBase: 10000, RopeScale: 1, Eps: 1e-5,
	}
}

// syntheticModel has layers whose matrices take the kinds in turn, rope factors
// unless rope is of the NeoX kind, and an untied head of the last kind.
func syntheticModel(s model.Shape, kinds ...model.TensorType) *weights {
	w := &weights{tensors: map[string]tensor{}, Shape: s}
	rng := rand.New(rand.NewPCG(3, 4))
	add := func(name string, kind model.TensorType, shape ...uint64) {
		if len(shape) == 1 {
			kind = model.F32
		}
		b := randomTensor(rng, kind, shape, strings.HasSuffix(name, "bias"))
		w.tensors[name] = tensor{name: name, kind: kind, shape: shape, size: int64(len(b)), data: bytes.NewReader(b)}
	}
	for i := range w.Layers {
		for _, t := range s.LayerTensors() {
			add(fmt.Sprintf("blk.%d.%s", i, t.Name), kinds[i%len(kinds)], t.Shape...)
		}
	}
	head, dim, vocab := kinds[len(kinds)-1], uint64(s.Dim), uint64(s.Vocab)
	add("token_embd.weight", head, dim, vocab)
	add("output_norm.weight", model.F32, dim)
	add("output.weight", head, dim, vocab)
	if !s.RopeNeoX {
		add(ropeFactors, model.F32, uint64(s.RopeDim/2))
	}
	return w
}

// randomTensor returns the stored bytes of a tensor: biases near 0, other vectors
// near 1, matrices with entries of standard deviation about 1/sqrt(row).
func randomTensor(rng *rand.Rand, kind model.TensorType, shape []uint64, bias bool) []byte {
	n := uint64(1)
	for _, d := range shape {
		n *= d
	}
	scale, centre := 1.7/math.Sqrt(float64(shape[0])), 0.0
	switch {
	case len(shape) == 1 && bias:
		scale = 0.5
	case len(shape) == 1:
		scale, centre = 0.1, 1
	}
	var b []byte
	random := func(n int) {
		for range n {
			b = append(b, byte(rng.Uint32()))
		}
	}
	half := func(h uint16) { b = binary.LittleEndian.AppendUint16(b, h) }
	for range n / kind.BlockValues() {
		switch kind {
		case model.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(centre+(2*rng.Float64()-1)*scale)))
		case model.BF16:
			half(uint16(math.Float32bits(float32((2*rng.Float64()-1)*scale)) >> 16))
		case model.F16:
			half(smallHalf(rng.Uint32(), scale))
		case model.Q8_0: // a scale, then 32 signed bytes
			half(smallHalf(0, scale/127))
			random(32)
		case model.Q4_0: // a scale, then 32 numbers of 4 bits
			half(smallHalf(0, scale/8))
			random(16)
		case model.Q4_K: // scale and minimum, 8 of each in 6 bits, 256 numbers of 4 bits
			half(smallHalf(0, scale/512))
			half(smallHalf(0, scale/64))
			random(12 + 128)
		case model.Q6_K: // 256 numbers of 6 bits, 16 scales, the scale of them all
			random(128 + 64 + 16)
			half(smallHalf(0, scale/2048))
		default:
			panic(fmt.Sprintf("engine: no random bytes for type %v", kind))
		}
	}
	return b
}

// smallHalf is a float16 of about scale's magnitude (a power of two up to 1 times
// 1 to 2) with the low bits of r as sign and fraction.
func smallHalf(r uint32, scale float64) uint16 {
	exp := max(1, min(15, 15+int(math.Floor(math.Log2(scale)))))
	return uint16(r&1)<<15 | uint16(exp)<<10 | uint16(r>>1&0x3ff)
}
