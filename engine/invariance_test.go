//go:build cgo

package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kevlard/kevlard"
)

// history is what a session's tokens must compute: for every layer boundary the
// row after each position, and the logits after each position.
type history struct {
	tokens []kevlard.Token
	rows   map[int][][]byte // by the layer they enter
	logits [][]float32
}

// step runs parts through stages and calls row and logit with what each computes.
// Every part asks for the logits after its last row.
func step(t *testing.T, stages []*Stage, parts []Part, row func(layer, part, i int, row []byte), logit func(part int, logits []float32)) {
	t.Helper()
	var rows []byte
	for _, s := range stages {
		b := Batch{Rows: rows}
		for _, p := range parts {
			if p.Sample = s.info.Last(); !s.info.First() {
				p.Tokens = nil
			}
			b.Parts = append(b.Parts, p)
		}
		n, err := s.info.check(b)
		if err != nil {
			t.Fatal(err)
		}
		out, logits, err := s.compute(b, n)
		if err != nil {
			t.Fatal(err)
		}
		if s.info.Last() {
			for k := range parts {
				logit(k, logits[k*s.info.Vocab:(k+1)*s.info.Vocab])
			}
			return
		}
		rows = out
		for k, p := range parts {
			for i := range p.N {
				row(s.info.Layers.Hi, k, i, out[:s.info.Dim*4])
				out = out[s.info.Dim*4:]
			}
		}
	}
}

// alone computes each history one token at a time through stages of one layer.
func alone(t *testing.T, stages []*Stage, histories []*history) {
	t.Helper()
	for _, h := range histories {
		h.rows = map[int][][]byte{}
		for pos, token := range h.tokens {
			step(t, stages, []Part{{Pos: pos, N: 1, Tokens: []kevlard.Token{token}}},
				func(layer, _, _ int, row []byte) { h.rows[layer] = append(h.rows[layer], bytes.Clone(row)) },
				func(_ int, l []float32) { h.logits = append(h.logits, l) })
		}
	}
}

// mix runs all histories together: random chunks of random sessions, at random
// cells, and demands equal bits at every boundary.
func mix(t *testing.T, stages []*Stage, histories []*history, rng *rand.Rand) {
	t.Helper()
	const room = 64
	place := rng.Perm(len(histories))
	at := make([]int, len(histories))
	wrong := 0
	for {
		var parts []Part
		var who []int
		for _, h := range rng.Perm(len(histories)) {
			left := len(histories[h].tokens) - at[h]
			if left == 0 || rng.IntN(4) == 0 {
				continue
			}
			n := 1
			if rng.IntN(2) == 0 {
				n = 1 + rng.IntN(min(left, 17))
			}
			parts = append(parts, Part{Cell: place[h]*room + h, Pos: at[h], N: n, Tokens: histories[h].tokens[at[h] : at[h]+n]})
			who = append(who, h)
			at[h] += n
		}
		if len(parts) > 0 {
			step(t, stages, parts, func(layer, k, i int, row []byte) {
				if !bytes.Equal(row, histories[who[k]].rows[layer][parts[k].Pos+i]) {
					wrong++
				}
			}, func(k int, l []float32) {
				if !sameBits(l, histories[who[k]].logits[parts[k].Pos+parts[k].N-1]) {
					wrong++
				}
			})
		}
		done := true
		for h := range histories {
			done = done && at[h] == len(histories[h].tokens)
		}
		if done {
			break
		}
	}
	if wrong > 0 {
		t.Errorf("%d rows or logits differ", wrong)
	}
}

// TestInvariance: bits do not depend on batch company, chunking, cells or the
// number of stages; 40 sessions also pass the parts of one graph.
func TestInvariance(t *testing.T) {
	for _, name := range []string{"fairy-7m-q8_0.gguf", "fairy-7m-f16.gguf"} {
		path := modelPath(t, name)
		rng := rand.New(rand.NewPCG(11, 12))
		var histories []*history
		for range 40 {
			h := &history{}
			for range 1 + rng.IntN(24) {
				h.tokens = append(h.tokens, kevlard.Token(rng.IntN(2048)))
			}
			histories = append(histories, h)
		}
		alone(t, openChain(t, path, 8, 64), histories)
		for _, k := range []int{1, 2, 4, 8} {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				mix(t, openChain(t, path, k, 41*64), histories, rng)
			})
		}
	}
}

// TestMoveKV: a session's cells, read from one instance and written elsewhere in a
// fresh one (and copied there once more), continue with the same bits.
func TestMoveKV(t *testing.T) {
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	prompt := references(t)["fairy-7m-q8_0.gguf"][0].PromptIDs
	from := openChain(t, path, 2, 256)
	tokens := greedy(t, from, 5, prompt, 60)
	const keep = 50
	to := openChain(t, path, 2, 512)
	for i := range from {
		buf := make([]byte, keep*from[i].info.CellBytes)
		if err := from[i].Read(5, keep, buf); err != nil {
			t.Fatal(err)
		}
		if err := to[i].Write(301, keep, buf); err != nil {
			t.Fatal(err)
		}
		if err := to[i].Copy(290, 301, keep); err != nil { // overlaps
			t.Fatal(err)
		}
	}
	all := append(append([]kevlard.Token(nil), prompt...), tokens...)
	part := Part{Pos: keep, N: len(all) - keep, Tokens: all[keep:]}
	var want []byte
	part.Cell = 5
	step(t, from, []Part{part}, func(_, _, _ int, row []byte) { want = append(want, row...) }, func(_ int, l []float32) { want = appendBits(want, l) })
	var got []byte
	part.Cell = 290
	step(t, to, []Part{part}, func(_, _, _ int, row []byte) { got = append(got, row...) }, func(_ int, l []float32) { got = appendBits(got, l) })
	if !bytes.Equal(got, want) {
		t.Error("the moved session computes other bits")
	}
}

func appendBits(b []byte, l []float32) []byte {
	for _, v := range l {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
