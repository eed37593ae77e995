//go:build cgo && linux

package engine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// fakeGPU builds a backend library whose one device says that it is a GPU and computes on
// the CPU, into a directory of its own.
func fakeGPU(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("testdata/fakegpu.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "libggml-cuda.so")
}

// greedyFrom runs prompt through a chain of stages whose cells begin at 0 and returns the next n
// tokens. seen of the prompt is in the cells already.
func greedyFrom(t *testing.T, chain []*Process, prompt []kevlard.Token, seen, n int) []kevlard.Token {
	t.Helper()
	known := slices.Clone(prompt)
	for len(known) < len(prompt)+n {
		part := Part{Pos: seen, N: len(known) - seen, Tokens: known[seen:]}
		var rows []byte
		for i, p := range chain {
			part.Sample = i == len(chain)-1
			if i > 0 {
				part.Tokens = nil
			}
			res, err := p.Forward(t.Context(), Batch{Parts: []Part{part}, Rows: rows})
			if err != nil {
				t.Fatal(err)
			}
			if rows = res.Rows; part.Sample {
				seen = len(known)
				known = append(known, res.Sampled[0].Token)
			}
		}
	}
	return known[len(prompt):]
}

// TestGPUStage runs two stages on a device that is not the CPU, as far as ggml and the
// engine can tell: the same tokens as on the CPU, also when the KV was copied to other
// engines halfway. The model's heads of 32 are those for which CUDA has no flash attention.
func TestGPUStage(t *testing.T) {
	lib := fakeGPU(t)
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	prompt := []kevlard.Token{2046, 79, 110, 101, 32, 117, 112, 111, 110, 32, 97}
	measured := map[bool]Numerics{}
	chain := func(gpu bool) (out []*Process) {
		for _, l := range split(8, 2) {
			spec := specOf(t, path, l, 128, 64)
			if gpu {
				spec.Device, spec.Library = CUDA, lib
			}
			spec.Numerics = measured[gpu] // once is enough
			out = append(out, startEngine(t, spec))
			measured[gpu] = out[len(out)-1].Info().Numerics
		}
		return out
	}
	cpu, gpu, other := chain(false), chain(true), chain(true)
	want := greedyFrom(t, cpu, prompt, 0, 30)
	first := greedyFrom(t, gpu, prompt, 0, 30)
	if !slices.Equal(first, want) {
		t.Fatalf("on the device %v\non the CPU %v", first, want)
	}
	known := slices.Concat(prompt, first)
	for i := range gpu {
		info := gpu[i].Info()
		if info.Device != CUDA || info.Class == cpu[i].Info().Class || info.Class != other[i].Info().Class {
			t.Errorf("%+v beside %+v", info, cpu[i].Info())
		}
		n := len(known) - 1
		kv := make([]byte, n*info.CellBytes)
		if err := gpu[i].Read(t.Context(), 0, n, kv); err != nil {
			t.Fatal(err)
		}
		if err := other[i].Write(t.Context(), 0, n, kv); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, len(kv))
		if err := other[i].Read(t.Context(), 0, n, back); err != nil || !bytes.Equal(back, kv) {
			t.Errorf("what was written is not read back: %v", err)
		}
	}
	unbroken := greedyFrom(t, gpu, known, len(known)-1, 30)
	if rest := greedyFrom(t, other, known, len(known)-1, 30); !slices.Equal(rest, unbroken) {
		t.Errorf("after the KV was copied %v\nwant %v", rest, unbroken)
	}
}

