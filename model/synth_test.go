package model

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	half "github.com/x448/float16"
)

func TestSynthIsServable(t *testing.T) {
	for _, typ := range []TensorType{F32, F16, BF16, Q8_0, Q4_0} {
		for _, tied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s tied=%t", typ, tied), func(t *testing.T) {
				s := tinySpec()
				s.Type, s.Tied, s.RopeFactors = typ, tied, tied
				path := synthFile(t, s)
				m := load(t, path, "")
				want := Shape{
					Layers: 3, Dim: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, Vocab: 300, Context: 2048,
					Tied: tied, RopeDim: 16, RopeBase: 10000, RopeScale: 1, Eps: 1e-5,
				}
				if m.Shape != want || m.Name != "synth" {
					t.Errorf("%q: shape %+v: want %+v", m.Name, m.Shape, want)
				}
				tok := tokenizerOf(t, openFile(t, path))
				const text = "Any text, Ünïcode too.\n"
				ids := encode(t, tok, text, true)
				if ids[0] != 298 || decode(tok, ids) != text {
					t.Errorf("%q: %v, back %q", text, ids, decode(tok, ids))
				}
			})
		}
	}
}

func TestSynthIsDeterministic(t *testing.T) {
	read := func(s SynthSpec) []byte {
		b, err := os.ReadFile(synthFile(t, s))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s := tinySpec()
	a, b := read(s), read(s)
	if !bytes.Equal(a, b) {
		t.Error("equal specs give different files")
	}
	s.Seed++
	if bytes.Equal(a, read(s)) {
		t.Error("different seeds give the same file")
	}
	ua, ub := load(t, synthFile(t, tinySpec()), ""), load(t, synthFile(t, s), "")
	for i, u := range ua.Units {
		if u.Digest == ub.Units[i].Digest {
			t.Errorf("unit %s does not depend on the seed", u.Name)
		}
	}
	if ua.Units[1].Digest == ua.Units[2].Digest {
		t.Error("two layers are equal")
	}
}

func TestSynthProgress(t *testing.T) {
	var most, total atomic.Int64
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Synth(path, tinySpec(), func(d, n int64) {
		total.Store(n)
		for o := most.Load(); d > o && !most.CompareAndSwap(o, d); o = most.Load() {
		}
	}); err != nil {
		t.Fatal(err)
	}
	if m := load(t, path, ""); most.Load() != total.Load() || total.Load() != m.Bytes() {
		t.Errorf("%d of %d bytes reported, the model has %d", most.Load(), total.Load(), m.Bytes())
	}
}

func TestSynthSpecErrors(t *testing.T) {
	for _, c := range []struct {
		change func(s *SynthSpec)
		want   []string
	}{
		{func(s *SynthSpec) { s.Layers, s.Vocab = 0, 10 }, []string{"layers 0: want 1 to 1024", "vocab 10: want 258 to"}},
		{func(s *SynthSpec) { s.Dim = 66 }, []string{"dim 66: want an even multiple of 4 heads"}},
		{func(s *SynthSpec) { s.KVHeads = 3 }, []string{"multiple of 3 kv-heads"}},
		{func(s *SynthSpec) { s.FFN = 100 }, []string{"multiples of 32 for type q8_0"}},
		{func(s *SynthSpec) { s.Type = 6 }, []string{"type q5_0: want one of [f32 f16 bf16 q8_0 q4_0 q4_k q6_k]"}},
	} {
		s := tinySpec()
		c.change(&s)
		path := filepath.Join(t.TempDir(), "m.gguf")
		err := Synth(path, s, nil)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("error %v: want %q in it", err, w)
			}
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a file was left behind")
		}
	}
	dir := t.TempDir()
	if err := Synth(filepath.Join(dir, "no", "m.gguf"), tinySpec(), nil); err == nil {
		t.Error("written into a directory that does not exist")
	}
	if err := Synth(dir, tinySpec(), nil); err == nil {
		t.Error("written over a directory")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".synth-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestPresets(t *testing.T) {
	if want := []string{"110m", "llama-1b", "llama-8b"}; !reflect.DeepEqual(PresetNames(), want) {
		t.Errorf("presets %q: want %q", PresetNames(), want)
	}
	// Bytes of the weights by hand: q8_0 has 34 bytes for 32 values.
	q8 := func(n int64) int64 { return n / 32 * 34 }
	for name, want := range map[string]int64{
		"110m": q8(2*16384*768) + 12*(q8(768*(2*768+2*256+3*2048))+2*768*4) + 768*4,
		// Tied: the embedding is in the file once.
		"llama-1b": q8(128256*2048) + 16*(q8(2048*(2*2048+2*512+3*8192))+2*2048*4) + 2048*4,
		"llama-8b": q8(2*128256*4096) + 32*(q8(4096*(2*4096+2*1024+3*14336))+2*4096*4) + 4096*4,
	} {
		s, err := Preset(name)
		if err != nil || s.Validate() != nil {
			t.Fatalf("%s: %v, %v", name, err, s.Validate())
		}
		var got int64
		for _, x := range s.withDefaults().tensors() {
			got += x.Size
		}
		if got != want {
			t.Errorf("%s has %d bytes of weights: want %d", name, got, want)
		}
	}
	if _, err := Preset("gpt-5"); err == nil || !strings.Contains(err.Error(), `"110m" "llama-1b" "llama-8b"`) {
		t.Errorf("error %v", err)
	}
}

