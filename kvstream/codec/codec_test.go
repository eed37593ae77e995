package codec

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/x448/float16"
	"pgregory.net/rapid"
)

// roundTrip encodes, checks the bound, decodes and compares.
func roundTrip(t interface{ Fatalf(string, ...any) }, c *Codec, b []byte, e Elem) []byte {
	encoded := c.Encode([]byte("before"), b, e)
	if !bytes.HasPrefix(encoded, []byte("before")) {
		t.Fatalf("Encode does not append")
	}
	encoded = encoded[6:]
	if len(encoded) > Bound(len(b), e) {
		t.Fatalf("%d bytes became %d, bound %d", len(b), len(encoded), Bound(len(b), e))
	}
	n, err := Len(encoded)
	if err != nil || n != len(b) {
		t.Fatalf("Len: %d, %v, want %d", n, err, len(b))
	}
	got := make([]byte, n)
	if err := c.Decode(got, encoded); err != nil {
		t.Fatalf("Decode: %v", err)
	}
	if !bytes.Equal(got, b) {
		t.Fatalf("%d bytes of %d-byte elements come back changed", len(b), e)
	}
	return encoded
}

// floats are n float32 of the given kind.
func floats(kind string, n int, r *rand.Rand) []byte {
	var b []byte
	for range n {
		v := float32(r.NormFloat64())
		switch kind {
		case "zero":
			v = 0
		case "odd":
			v = math.Float32frombits([]uint32{0x7fc00001, 0xff800000, 1, 0x80000000, 0x7f7fffff}[r.IntN(5)])
		}
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	var c Codec
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom([]Elem{F32, F16}).Draw(t, "elem")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		var b []byte
		switch kind := rapid.SampledFrom([]string{"bytes", "random", "zero", "odd", "normal"}).Draw(t, "kind"); kind {
		case "bytes":
			b = rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "bytes")
		case "random":
			b = make([]byte, rapid.IntRange(0, 50_000).Draw(t, "size"))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		default:
			b = floats(kind, rapid.SampledFrom([]int{0, 1, 63, 64, 65, 5000, block, block + 1}).Draw(t, "count"), r)
		}
		b = b[:max(0, len(b)-rapid.IntRange(0, 3).Draw(t, "cut"))]
		roundTrip(t, &c, b, e)
	})
}

func TestLargestOriginal(t *testing.T) {
	var c Codec
	b := make([]byte, MaxLen)
	r := rand.NewPCG(1, 1)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64()>>(i>>18))
	}
	roundTrip(t, &c, b, F32)
	defer func() {
		if recover() == nil {
			t.Error("a byte more does not panic")
		}
	}()
	c.Encode(nil, append(b, 0), F32)
}

// TestOneCodecForAll uses one from many goroutines.
func TestOneCodecForAll(t *testing.T) {
	var c Codec
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for range 20 {
				roundTrip(t, &c, floats("normal", 1+r.IntN(20_000), r), F32)
			}
		})
	}
	all.Wait()
}

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	var c Codec
	good := c.Encode(nil, floats("normal", 1000, rand.New(rand.NewPCG(1, 1))), F32)
	for want, change := range map[string]func(b []byte) []byte{
		"5 bytes, want at least 6":     func(b []byte) []byte { return b[:5] },
		"byte 0: version 2, want 1":    func(b []byte) []byte { b[0] = 2; return b },
		"byte 1: elements of 3 bytes":  func(b []byte) []byte { b[1] = 3; return b },
		"want at most 16777216":        func(b []byte) []byte { b[2] = 0xff; return b },
		"a buffer of 4000 bytes for":   func(b []byte) []byte { b[5]++; return b },
		"byte 6: block of method 9":    func(b []byte) []byte { b[6] = 9; return b },
		"byte 6: block of 4278":        func(b []byte) []byte { b[7] = 0xff; return b },
		"1 bytes after the planes":     func(b []byte) []byte { return append(b, 0) },
		"ends within the head of a bl": func(b []byte) []byte { return b[:headLen+3] },
	} {
		err := c.Decode(make([]byte, 4000), change(bytes.Clone(good)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	var c Codec
	r := rand.New(rand.NewPCG(1, 1))
	f.Add(c.Encode(nil, floats("normal", 300, r), F32))
	f.Add(c.Encode(nil, floats("zero", 300, r), F16))
	f.Add(c.Encode(nil, []byte("abc"), F16))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := Len(b)
		if err != nil || n > 1<<20 {
			return
		}
		got := make([]byte, n)
		if c.Decode(got, b) == nil {
			roundTrip(t, &c, got, Elem(b[1]))
		}
	})
}

// TestRatio holds what the package comment claims, on the synthetic KV; how fast is for
// kevlard bench kv to say.
func TestRatio(t *testing.T) {
	b := Synthetic(256, 1)
	if len(b) != 256*2*SyntheticDim*4 {
		t.Fatalf("%d bytes", len(b))
	}
	half := make([]byte, 0, len(b)/2)
	for i := 0; i < len(b); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))
		half = binary.LittleEndian.AppendUint16(half, float16.Fromfloat32(v).Bits())
	}
	for _, test := range []struct {
		name string
		data []byte
		elem Elem
		want float64
	}{{"f32", b, F32, 1.12}, {"f16", half, F16, 1.08}} {
		m, err := Measure(test.data, test.elem, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: ratio %.3f", test.name, m.Ratio)
		if m.Ratio < test.want || m.Encode <= 0 || m.Decode <= 0 {
			t.Errorf("%s: %+v, want a ratio of at least %.2f", test.name, m, test.want)
		}
	}
}

func TestPays(t *testing.T) {
	for _, test := range []struct {
		name               string
		ratio, codec, link float64
		want               bool
	}{
		{"WAN of 1 Gbit/s", 1.2, 1, 0.125, true},
		{"10 Gbit/s, codec as fast as the link", 1.2, 1.25, 1.25, false},
		{"10 Gbit/s, four cores", 1.2, 4, 1.25, true},
		{"100 Gbit/s", 1.2, 4, 12.5, false},
		{"incompressible", 1.0, 100, 0.1, false},
		{"too little", 1.05, 100, 0.1, false},
	} {
		if got := Pays(test.ratio, test.codec, test.link); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	var c Codec
	data := Synthetic(128, 1)
	out := make([]byte, 0, Bound(len(data), F32))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		out = c.Encode(out[:0], data, F32)
	}
}

func BenchmarkDecode(b *testing.B) {
	var c Codec
	data := Synthetic(128, 1)
	in := c.Encode(nil, data, F32)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := c.Decode(data, in); err != nil {
			b.Fatal(err)
		}
	}
}
