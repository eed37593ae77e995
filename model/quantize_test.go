package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// decode256 reads 256 values by the formats' definitions.
func decode256(kind TensorType, b []byte) []float64 {
	half := func(at int) float64 { return float64(float16value(binary.LittleEndian.Uint16(b[at:]))) }
	out := make([]float64, 256)
	switch kind {
	case BF16:
		for i := range out {
			out[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
		}
	case Q4_0:
		for i := range out {
			block := 18 * (i / 32)
			out[i] = half(block) * float64(int(b[block+2+i%16]>>(i%32/16*4)&15)-8)
		}
	case Q4_K:
		d, m, scales, q := half(0), half(2), b[4:16], b[16:]
		for i := range out {
			r := i / 32
			var sc, mn byte
			if r < 4 {
				sc, mn = scales[r]&63, scales[r+4]&63
			} else {
				sc = scales[r+4]&15 | scales[r-4]>>6<<4
				mn = scales[r+4]>>4 | scales[r]>>6<<4
			}
			out[i] = d*float64(sc)*float64(q[i/64*32+i%32]>>(i%64/32*4)&15) - m*float64(mn)
		}
	case Q6_K:
		low, high, scales, d := b[:128], b[128:192], b[192:208], half(208)
		for i := range out {
			n, l := i/128, i%128
			q := low[64*n+l%64]>>(l/64*4)&15 | high[32*n+l%32]>>(l/32*2)&3<<4
			out[i] = d * float64(int8(scales[i/16])) * float64(int(q)-32)
		}
	}
	return out
}

// TestEncoders: decoding gives the values back to within the format's step, at any
// magnitude, for one-sided blocks and for zeros.
func TestEncoders(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 3000 {
		x := make([]float32, 256)
		scale := math.Pow(10, float64(n%5)-3)
		for i := range x {
			switch n % 4 {
			case 0:
				x[i] = float32(r.NormFloat64() * scale)
			case 1:
				x[i] = float32(r.Float64() * scale) // all positive
			case 2:
				x[i] = -float32(r.Float64() * scale)
			case 3:
				x[i] = float32(r.NormFloat64() * scale * float64(i/32)) // runs of other sizes, one of zeros
			}
		}
		if n == 0 {
			clear(x)
		}
		for kind, part := range map[TensorType]float64{BF16: 1. / 256, Q4_0: 1.03 / 8, Q4_K: 1.1 / 15, Q6_K: 1.1 / 32} {
			b := encodeValues(nil, kind, x)
			if want := 256 / kind.BlockValues() * kind.BlockBytes(); len(b) != int(want) {
				t.Fatalf("%s: %d bytes: want %d", kind, len(b), want)
			}
			most := math.Abs(float64(extreme(x)))
			for i, v := range decode256(kind, b) {
				if d := math.Abs(v - float64(x[i])); d > part*most+1.5e-4 { // the last place of the smallest scales
					t.Fatalf("%s: value %g of largest %g became %g", kind, x[i], most, v)
				}
			}
		}
	}
}

// TestHalfRoundTrip: fromHalf is the inverse of float16 on all finite halves.
func TestHalfRoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		if h>>10&31 == 31 {
			continue
		}
		if got := fromHalf(uint16(h)); got != float16value(uint16(h)) || float16(got) != uint16(h) {
			t.Fatalf("%#04x became %g", h, got)
		}
	}
}

func TestBfloat16(t *testing.T) {
	for bits, want := range map[uint32]uint16{
		0x3f800000: 0x3f80, 0x3f808000: 0x3f80, 0x3f808001: 0x3f81, 0x3f818000: 0x3f82, 0x7f7fffff: 0x7f80,
		0x80000000: 0x8000, 0xff800000: 0xff80, 0x7f800001: 0x7fc0, 0xbf808001: 0xbf81,
	} {
		if got := bfloat16(math.Float32frombits(bits)); got != want {
			t.Errorf("%#08x became %#04x: want %#04x", bits, got, want)
		}
	}
}
