package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// encodeValues appends x in format t, which must be a supported one, to dst. The
// length of x must be a multiple of the format's block. The k formats are encoded
// by range, without the search for the least error that careful converters do.
func encodeValues(dst []byte, t TensorType, x []float32) []byte {
	block := int(t.BlockValues())
	for ; len(x) > 0; x = x[block:] {
		switch t {
		case F32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(x[0]))
		case F16:
			dst = binary.LittleEndian.AppendUint16(dst, float16(x[0]))
		case BF16:
			dst = binary.LittleEndian.AppendUint16(dst, bfloat16(x[0]))
		case Q8_0:
			dst = appendQ8(dst, [32]float32(x))
		case Q4_0:
			dst = appendQ4(dst, [32]float32(x))
		case Q4_K:
			dst = appendQ4K(dst, [256]float32(x))
		case Q6_K:
			dst = appendQ6K(dst, [256]float32(x))
		default:
			panic(fmt.Sprintf("model: no encoder for tensor type %s", t))
		}
	}
	return dst
}

// appendQ8 appends a block of q8_0: a scale d in f16, the largest magnitude over
// 127, and 32 signed bytes x/d.
func appendQ8(dst []byte, x [32]float32) []byte {
	d := float32(math.Abs(float64(extreme(x[:])))) / 127
	inverse := reciprocal(d)
	dst = binary.LittleEndian.AppendUint16(dst, float16(d))
	for _, v := range x {
		dst = append(dst, byte(int8(math.Round(float64(v*inverse)))))
	}
	return dst
}

// appendQ4 appends a block of q4_0: a scale d in f16, which makes the value of
// largest magnitude -8, and 32 numbers of 4 bits, x/d+8; value i shares a byte with
// value i+16, which has the high bits.
func appendQ4(dst []byte, x [32]float32) []byte {
	d := extreme(x[:]) / -8
	inverse := reciprocal(d)
	dst = binary.LittleEndian.AppendUint16(dst, float16(d))
	q := func(v float32) byte { return byte(min(15, float32(v*inverse)+8.5)) }
	for i := range 16 {
		dst = append(dst, q(x[i])|q(x[i+16])<<4)
	}
	return dst
}

// appendQ4K appends a block of q4_k: 8 runs of 32 values q*d*scale - m*min with q
// of 4 bits, the runs' scales and mins of 6 bits, and d and m in f16 for all.
func appendQ4K(dst []byte, x [256]float32) []byte {
	var scale, least [8]float32
	for r := range 8 {
		lo, hi := float32(0), x[32*r]
		for _, v := range x[32*r : 32*r+32] {
			lo, hi = min(lo, v), max(hi, v)
		}
		scale[r], least[r] = (hi-lo)/15, -lo
	}
	d, m := float16(extreme(scale[:])/63), float16(extreme(least[:])/63)
	var sc, mn [8]byte
	var q [256]byte
	for r := range 8 {
		sc[r], mn[r] = steps(scale[r], fromHalf(d), 0, 63), steps(least[r], fromHalf(m), 0, 63)
		step, off := fromHalf(d)*float32(sc[r]), fromHalf(m)*float32(mn[r])
		for i, v := range x[32*r : 32*r+32] {
			q[32*r+i] = steps(v+off, step, 0, 15)
		}
	}
	dst = binary.LittleEndian.AppendUint16(dst, d)
	dst = binary.LittleEndian.AppendUint16(dst, m)
	// The upper two bits of the last four runs lie above the first four's six.
	for r := range 4 {
		dst = append(dst, sc[r]|sc[r+4]>>4<<6)
	}
	for r := range 4 {
		dst = append(dst, mn[r]|mn[r+4]>>4<<6)
	}
	for r := range 4 {
		dst = append(dst, sc[r+4]&15|mn[r+4]<<4)
	}
	for at := 0; at < 256; at += 64 {
		for i := range 32 {
			dst = append(dst, q[at+i]|q[at+32+i]<<4)
		}
	}
	return dst
}

// appendQ6K appends a block of q6_k: 16 runs of 16 values (q-32)*d*scale with q of
// 6 bits, the runs' scales signed bytes, and d in f16 for all.
func appendQ6K(dst []byte, x [256]float32) []byte {
	var scale [16]float32
	for r := range scale {
		scale[r] = extreme(x[16*r:16*r+16]) / -32
	}
	d := float16(float32(math.Abs(float64(extreme(scale[:])))) / 127)
	var sc [16]byte
	var q [256]byte
	for r := range sc {
		sc[r] = steps(scale[r], fromHalf(d), -127, 127)
		step := fromHalf(d) * float32(int8(sc[r]))
		for i, v := range x[16*r : 16*r+16] {
			q[16*r+i] = steps(v, step, -32, 31) + 32
		}
	}
	low := func(a, b int) byte { return q[a]&15 | q[b]&15<<4 }
	for at := 0; at < 256; at += 128 {
		for i := at; i < at+64; i++ {
			dst = append(dst, low(i, i+64))
		}
	}
	for at := 0; at < 256; at += 128 {
		for i := at; i < at+32; i++ {
			dst = append(dst, q[i]>>4|q[i+32]>>4<<2|q[i+64]>>4<<4|q[i+96]>>4<<6)
		}
	}
	dst = append(dst, sc[:]...)
	return binary.LittleEndian.AppendUint16(dst, d)
}

// steps is v in whole steps, kept within lo and hi, as the bits of an int8; 0 if
// the step is 0.
func steps(v, step float32, lo, hi float64) byte {
	if step == 0 {
		return 0
	}
	return byte(int8(min(hi, max(lo, math.Round(float64(v/step))))))
}

// extreme is the value of largest magnitude, with its sign.
func extreme(x []float32) (most float32) {
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(most)) {
			most = v
		}
	}
	return most
}

func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// bfloat16 returns the upper half of x's bits, rounded to nearest, ties to even.
func bfloat16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 { // NaN stays NaN
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
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

// fromHalf is the value of a half-precision number that is finite.
func fromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	if exp == 0 {
		return math.Float32frombits(sign | math.Float32bits(float32(frac)/(1<<24)))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
