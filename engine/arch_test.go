//go:build cgo

package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	fsggml "github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/ml/backend/ggml"
	ollama "github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"
	_ "github.com/ollama/ollama/model/models/llama"
	_ "github.com/ollama/ollama/model/models/mistral3"
	_ "github.com/ollama/ollama/model/models/qwen2"
	_ "github.com/ollama/ollama/model/models/qwen3"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// allTypes are the served formats of matrices.
var allTypes = []model.TensorType{model.F32, model.F16, model.BF16, model.Q8_0, model.Q4_0, model.Q4_K, model.Q6_K}

// architectures are small models of every architecture and of what differs inside
// one.
func architectures() map[string]model.SynthSpec {
	base := model.SynthSpec{Layers: 3, Dim: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 320, Context: 256, RopeBase: 10000, Seed: 5}
	with := func(change func(*model.SynthSpec)) model.SynthSpec {
		s := base
		change(&s)
		return s
	}
	return map[string]model.SynthSpec{
		"llama":           base,
		"llama3.1":        with(func(s *model.SynthSpec) { s.RopeFactors, s.RopeBase, s.Tied = true, 500000, true }),
		"llama linear":    with(func(s *model.SynthSpec) { s.RopeScale = 4 }),
		"mistral3":        with(func(s *model.SynthSpec) { s.Arch, s.HeadDim, s.RopeBase = "mistral3", 128, 1e6 }),
		"qwen2":           with(func(s *model.SynthSpec) { s.Arch, s.RopeBase = "qwen2", 1e6 }),
		"qwen2 tied":      with(func(s *model.SynthSpec) { s.Arch, s.Tied = "qwen2", true }),
		"qwen3":           with(func(s *model.SynthSpec) { s.Arch, s.HeadDim, s.RopeBase = "qwen3", 128, 1e6 }),
		"qwen3 tied, gqa": with(func(s *model.SynthSpec) { s.Arch, s.Tied, s.KVHeads = "qwen3", true, 1 }),
	}
}

// typesOf are the formats that a model of architectures is tested in: all for the
// plain ones, and one with and one without rounded activations for variants.
func typesOf(name string) []model.TensorType {
	switch name {
	case "llama", "mistral3", "qwen2", "qwen3":
		return allTypes
	default:
		return []model.TensorType{model.F32, model.Q8_0}
	}
}

// openUnmeasured opens a model as k stages without the self-test, which takes
// longer than these models.
func openUnmeasured(t testing.TB, path string, k, cells int) (out []*Stage) {
	t.Helper()
	m, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range split(m.Layers, k) {
		spec := NewSpec(m, l, 1, cells, 512)
		w, file, err := openWeights(spec)
		if err != nil {
			t.Fatal(err)
		}
		s, err := open(w, spec, device{family: CPU}, nil)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		out = append(out, s)
	}
	return out
}

