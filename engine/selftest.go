//go:build cgo

package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine/sampler"
	"github.com/kevlard/kevlard/model"
)

// library is the version of the compute library, part of the numerics class.
const library = "ollama v0.17.4"

// selfTest measures the numerics of this build on this machine with a synthetic
// model of every served tensor type, so the answer does not depend on the weights
// or layers that are loaded. class is a hash of the build and of the output bits;
// invariant reports that neither batch company nor chunking nor the place of the
// cells changed a bit.
func selfTest(threads int) (class string, invariant bool, err error) {
	s, err := open(syntheticWeights(), Spec{Path: "self-test", Layers: kevlard.Layers{Lo: 0, Hi: 3}, Threads: threads, Cells: 256, MaxRows: 128}, nil)
	if err != nil {
		return "", false, err
	}
	defer s.Close()
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s isa%s kv %s\n", library, runtime.GOOS, runtime.GOARCH, buildISA(), kvFormat)
	rng := rand.New(rand.NewPCG(1, 2))
	const longest = 33
	tokens := make([]kevlard.Token, longest+1)
	for i := range tokens {
		tokens[i] = kevlard.Token(rng.IntN(s.info.Vocab))
	}
	invariant = true
	// Shape buckets of prefill: each length alone, then a decode step after it.
	var alone [][]float32
	for _, n := range []int{1, 2, 3, 7, 16, longest} {
		one, err := s.logits(part(0, 0, tokens[:n]))
		if err != nil {
			return "", false, err
		}
		two, err := s.logits(part(0, n, tokens[n:n+1]))
		if err != nil {
			return "", false, err
		}
		alone = append(alone, one, two)
	}
	for i, l := range alone {
		if err := binary.Write(hash, binary.LittleEndian, l); err != nil {
			return "", false, fmt.Errorf("hash logits: %w", err)
		}
		t, err := sampler.Sample(l, kevlard.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.01, Seed: 7}, i)
		if err != nil {
			return "", false, err
		}
		fmt.Fprintln(hash, t)
	}
	// The longest again: in chunks, at other cells, in company of other parts.
	want := alone[len(alone)-2]
	for _, chunk := range []int{1, 5, 32} {
		pos := 0
		var got []float32
		for pos < longest {
			n := min(chunk, longest-pos)
			company := part(200, 0, tokens[:1+pos%9])
			if got, err = s.logits(part(100, pos, tokens[pos:pos+n]), company); err != nil {
				return "", false, err
			}
			pos += n
		}
		invariant = invariant && sameBits(want, got[:len(want)])
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), invariant, nil
}

// logits runs parts and returns the logits after each.
func (s *Stage) logits(parts ...Part) ([]float32, error) {
	n, err := s.info.check(Batch{Parts: parts})
	if err != nil {
		return nil, err
	}
	_, l, err := s.compute(Batch{Parts: parts}, n)
	return l, err
}

func part(cell, pos int, tokens []kevlard.Token) Part {
	return Part{Cell: cell, Pos: pos, N: len(tokens), Tokens: tokens, Sample: true}
}

func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// syntheticWeights is a small model with a layer of each served type.
func syntheticWeights() *weights { return syntheticModel(model.F32, model.F16, model.Q8_0) }

// syntheticModel has three layers, whose matrices take the kinds in turn, rope
// factors, and an untied head of the last kind.
func syntheticModel(kinds ...model.TensorType) *weights {
	const ffn = 160
	w := &weights{tensors: map[string]tensor{}, Shape: model.Shape{
		Layers: 3, Dim: 128, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: ffn, Vocab: 320, Context: 256,
		RopeDim: 32, RopeBase: 10000, RopeScale: 1, Eps: 1e-5,
	}}
	rng := rand.New(rand.NewPCG(3, 4))
	add := func(name string, kind model.TensorType, shape ...uint64) {
		b := randomTensor(rng, kind, shape)
		w.tensors[name] = tensor{name: name, kind: kind, shape: shape, size: int64(len(b)), data: bytes.NewReader(b)}
	}
	dim, q, kv := uint64(w.Dim), uint64(w.Heads*w.HeadDim), uint64(w.KVHeads*w.HeadDim)
	shapes := [...][]uint64{{dim}, {dim, q}, {dim, kv}, {dim, kv}, {q, dim}, {dim}, {dim, ffn}, {dim, ffn}, {ffn, dim}}
	for i := range w.Layers {
		for j, name := range layerTensors {
			k := kinds[i%len(kinds)]
			if strings.HasSuffix(name, "_norm.weight") {
				k = model.F32
			}
			add(fmt.Sprintf("blk.%d.%s", i, name), k, shapes[j]...)
		}
	}
	head := kinds[len(kinds)-1]
	add("token_embd.weight", head, dim, uint64(w.Vocab))
	add("output_norm.weight", model.F32, dim)
	add("output.weight", head, dim, uint64(w.Vocab))
	add(ropeFactors, model.F32, uint64(w.RopeDim/2))
	return w
}

// randomTensor returns the stored bytes of a tensor: vectors near 1, matrices with
// entries of standard deviation about 1/sqrt(row).
func randomTensor(rng *rand.Rand, kind model.TensorType, shape []uint64) []byte {
	n := uint64(1)
	for _, d := range shape {
		n *= d
	}
	scale := 1.7 / math.Sqrt(float64(shape[0]))
	var b []byte
	for i := uint64(0); i < n; i++ {
		x := (2*rng.Float64() - 1) * scale
		switch {
		case len(shape) == 1:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(1+0.1*(2*rng.Float64()-1))))
		case kind == model.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case kind == model.F16:
			b = binary.LittleEndian.AppendUint16(b, smallHalf(rng.Uint32(), scale))
		default: // q8_0: a float16 scale, then 32 signed bytes
			if i%32 == 0 {
				b = binary.LittleEndian.AppendUint16(b, smallHalf(0, scale/127))
			}
			b = append(b, byte(rng.IntN(255)-127))
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