func TestSynthWordsDiffer(t *testing.T) {
	seen := make(map[string]int)
	for i := range 200000 {
		s := syllables(i)
		if j, dup := seen[s]; dup {
			t.Fatalf("%d and %d are both %q", i, j, s)
		}
		seen[s] = i
	}
}

// TestFloat16 compares every rounding decision with a library: all halves, the
// midpoints between neighbours and their neighbours, and random numbers.
func TestFloat16(t *testing.T) {
	check := func(x float32) {
		t.Helper()
		got, want := float16(x), float16lib(x)
		if got != want && !math.IsNaN(float64(x)) {
			t.Fatalf("float16(%g) = %#04x: want %#04x", x, got, want)
		}
		if math.IsNaN(float64(x)) && (got&0x7c00 != 0x7c00 || got&0x3ff == 0) {
			t.Fatalf("NaN became %#04x", got)
		}
	}
	for h := range 1 << 16 {
		x := float16value(uint16(h))
		check(x)
		mid := math.Float32bits(x) + 1<<12
		for _, b := range []uint32{mid - 1, mid, mid + 1} {
			check(math.Float32frombits(b))
		}
		y := float16value(uint16(h) + 1)
		check(float32((float64(x) + float64(y)) / 2))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200000 {
		check(math.Float32frombits(r.Uint32()))
	}
}

// TestQ8 compares with q8_0's definition computed in float64: scale and values,
// and the error of the result.
func TestQ8(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 2000 {
		var x [32]float32
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Pow(10, float64(n%7)-4))
		}
		if n == 0 {
			x = [32]float32{}
		}
		b := appendQ8(nil, x)
		if len(b) != 34 {
			t.Fatalf("%d bytes", len(b))
		}
		var most float64
		for _, v := range x {
			most = max(most, math.Abs(float64(v)))
		}
		d := float64(float16value(binary.LittleEndian.Uint16(b)))
		if math.Abs(d-most/127) > most/127/1024+6e-8 {
			t.Fatalf("scale %g: want %g", d, most/127)
		}
		for i, v := range x {
			q := float64(int8(b[2+i]))
			if most > 0 && math.Abs(q-float64(v)/(most/127)) > 0.5001 {
				t.Fatalf("value %g of largest %g became %g of 127", v, most, q)
			}
		}
	}
}

func TestSynthVariance(t *testing.T) {
	for _, c := range []struct {
		fill fill
		want float64
	}{{fillMatrix, 1.0 / 64}, {fillEmbedding, 1}} {
		x := make([]float32, chunkValues)
		c.fill.values(x, 0, chunkValues, 64, rand.NewPCG(1, 1))
		var sum, squares float64
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(len(x))
		if v := squares / n; math.Abs(v/c.want-1) > 0.03 || math.Abs(sum/n) > 0.02*math.Sqrt(c.want) {
			t.Errorf("fill %d: variance %g, mean %g: want %g, 0", c.fill, v, sum/n, c.want)
		}
	}
}

func float16lib(x float32) uint16 { return uint16(half.Fromfloat32(x)) }

func float16value(h uint16) float32 { return half.Frombits(h).Float32() }
