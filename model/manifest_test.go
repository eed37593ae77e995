package model

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

func load(t testing.TB, path, cacheDir string) *Manifest {
	t.Helper()
	m, err := Load(path, cacheDir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func digestsOf(m *Manifest) map[string]kevlard.Digest {
	out := make(map[string]kevlard.Digest)
	for _, u := range m.Units {
		out[u.Name] = u.Digest
	}
	return out
}

func TestFairyManifest(t *testing.T) {
	m := load(t, q8Model, "")
	want := Shape{
		Layers: 8, Dim: 256, Heads: 8, KVHeads: 4, HeadDim: 32, FFN: 768, Vocab: 2048, Context: 1024,
		RopeDim: 32, RopeBase: 10000, RopeScale: 1, Eps: 1e-5,
	}
	if m.Shape != want {
		t.Errorf("shape %+v: want %+v", m.Shape, want)
	}
	if m.Name != "fairy" || m.Arch != "llama" || !filepath.IsAbs(m.Path) || !slices.Equal(m.TensorTypes, []string{"f32", "q8_0"}) {
		t.Errorf("manifest %+v", m)
	}
	// Digests are identities that nodes of different versions compare: they may
	// change only together with the version lines in digest.go.
	const id = "sha256:43b69f8c60a380c3e44c0e3a1fe4a27b4e7524e178f25e95406efcd9e44a7ef6"
	if m.ID.String() != id {
		t.Errorf("ID %s: want %s", m.ID, id)
	}
	f := openFile(t, q8Model)
	var bytes int64
	for _, x := range f.Tensors() {
		bytes += x.Size
	}
	if m.Bytes() != bytes {
		t.Errorf("%d bytes: the tensors have %d", m.Bytes(), bytes)
	}
}

// TestStageUnits checks that stages of any split hold all units, layers once.
func TestStageUnits(t *testing.T) {
	spec := tinySpec()
	spec.Layers, spec.RopeFactors = 7, true
	m := load(t, synthFile(t, spec), "")
	rapid.Check(t, func(t *rapid.T) {
		seen := make(map[string]int)
		stages := 0
		for lo := 0; lo < m.Layers; stages++ {
			hi := rapid.IntRange(lo+1, m.Layers).Draw(t, "hi")
			l := kevlard.Layers{Lo: lo, Hi: hi}
			var bytes int64
			for _, u := range m.StageUnits(l) {
				seen[u.Name]++
				bytes += u.Bytes
			}
			if m.StageBytes(l) != bytes || len(m.StageTensors(l)) == 0 {
				t.Fatalf("stage %v: %d bytes in units, StageBytes is %d", l, bytes, m.StageBytes(l))
			}
			lo = hi
		}
		for _, u := range m.Units {
			want := 1
			if u.Name == "globals" {
				want = stages
			}
			if seen[u.Name] != want {
				t.Fatalf("unit %s is in %d of %d stages: want %d", u.Name, seen[u.Name], stages, want)
			}
		}
	})
	for _, l := range []kevlard.Layers{{}, {Lo: 1, Hi: 1}, {Lo: -1, Hi: 2}, {Lo: 0, Hi: 8}, {Lo: 3, Hi: 2}} {
		if u := m.StageUnits(l); u != nil {
			t.Errorf("layers %v have units %v", l, u)
		}
	}
	tied := spec
	tied.Tied = true
	mt := load(t, synthFile(t, tied), "")
	if names := mt.StageTensors(kevlard.Layers{Lo: 6, Hi: 7}); !slices.Contains(names, "token_embd.weight") {
		t.Errorf("the last stage of a tied model lacks the embedding: %q", names)
	}
}

// rewrite parses the model at path and writes it again with another order and
// place of tensors, changed metadata and changed bytes.
func rewrite(t *testing.T, path string, rename func(string) string, put func(w *kvWriter), change func(name string, b []byte)) string {
	t.Helper()
	f := openFile(t, path)
	kvs := &kvWriter{}
	put(kvs)
	replaced := mustParse(t, gguf(kvs))
	for _, k := range f.keys {
		if replaced.Kind(k.key) == "" && k.key != "general.alignment" {
			raw := make([]byte, k.end-k.start)
			if _, err := f.r.ReadAt(raw, k.start); err != nil {
				t.Fatal(err)
			}
			kvs.b, kvs.n = append(kvs.b, raw...), kvs.n+1
		}
	}
	var ts []Tensor
	data := make(map[string][]byte)
	for _, x := range f.Tensors() {
		b := make([]byte, x.Size)
		if _, err := f.Data(x).ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		change(x.Name, b)
		x.Name = rename(x.Name)
		if x.Name == "" {
			continue
		}
		ts = append(ts, x)
		data[x.Name] = b
	}
	slices.Reverse(ts)
	out := gguf(kvs, ts...)
	for _, x := range mustParse(t, out).Tensors() {
		copy(out[x.Offset:], data[x.Name])
	}
	to := filepath.Join(t.TempDir(), "other name.gguf")
	if err := os.WriteFile(to, out, 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

func sameName(n string) string     { return n }
func noKeys(*kvWriter)             {}
func sameBytes(_ string, _ []byte) {}

func TestDigestsMeanTheSameComputation(t *testing.T) {
	path := synthFile(t, tinySpec())
	base := load(t, path, "")
	swap := strings.NewReplacer("blk.0.", "blk.2.", "blk.2.", "blk.0.").Replace
	flip := func(at string) func(string, []byte) {
		return func(n string, b []byte) {
			if n == at {
				b[len(b)-1] ^= 1
			}
		}
	}
	for _, c := range []struct {
		name    string
		path    string
		differs []string // units
		sameID  bool
	}{
		{"moved and described otherwise", rewrite(t, path, sameName, func(w *kvWriter) {
			w.text("general.name", "other")
			w.u32("llama.context_length", 99)
		}, sameBytes), nil, true},
		{"layers swapped", rewrite(t, path, swap, noKeys, sameBytes), []string{"layer.0", "layer.2"}, false},
		{"bit in a layer", rewrite(t, path, sameName, noKeys, flip("blk.1.ffn_up.weight")), []string{"layer.1"}, false},
		{"bit in the embedding", rewrite(t, path, sameName, noKeys, flip("token_embd.weight")), []string{"embedding"}, false},
		{"bit in the output norm", rewrite(t, path, sameName, noKeys, flip("output_norm.weight")), []string{"head"}, false},
		{"rope base", rewrite(t, path, sameName, func(w *kvWriter) { w.f32("llama.rope.freq_base", 5e5) }, sameBytes), []string{"layer.0", "layer.1", "layer.2"}, false},
		{"eps", rewrite(t, path, sameName, func(w *kvWriter) { w.f32("llama.attention.layer_norm_rms_epsilon", 1e-6) }, sameBytes), []string{"head", "layer.0", "layer.1", "layer.2"}, false},
		{"heads", rewrite(t, path, sameName, func(w *kvWriter) {
			w.u32("llama.attention.head_count", 2)
			w.u32("llama.attention.head_count_kv", 1)
			w.u32("llama.attention.key_length", 32)
			w.u32("llama.attention.value_length", 32)
			w.u32("llama.rope.dimension_count", 16)
		}, sameBytes), []string{"layer.0", "layer.1", "layer.2"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := load(t, c.path, "")
			var differs []string
			for name, d := range digestsOf(m) {
				if d != digestsOf(base)[name] {
					differs = append(differs, name)
				}
			}
			slices.Sort(differs)
			if !slices.Equal(differs, c.differs) || (m.ID == base.ID) != c.sameID {
				t.Errorf("units %q differ, same ID %t: want %q, %t", differs, m.ID == base.ID, c.differs, c.sameID)
			}
		})
	}
	swapped := digestsOf(load(t, rewrite(t, path, swap, noKeys, sameBytes), ""))
	if swapped["layer.0"] != digestsOf(base)["layer.2"] {
		t.Error("a layer's digest depends on its number")
	}
	tied := tinySpec()
	tied.Tied = true
	a := load(t, synthFile(t, tied), "")
	// Untie it: give the embedding's bytes the output's name as well.
	b := load(t, untie(t, a.Path), "")
	if !maps.Equal(digestsOf(a), digestsOf(b)) || a.ID != b.ID {
		t.Error("a tied head differs from an untied one with the same bytes")
	}
}

func untie(t *testing.T, path string) string {
	f := openFile(t, path)
	kvs := &kvWriter{}
	raw := make([]byte, f.keys[len(f.keys)-1].end-f.keys[0].start)
	if _, err := f.r.ReadAt(raw, f.keys[0].start); err != nil {
		t.Fatal(err)
	}
	kvs.b, kvs.n = raw, len(f.keys)
	embd, _ := f.Tensor("token_embd.weight")
	head := embd
	head.Name = "output.weight"
	out := gguf(kvs, append(slices.Clone(f.Tensors()), head)...)
	for _, x := range mustParse(t, out).Tensors() {
		from, ok := f.Tensor(x.Name)
		if !ok {
			from = embd
		}
		if _, err := f.Data(from).ReadAt(out[x.Offset:x.Offset+x.Size], 0); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "untied.gguf")
	if err := os.WriteFile(to, out, 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRefused changes one thing of a good model; the error must name it.
func TestRefused(t *testing.T) {
	path := synthFile(t, tinySpec())
	keys := func(put func(w *kvWriter)) string { return rewrite(t, path, sameName, put, sameBytes) }
	rename := func(from, to string) string {
		return rewrite(t, path, func(n string) string {
			if n == from {
				return to
			}
			return n
		}, noKeys, sameBytes)
	}
	retype := func() string { // the same bytes called q5_0, with a shape of the same size
		f := openFile(t, path)
		kvs := &kvWriter{}
		kvs.text("general.architecture", "llama")
		x := slices.Clone(f.Tensors())
		for i := range x {
			if x[i].Name == "blk.1.attn_k.weight" {
				x[i].Type = 6
			}
		}
		for _, k := range f.keys[1:] {
			raw := make([]byte, k.end-k.start)
			if _, err := f.r.ReadAt(raw, k.start); err != nil {
				t.Fatal(err)
			}
			kvs.b, kvs.n = append(kvs.b, raw...), kvs.n+1
		}
		to := filepath.Join(t.TempDir(), "q5.gguf")
		if err := os.WriteFile(to, gguf(kvs, x...), 0o644); err != nil {
			t.Fatal(err)
		}
		return to
	}
	for _, c := range []struct{ name, path, want string }{
		{"architecture", keys(func(w *kvWriter) { w.text("general.architecture", "mamba") }), `architecture "mamba" is not supported: want one of ["llama" "mistral3" "qwen2" "qwen3"]`},
		{"no layers", keys(func(w *kvWriter) { w.u32("llama.block_count", 0) }), `key "llama.block_count": 0: want 1 to 1024`},
		{"too many layers", keys(func(w *kvWriter) { w.u32("llama.block_count", 4) }), `tensor "blk.3.attn_norm.weight" is missing`},
		{"too few layers", keys(func(w *kvWriter) { w.u32("llama.block_count", 2) }), `"blk.2.`},
		{"text for a number", keys(func(w *kvWriter) { w.text("llama.embedding_length", "64") }), "is a string: want a non-negative integer"},
		{"heads by layer", keys(func(w *kvWriter) { w.array("llama.attention.head_count", kindUint32, 1); w.b = append(w.b, 4, 0, 0, 0) }), "layers that differ are not supported"},
		{"kv heads", keys(func(w *kvWriter) { w.u32("llama.attention.head_count_kv", 3) }), "no multiple of 3"},
		{"shape", keys(func(w *kvWriter) { w.u32("llama.feed_forward_length", 97) }), `tensor "blk.0.ffn_gate.weight" has shape [64 96]: want [64 97]`},
		{"huge", keys(func(w *kvWriter) { w.u32("llama.embedding_length", 1<<31) }), "want 1 to"},
		{"experts", keys(func(w *kvWriter) { w.u32("llama.expert_count", 8) }), "mixtures of experts"},
		{"yarn", keys(func(w *kvWriter) { w.text("llama.rope.scaling.type", "yarn") }), `"yarn": want none or linear`},
		{"eps", keys(func(w *kvWriter) { w.f32("llama.attention.layer_norm_rms_epsilon", 0) }), "want positive numbers"},
		{"value length", keys(func(w *kvWriter) { w.u32("llama.attention.value_length", 8) }), "values wider or narrower"},
		{"rope dimensions", keys(func(w *kvWriter) { w.u32("llama.rope.dimension_count", 18) }), "want an even number up to the head's 16"},
		{"vocabulary", keys(func(w *kvWriter) { w.u32("llama.vocab_size", 301) }), "token_embd.weight has 300 rows"},
		{"tokens", keys(func(w *kvWriter) { w.strings("tokenizer.ggml.tokens", []string{"a"}) }), "the tokenizer has 1 tokens but token_embd.weight has 300 rows"},
		{"split", keys(func(w *kvWriter) { w.u32("split.count", 2) }), "one of 2 parts"},
		{"missing tensor", rename("output_norm.weight", ""), `tensor "output_norm.weight" is missing`},
		{"unknown tensor", rename("output.weight", "blk.0.attn_q.bias"), `tensor "blk.0.attn_q.bias" is not part of`},
		{"tensor type", retype(), `tensor "blk.1.attn_k.weight" has type q5_0, which is not supported: want one of [f32 f16 bf16 q8_0 q4_0 q4_k q6_k]`},
		{"directory", t.TempDir(), "not a regular file"},
		{"absent", filepath.Join(t.TempDir(), "no"), "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Load(c.path, ""); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %v: want the path and %q in it", err, c.want)
			}
		})
	}
}

func TestLinearRopeScaling(t *testing.T) {
	path := synthFile(t, tinySpec())
	m := load(t, rewrite(t, path, sameName, func(w *kvWriter) { w.f32("llama.rope.scaling.factor", 4) }, sameBytes), "")
	if m.RopeScale != 4 || m.ID == load(t, path, "").ID {
		t.Errorf("rope scale %g, ID %s", m.RopeScale, m.ID)
	}
}

func TestManifestOpenNoticesChange(t *testing.T) {
	path := synthFile(t, tinySpec())
	m := load(t, path, "")
	f, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Open(); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("error %v", err)
	}
}

func TestLoadStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("node stops")
	l := Loader{Progress: func(string, int64, int64) { cancel(why) }}
	if _, err := l.Load(ctx, synthFile(t, tinySpec())); !errors.Is(err, why) {
		t.Errorf("error %v: want %v", err, why)
	}
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	bad := filepath.Join(dir, "bad.gguf")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.WriteFile(bad, []byte("no"), 0o644),
		os.WriteFile(filepath.Join(dir, "note.txt"), nil, 0o644), os.Mkdir(filepath.Join(dir, "dir.gguf"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := Synth(filepath.Join(sub, "A.GGUF"), tinySpec(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(sub, "A.GGUF"), filepath.Join(dir, "z.gguf")); err != nil {
		t.Fatal(err)
	}
	outside := synthFile(t, tinySpec())
	if err := os.Symlink(outside, filepath.Join(dir, "link.gguf")); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	ms, errs := Scan([]string{dir, sub, missing}, "")
	var paths []string
	for _, m := range ms {
		paths = append(paths, m.Path)
	}
	if want := []string{filepath.Join(dir, "link.gguf"), filepath.Join(sub, "A.GGUF")}; !slices.Equal(paths, want) {
		t.Errorf("found %q: want %q", paths, want)
	}
	if len(errs) != 2 || !strings.Contains(errors.Join(errs...).Error(), bad) || !strings.Contains(errors.Join(errs...).Error(), missing) {
		t.Errorf("errors %v: want one for %s and one for %s", errs, bad, missing)
	}
}

func TestFriendlyName(t *testing.T) {
	for _, c := range []struct{ name, base, size, file, want string }{
		{"Fairy 7M", "fairy", "7M", "fairy-7m-q8_0.gguf", "fairy"},
		{"Meta Llama 3.1 8B Instruct", "Meta-Llama-3.1", "8B", "x.gguf", "meta-llama-3.1-8b-instruct"},
		{"", "", "", "Llama-3.2-1B.Q8_0.gguf", "llama-3.2-1b"},
		{"", "", "", "tiny-Q4_K_M.gguf", "tiny"},
		{" / ", "", "", "my model-f16.gguf", "my-model"},
		{"", "", "", "..gguf", "model"},
	} {
		w := &kvWriter{}
		for k, v := range map[string]string{"name": c.name, "basename": c.base, "size_label": c.size} {
			if v != "" {
				w.text("general."+k, v)
			}
		}
		if got := friendlyName(mustParse(t, gguf(w)), "/dir/"+c.file); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
