package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"
)

// Measurement is what the codec does to some data, on one core.
type Measurement struct {
	Ratio  float64 // original bytes for each encoded one
	Encode float64 // GB (1e9) of originals a second
	Decode float64 // the same
}

// Measure encodes and decodes b again and again, each for about the given time.
func Measure(b []byte, e Elem, each time.Duration) (Measurement, error) {
	var c Codec
	encoded := c.Encode(make([]byte, 0, Bound(len(b), e)), b, e)
	decoded := make([]byte, len(b))
	if err := c.Decode(decoded, encoded); err != nil {
		return Measurement{}, err
	}
	m := Measurement{Ratio: float64(len(b)) / float64(len(encoded))}
	m.Encode = speed(len(b), each, func() { encoded = c.Encode(encoded[:0], b, e) })
	m.Decode = speed(len(b), each, func() { c.Decode(decoded, encoded) }) // it has been decoded before
	return m, nil
}

func speed(bytes int, each time.Duration, f func()) float64 {
	n, began := 0, time.Now()
	for time.Since(began) < each {
		f()
		n += bytes
	}
	return float64(n) / 1e9 / time.Since(began).Seconds()
}

// PaysBelow returns the speed of a link, in GB/s, below which compressing moves a stream
// faster than sending it as it is, for a codec of so many GB/s: the slower of its two ends,
// all the cores that it may use. It works beside the link, so the slower of the two counts. A
// gain of under a tenth is none: compression costs cores that engines could have.
func PaysBelow(ratio, codecGBs float64) float64 {
	const gain = 1.1
	if ratio <= gain {
		return 0
	}
	return codecGBs / gain
}

// Pays reports whether compressing pays on a link of so many GB/s.
func Pays(ratio, codecGBs, linkGBs float64) bool { return linkGBs < PaysBelow(ratio, codecGBs) }

// SyntheticDim is the width of a key or value row of a Llama-3.1-8B layer: 8 KV heads of
// 128.
const SyntheticDim = 1024

// Synthetic makes KV in that shape when the real thing is out of reach: n positions of one layer,
// first n rows of keys, then n rows of values, as little-endian float32, 8 KiB per position. It
// is not taken from a model. Each channel of the keys has its own scale, log-normal over about a
// power of two, one in 32 is an outlier of 8 times that; half the channels have a mean
// of about their scale; values have no mean and a tenth of the scale. From position to position
// each channel is an AR(1) process with coefficient 0.5. Mantissas are full, as
// arithmetic in float32 makes them.
func Synthetic(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]byte, 0, 2*n*SyntheticDim*4)
	for _, values := range []bool{false, true} {
		scale, mean, state := make([]float64, SyntheticDim), make([]float64, SyntheticDim), make([]float64, SyntheticDim)
		for i := range scale {
			scale[i] = math.Exp(r.NormFloat64() * 0.7)
			switch {
			case values:
				scale[i] *= 0.1
			case i%32 == 5:
				scale[i] *= 8
			}
			if !values && i%2 == 0 {
				mean[i] = scale[i] * r.NormFloat64()
			}
			state[i] = r.NormFloat64()
		}
		for range n {
			for i := range state {
				state[i] = 0.5*state[i] + math.Sqrt(0.75)*r.NormFloat64()
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(mean[i]+scale[i]*state[i])))
			}
		}
	}
	return out
}
