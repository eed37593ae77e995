package toymodel_test

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// TestCellsAgreeWithReference compares every cell of a run in chunks and stages
// with what the reference says of its tokens.
func TestCellsAgreeWithReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Int32Range(0, 96), 1, 40).Draw(t, "tokens")
		p := newPipeline(t, rapid.SampledFrom([][]int{nil, {3}, {1, 5}}).Draw(t, "cuts"), rapid.IntRange(0, 100).Draw(t, "cell"))
		chunk := rapid.IntRange(1, 40).Draw(t, "chunk")
		for pos := 0; pos < len(all); pos += chunk {
			end := min(pos+chunk, len(all))
			p.forward(all[:end], pos, end == len(all), kevlard.Sampling{}, nil)
		}
		want, layer := model.KV(all), 0
		for _, s := range p.stages {
			kv := make([]byte, len(all)*s.CellBytes())
			if err := s.Read(p.cell, len(all), kv); err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(kv); at += 8 * len(all) {
				for pos := range all {
					if got := binary.LittleEndian.Uint64(kv[at+8*pos:]); got != want[layer][pos] {
						t.Fatalf("layer %d position %d holds %x, the reference says %x", layer, pos, got, want[layer][pos])
					}
				}
				layer++
			}
		}
		if layer != model.Layers {
			t.Fatalf("%d layers were compared", layer)
		}
	})
}

// TestWrittenCellsGoOn moves a session's cells to other stages half-way.
func TestWrittenCellsGoOn(t *testing.T) {
	prompt := []kevlard.Token{5, 17, 17, 3, 90, 41, 8}
	a, b := newPipeline(t, []int{2}, 10), newPipeline(t, []int{2}, 40)
	a.forward(prompt, 0, true, kevlard.Sampling{}, nil)
	for i, s := range a.stages {
		kv := make([]byte, 6*s.CellBytes())
		if err := s.Read(10, 6, kv); err != nil {
			t.Fatal(err)
		}
		if err := b.stages[i].Write(40, 6, kv); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := b.forward(prompt, 6, true, kevlard.Sampling{}, nil), model.Reference(prompt, 1, kevlard.Sampling{})[0]; got.Token != want {
		t.Fatalf("token %d, the reference says %d", got.Token, want)
	}
}