// TestOperationLacking: where the device's library can't compute an operation, ggml would
// take the CPU without a word. The engine says which one it is and does not start, before a
// self-test's numerics or weights are of use.
func TestOperationLacking(t *testing.T) {
	lib := fakeGPU(t)
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	spec := func(lo, hi int, n Numerics) Spec {
		s := specOf(t, path, kevlard.Layers{Lo: lo, Hi: hi}, 128, 64)
		s.Device, s.Library, s.Numerics = CUDA, lib, n
		return s
	}
	n := startEngine(t, spec(0, 8, Numerics{})).Info().Numerics
	for _, op := range []string{"RMS_NORM", "MUL_MAT", "ROPE", "SOFT_MAX", "CONT", "CONCAT", "ADD", "SWIGLU", "SET_ROWS"} {
		t.Setenv("KEVLARD_FAKEGPU_REFUSES", op)
		p, err := startTry(t, spec(4, 8, n))
		if err == nil || !strings.Contains(err.Error(), op) {
			t.Errorf("%s: %v, %v", op, p, err)
		}
	}
	t.Setenv("KEVLARD_FAKEGPU_REFUSES", "ROPE")
	if p, err := startTry(t, spec(4, 8, Numerics{})); err == nil || !strings.Contains(err.Error(), "self-test") || !strings.Contains(err.Error(), "ROPE of ") || !strings.Contains(err.Error(), "must not stand in") {
		t.Errorf("the self-test: %v, %v", p, err)
	}
	// The embedding's rows are looked up on the CPU, where they are, and no others are.
	t.Setenv("KEVLARD_FAKEGPU_REFUSES", "GET_ROWS")
	if p, err := startTry(t, spec(4, 8, n)); err == nil || !strings.Contains(err.Error(), "GET_ROWS") {
		t.Errorf("rows of the last stage: %v, %v", p, err)
	}
	startEngine(t, spec(0, 4, n))
}

// TestNoGPU: what is not a library for this build, or finds no device, is said, and never
// computed on the CPU instead.
func TestNoGPU(t *testing.T) {
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	spec := specOf(t, path, kevlard.Layers{Lo: 0, Hi: 1}, 16, 4)
	spec.Device = CUDA
	if err := spec.Validate(); err == nil {
		t.Error("a GPU without a library is accepted")
	}
	for name, c := range map[string]struct {
		source string
		says   string
		known  string // before it is loaded
	}{
		"no backend":    {"int x;", "no backend for this build", "it has no ggml_backend_init"},
		"other symbols": {"extern int ggml_of_another_version(void); int ggml_backend_init(void) { return ggml_of_another_version(); }", "ggml_of_another_version", "other sources than this program, which lacks ggml_of_another_version (1 in all)"},
	} {
		lib := filepath.Join(t.TempDir(), "libggml-cuda.so")
		cmd := exec.Command("cc", "-shared", "-fPIC", "-o", lib, "-xc", "-")
		cmd.Stdin = strings.NewReader(c.source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := CheckLibrary(lib, os.Args[0]); err == nil || !strings.Contains(err.Error(), c.known) {
			t.Errorf("%s: %v before it is loaded, want %q", name, err, c.known)
		}
		spec.Library = lib
		if p, err := startTry(t, spec); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

// TestCheckLibrary: a library that fits is not refused, nor one for another program's sake.
func TestCheckLibrary(t *testing.T) {
	if err := CheckLibrary(fakeGPU(t), os.Args[0]); err != nil {
		t.Error(err)
	}
	none := filepath.Join(t.TempDir(), "libggml-cuda.so")
	if err := os.WriteFile(none, []byte("<html>not found</html>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckLibrary(none, os.Args[0]); err == nil || !strings.Contains(err.Error(), none+": it can't be read as a library") {
		t.Error(err)
	}
	if err := CheckLibrary(os.Args[0], none); err == nil || !strings.Contains(err.Error(), none) {
		t.Error(err)
	}
}

func startTry(t *testing.T, spec Spec) (*Process, error) {
	t.Helper()
	return Start(t.Context(), os.Args[0], nil, spec, ProcessOptions{Env: []string{roleVariable + "=engine"}})
}

func TestLibrary(t *testing.T) {
	dir := t.TempDir()
	if p, err := Library(dir, CPU); p != "" || err != nil {
		t.Errorf("%q, %v", p, err)
	}
	for d, says := range map[string]string{"": "backend_dir is not set", dir: "scripts/build-cuda-backend.sh"} {
		if _, err := Library(d, CUDA); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", d, err)
		}
	}
	if Family("") != CPU || Family("cuda:1") != CUDA {
		t.Error("families")
	}
}
