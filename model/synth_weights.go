package model

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// fill is how the values of a synthetic tensor are distributed.
type fill int

const (
	fillMatrix    fill = iota // variance 1/row length, so that activations keep their size
	fillEmbedding             // variance 1
	fillOne                   // all 1
	fillNear                  // 0.5 to 1.5
	fillFactor                // all 1, growing to 8 in the second half, as rope factors do
)

// chunkValues is how many values are made at a time; each chunk has a random
// sequence of its own, so chunks can be made in any order. It is a multiple of
// every block.
const chunkValues = 1 << 16

// writeWeights writes the tensors, at their offsets from start, with as many
// writers as there are processors.
func writeWeights(w io.WriterAt, start int64, tensors []synthTensor, seed uint64, progress func(done, total int64)) error {
	var total int64
	for _, t := range tensors {
		total += t.Size
	}
	var done atomic.Int64
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, t := range tensors {
		g.Go(func() error {
			if err := writeTensor(w, start, t, seed, uint64(i), func(n int) { progress(done.Add(int64(n)), total) }); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func writeTensor(w io.WriterAt, start int64, t synthTensor, seed, index uint64, wrote func(n int)) error {
	values := uint64(1)
	for _, d := range t.Shape {
		values *= d
	}
	buf := make([]float32, chunkValues)
	var enc []byte
	at := start + t.Offset
	for chunk := uint64(0); chunk*chunkValues < values; chunk++ {
		first := chunk * chunkValues
		x := buf[:min(chunkValues, values-first)]
		// The tensor and the chunk select the sequence, the seed its start.
		t.fill.values(x, first, values, t.Shape[0], rand.NewPCG(seed, index<<40|chunk))
		enc = encodeValues(enc[:0], t.Type, x)
		if _, err := w.WriteAt(enc, at); err != nil {
			return err
		}
		at += int64(len(enc))
		wrote(len(enc))
	}
	return nil
}

// values fills x, which holds the values from first on of total.
func (f fill) values(x []float32, first, total, rowLen uint64, src *rand.PCG) {
	switch f {
	case fillOne:
		for i := range x {
			x[i] = 1
		}
	case fillFactor:
		for i := range x {
			x[i] = 1
			if at := first + uint64(i); 2*at >= total {
				x[i] = 1 + 7*float32(2*at-total)/float32(total)
			}
		}
	default:
		// Uniform on (-a, a) has variance a*a/3.
		a, centre := math.Sqrt(3), float32(0)
		switch f {
		case fillMatrix:
			a = math.Sqrt(3 / float64(rowLen))
		case fillNear:
			a, centre = 0.5, 1
		}
		scale := float32(a / (1 << 23))
		for i := 0; i < len(x); i += 2 {
			u := src.Uint64()
			x[i] = centre + float32(scale*float32(int32(u>>8&0xffffff)-1<<23))
			if i+1 < len(x) {
				x[i+1] = centre + float32(scale*float32(int32(u>>40)-1<<23))
			}
		}
	}
}
