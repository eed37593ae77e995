package model

import (
	"encoding/binary"
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
		a := math.Sqrt(3)
		if f == fillMatrix {
			a = math.Sqrt(3 / float64(rowLen))
		}
		scale := float32(a / (1 << 23))
		for i := 0; i < len(x); i += 2 {
			u := src.Uint64()
			x[i] = scale * float32(int32(u>>8&0xffffff)-1<<23)
			if i+1 < len(x) {
				x[i+1] = scale * float32(int32(u>>40)-1<<23)
			}
		}
	}
}

// encodeValues appends x in format t, which must be a supported one, to dst. The
// length of x must be a multiple of the format's block.
func encodeValues(dst []byte, t TensorType, x []float32) []byte {
	switch t {
	case F32:
		for _, v := range x {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	case F16:
		for _, v := range x {
			dst = binary.LittleEndian.AppendUint16(dst, float16(v))
		}
	case Q8_0:
		for len(x) > 0 {
			dst = appendQ8(dst, [32]float32(x))
			x = x[32:]
		}
	default:
		panic(fmt.Sprintf("model: no encoder for tensor type %s", t))
	}
	return dst
}

// appendQ8 appends a block of q8_0: a scale d in f16, the largest magnitude over
// 127, and 32 signed bytes x/d.
func appendQ8(dst []byte, x [32]float32) []byte {
	var most float32
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}
	d := most / 127
	var inverse float32
	if d != 0 {
		inverse = 1 / d
	}
	dst = binary.LittleEndian.AppendUint16(dst, float16(d))
	for _, v := range x {
		dst = append(dst, byte(int8(math.Round(float64(v*inverse)))))
	}
	return dst
}

// float16 returns the IEEE half-precision number nearest to x, ties to even.
func float16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN stays NaN
		return sign | 0x7e00
	case b >= 0x477ff000: // at least halfway beyond the largest half
		return sign | 0x7c00
	case b < 0x38800000: // below the smallest normal half
		// Adding 0.5 leaves the half's bits, rounded to even, in the low bits of
		// the mantissa, since the last place of 0.5 is 2^-24.
		sum := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	// Rounding up to even may carry into the exponent, which is right.
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}