func synthModel(t testing.TB, s model.SynthSpec, kind model.TensorType) string {
	t.Helper()
	s.Type = kind
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := model.Synth(path, s, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// libraryLogits computes the logits after each token with ollama's own code for
// the model's architecture: its loader, its layers, its KV cache.
func libraryLogits(t *testing.T, path string, tokens []kevlard.Token, flash ml.FlashAttentionType) [][]float32 {
	t.Helper()
	computeMu.Lock()
	defer computeMu.Unlock()
	m, err := ollama.New(path, ml.BackendParams{AllocMemory: true, NumThreads: 1, FlashAttention: flash})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Backend().Close()
	if err := m.Backend().Load(t.Context(), func(float32) {}); err != nil {
		t.Fatal(err)
	}
	cache := m.Config().Cache
	cache.Init(m.Backend(), ml.DTypeF32, 1, 256, len(tokens))
	defer cache.Close()
	ctx := m.Backend().NewContext()
	defer ctx.Close()
	b := input.Batch{Inputs: ctx.Input().FromInts(tokens, len(tokens))}
	var rows []int32
	for i := range tokens {
		b.Positions, b.Sequences, rows = append(b.Positions, int32(i)), append(b.Sequences, 0), append(rows, int32(i))
	}
	b.Outputs = ctx.Input().FromInts(rows, len(rows))
	out, err := ollama.Forward(ctx, m, b)
	if err != nil {
		t.Fatal(err)
	}
	ctx.Compute(out)
	all := out.Floats()
	vocab := len(all) / len(tokens)
	var logits [][]float32
	for i := range tokens {
		logits = append(logits, all[i*vocab:(i+1)*vocab])
	}
	return logits
}

// compare returns the largest difference, and at how many positions the greatest
// logit is another though it leads by more than twice that.
func compare(a, b [][]float32) (worst float64, flips int) {
	for i := range a {
		for j := range a[i] {
			worst = max(worst, math.Abs(float64(a[i][j])-float64(b[i][j])))
		}
	}
	lead := func(l []float32) (best int, margin float64) {
		second := math.Inf(-1)
		for i, v := range l {
			switch {
			case v > l[best]:
				best, second = i, float64(l[best])
			case i != best:
				second = max(second, float64(v))
			}
		}
		return best, float64(l[best]) - second
	}
	for i := range a {
		x, margin := lead(a[i])
		if y, _ := lead(b[i]); x != y && margin > 2*worst {
			flips++
		}
	}
	return worst, flips
}

// TestArchitectures compares the logits of every architecture and type with
// ollama's own model code. With flash attention the library computes as we do; without
// it attention is another algorithm, and what is left of float32's rounding is seen
// through the rounding of activations to the matrices' formats.
func TestArchitectures(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	tokens := make([]kevlard.Token, 40)
	for i := range tokens {
		tokens[i] = kevlard.Token(rng.IntN(318))
	}
	for name, spec := range architectures() {
		for _, kind := range typesOf(name) {
			t.Run(strings.ReplaceAll(name, " ", "-")+"/"+kind.String(), func(t *testing.T) {
				path := synthModel(t, spec, kind)
				same := libraryLogits(t, path, tokens, ml.FlashAttentionEnabled)
				other := libraryLogits(t, path, tokens, ml.FlashAttentionDisabled)
				for _, k := range []int{1, 3} {
					h := &history{tokens: tokens}
					alone(t, openUnmeasured(t, path, k, 64), []*history{h})
					flash, flips := compare(h.logits, same)
					plain, flips2 := compare(h.logits, other)
					spread, _ := compare([][]float32{h.logits[0]}, [][]float32{make([]float32, len(h.logits[0]))})
					t.Logf("%d stages: largest logit %.2f; difference to the library with flash attention %.2g, without %.2g", k, spread, flash, plain)
					if flash > 1e-5*spread || plain > 0.05*spread || flips+flips2 > 0 {
						t.Errorf("%d stages: differences %g and %g, %d and %d greedy tokens differ", k, flash, plain, flips, flips2)
					}
				}
			})
		}
	}
}

// TestArchitecturesInvariance: bits do not depend on batch company, chunking, cells
// or the number of stages, whatever the architecture and type.
func TestArchitecturesInvariance(t *testing.T) {
	for name, spec := range architectures() {
		for _, kind := range typesOf(name) {
			t.Run(strings.ReplaceAll(name, " ", "-")+"/"+kind.String(), func(t *testing.T) {
				path := synthModel(t, spec, kind)
				rng := rand.New(rand.NewPCG(31, 32))
				var histories []*history
				for range 6 {
					h := &history{}
					for range 1 + rng.IntN(20) {
						h.tokens = append(h.tokens, kevlard.Token(rng.IntN(318)))
					}
					histories = append(histories, h)
				}
				alone(t, openUnmeasured(t, path, 3, 64), histories)
				for _, k := range []int{1, 2, 3} {
					mix(t, openUnmeasured(t, path, k, 7*64), histories, rng)
				}
			})
		}
	}
}

// TestFormats: what Synth writes in each format, the library reads as the values
// that were meant, to within the format's step.
func TestFormats(t *testing.T) {
	spec := architectures()["llama"]
	read := func(kind model.TensorType) []float32 {
		f, err := model.Open(synthModel(t, spec, kind))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, ok := f.Tensor("blk.1.ffn_down.weight")
		if !ok {
			t.Fatal("no tensor")
		}
		b := make([]byte, x.Size)
		if n, err := f.Data(x).ReadAt(b, 0); n != len(b) {
			t.Fatal(err)
		}
		if kind == model.F32 {
			out := make([]float32, len(b)/4)
			for i := range out {
				out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
			return out
		}
		return ggml.ConvertToF32(b, uint32(kind), x.Shape[0]*x.Shape[1])
	}
	want := read(model.F32)
	most := 0.0
	for _, v := range want {
		most = max(most, math.Abs(float64(v)))
	}
	// Half a step of the largest value, and what rounding the scales adds.
	for kind, bound := range map[model.TensorType]float64{model.F16: 1. / 2048, model.BF16: 1. / 256, model.Q8_0: 0.6 / 127, model.Q4_0: 1.1 / 8, model.Q4_K: 1.3 / 15, model.Q6_K: 1.1 / 32} {
		worst, squares := 0.0, 0.0
		got := read(kind)
		for i, v := range got {
			d := math.Abs(float64(v) - float64(want[i]))
			worst, squares = max(worst, d), squares+d*d
		}
		rms := math.Sqrt(squares / float64(len(got)))
		t.Logf("%v: largest error %.2g of %.2g, mean square %.2g", kind, worst, most, rms)
		if worst > bound*most || rms > bound*most/1.5 {
			t.Errorf("%v: errors up to %g and %g in the mean square, want at most %g", kind, worst, rms, bound*most)
		}
		if kind == model.Q4_0 || kind == model.Q4_K || kind == model.Q6_K {
			// No worse than the library's own quantiser by more than half.
			ref := ggml.ConvertToF32(ggml.Quantize(fsggml.TensorType(kind), want, []uint64{512, 256}), uint32(kind), uint64(len(want)))
			theirs := 0.0
			for i, v := range ref {
				theirs += (float64(v) - float64(want[i])) * (float64(v) - float64(want[i]))
			}
			if squares > 2.25*theirs {
				t.Errorf("%v: %.2g times the library's squared error", kind, squares/theirs)
			}
		}
	}
}

// BenchmarkArchitectures: decode steps of one session by architecture and type.
func BenchmarkArchitectures(b *testing.B) {
	for _, arch := range []string{"llama", "mistral3", "qwen2", "qwen3"} {
		for _, kind := range allTypes {
			b.Run(fmt.Sprintf("%s/%v", arch, kind), func(b *testing.B) {
				spec := model.SynthSpec{Arch: arch, Layers: 4, Dim: 768, Heads: 12, KVHeads: 4, FFN: 2048, Vocab: 4096}
				stages := openUnmeasured(b, synthModel(b, spec, kind), 1, 256)
				chain(b, stages, Part{N: 64, Tokens: make([]kevlard.Token, 64)})
				for b.Loop() {
					chain(b, stages, Part{Pos: 64, N: 1, Tokens: []kevlard.Token{5}, Sample: true})
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
