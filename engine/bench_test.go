//go:build cgo

package engine

import (
	"fmt"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// BenchmarkForward runs a whole model as one stage: decode steps at position 256
// for 1, 4 and 8 sessions, and prefill of 64 and 128 positions.
func BenchmarkForward(b *testing.B) {
	preset, err := model.Preset("110m")
	if err != nil {
		b.Fatal(err)
	}
	for name, path := range map[string]string{
		"fairy-7m-q8_0": modelPath(b, "fairy-7m-q8_0.gguf"), "fairy-7m-f16": modelPath(b, "fairy-7m-f16.gguf"),
		"110m-q8_0": synthModel(b, preset, model.Q8_0),
	} {
		s := openUnmeasured(b, path, 1, 8*300)[0]
		tokens := make([]kevlard.Token, 256)
		for i := range tokens {
			tokens[i] = kevlard.Token(i * 7)
		}
		for i := range 8 {
			chain(b, []*Stage{s}, Part{Cell: 300 * i, N: 256, Tokens: tokens})
		}
		loop := func(name string, parts []Part, n int) {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Forward(Batch{Parts: parts}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
		var decode []Part
		for i := range 8 {
			decode = append(decode, Part{Cell: 300 * i, Pos: 256, N: 1, Tokens: tokens[:1], Sample: true})
		}
		for _, n := range []int{1, 4, 8} {
			loop(fmt.Sprintf("%s/decode-%d", name, n), decode[:n], n)
		}
		for _, n := range []int{64, 128} {
			loop(fmt.Sprintf("%s/prefill-%d", name, n), []Part{{N: n, Tokens: tokens[:n], Sample: true}}, n)
		}
	}
}

// BenchmarkHop compares a decode step of a middle stage of two layers in this
// process and in a child: the difference is the price of a process.
func BenchmarkHop(b *testing.B) {
	spec := smallSpec(b, kevlard.Layers{Lo: 2, Hi: 4})
	s, err := Open(spec, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := startEngine(b, spec)
	for _, n := range []int{1, 8} {
		batch := Batch{Rows: make([]byte, n*s.info.Dim*4)}
		for i := range n {
			batch.Parts = append(batch.Parts, Part{Cell: 32 * i, Pos: 16, N: 1})
		}
		b.Run(fmt.Sprintf("stage-%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Forward(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("process-%d", n), func(b *testing.B) {
			var compute int64
			for b.Loop() {
				r, err := p.Forward(b.Context(), batch)
				if err != nil {
					b.Fatal(err)
				}
				compute += int64(r.Compute)
			}
			b.ReportMetric(float64(compute)/float64(b.N), "compute-ns/op")
		})
	}
}

// BenchmarkCells reads and writes 32 cells of two layers in a child.
func BenchmarkCells(b *testing.B) {
	p := startEngine(b, smallSpec(b, kevlard.Layers{Lo: 2, Hi: 4}))
	buf := make([]byte, 32*p.Info().CellBytes)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if err := p.Read(b.Context(), 0, 32, buf); err != nil {
			b.Fatal(err)
		}
		if err := p.Write(b.Context(), 64, 32, buf); err != nil {
			b.Fatal(err)
		}
	}
}
