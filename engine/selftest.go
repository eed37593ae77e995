//go:build cgo

package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine/sampler"
)

// library is the version of the compute library, part of the numerics class.
const library = "ollama v0.17.4"

// selfTest measures the numerics of this build on this machine with synthetic
// models that have every served tensor type and every operation, so the answer does
// not depend on the weights or layers that are loaded. class is a hash of the build
// and of the output bits; invariant reports that neither batch company nor chunking
// nor the place of the cells changed a bit.
func selfTest(threads int, dev device) (class string, invariant bool, err error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s isa%s kv %s\n", library, runtime.GOOS, runtime.GOARCH, buildISA(), kvFormat)
	if dev.onGPU() {
		fmt.Fprintf(hash, "%s %s\n", dev.family, dev.about)
	}
	invariant = true
	for _, c := range []struct {
		w       *weights
		lengths []int
	}{
		{syntheticWeights(), []int{1, 2, 3, 7, 16, 33}},
		{syntheticBlocks(), []int{1, 2, 13}},
	} {
		w := c.w
		s, err := open(w, Spec{Path: "self-test", Layers: kevlard.Layers{Lo: 0, Hi: w.Layers}, Threads: threads, Cells: 256, MaxRows: 128}, dev, nil)
		if err != nil {
			return "", false, err
		}
		same, err := s.measure(hash, c.lengths)
		s.Close()
		if err != nil {
			return "", false, err
		}
		invariant = invariant && same
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), invariant, nil
}

// measure writes the logits of prefills of these lengths (shape buckets, growing)
// to hash, each with a decode step after it, and the tokens sampled from them. It
// reports whether the longest has the same bits in chunks, at other cells, in
// company of other parts.
func (s *Stage) measure(hash io.Writer, lengths []int) (invariant bool, err error) {
	rng := rand.New(rand.NewPCG(1, 2))
	longest := lengths[len(lengths)-1]
	tokens := make([]kevlard.Token, longest+1)
	for i := range tokens {
		tokens[i] = kevlard.Token(rng.IntN(s.info.Vocab))
	}
	var alone [][]float32
	for _, n := range lengths {
		one, err := s.logits(part(0, 0, tokens[:n]))
		if err != nil {
			return false, err
		}
		two, err := s.logits(part(0, n, tokens[n:n+1]))
		if err != nil {
			return false, err
		}
		alone = append(alone, one, two)
	}
	for i, l := range alone {
		if err := binary.Write(hash, binary.LittleEndian, l); err != nil {
			return false, fmt.Errorf("hash logits: %w", err)
		}
		for _, p := range []kevlard.Sampling{
			{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.01, Seed: 7},
			{Temperature: 1, Repetition: 1.1, Presence: 0.5, Frequency: 0.3, Prompt: 5, Bias: []kevlard.TokenBias{{Token: 9, Bias: 1}}, Seed: 8},
		} {
			t, err := sampler.Sample(l, tokens, p, len(tokens)+i)
			if err != nil {
				return false, err
			}
			fmt.Fprintln(hash, t)
		}
	}
	want, invariant := alone[len(alone)-2], true
	for _, chunk := range []int{1, 5, 32} {
		pos := 0
		var got []float32
		for pos < longest {
			n := min(chunk, longest-pos)
			company := part(200, 0, tokens[:1+pos%9])
			if got, err = s.logits(part(100, pos, tokens[pos:pos+n]), company); err != nil {
				return false, err
			}
			pos += n
		}
		invariant = invariant && sameBits(want, got[:len(want)])
	}
	return invariant, nil
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
