//go:build cgo && linux

package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ggmlSources is ml/backend/ggml/ggml of the module.
func ggmlSources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/ollama/ollama").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "ml/backend/ggml/ggml")
}

// nvcc stands in for CUDA's compiler: it logs its arguments, compiles the stand-in for
// ggml-cuda.cu, nothing for the others, and links them. It fails at the file that BREAK names.
const nvcc = `#!/bin/sh
echo "$*" >>"$LOG"
out='' src='' shared='' objects=''
while [ $# -gt 0 ]; do
	case $1 in
	-o) out=$2; shift ;;
	-c) src=$2; shift ;;
	-shared) shared=yes ;;
	*.o) objects="$objects $1" ;;
	esac
	shift
done
[ -z "$shared" ] || exec g++ -shared -o "$out" $objects
case $src in
*/"$BREAK") echo "$BREAK: error" >&2; exit 1 ;;
*/ggml-cuda.cu) exec g++ -std=c++17 -O1 -fPIC -fvisibility=hidden "-I$GGML/include" "-I$GGML/src" -c "$FAKE" -o "$out" ;;
*) exec g++ -xc++ -fPIC -c /dev/null -o "$out" ;;
esac
`

// TestCUDABuild runs the build of CUDA's library with a compiler that stands in for nvcc: it
// is given the files that ggml's own build has, for the chip that was asked for, and what
// comes out is a library that an engine computes with. A file that does not compile is named.
func TestCUDABuild(t *testing.T) {
	src, dir := ggmlSources(t), t.TempDir()
	log, fake := filepath.Join(dir, "log"), "testdata/fakegpu.cpp"
	if abs, err := filepath.Abs(fake); err == nil {
		fake = abs
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/nvcc"), []byte(nvcc), 0o755); err != nil {
		t.Fatal(err)
	}
	build := func(out, breaks string) (string, error) {
		cmd := exec.Command("../scripts/build-cuda-backend.sh", "--arch", "90", "--sources", src, out)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "LOG="+log, "GGML="+src, "FAKE="+fake, "BREAK="+breaks)
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	out := filepath.Join(dir, "out")
	if text, err := build(out, "fattn.cu"); err == nil || !strings.Contains(text, "ggml-cuda/fattn.cu failed") {
		t.Errorf("a file that does not compile: %v, %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(out, "libggml-cuda.so")); err == nil {
		t.Error("a library is there although a file did not compile")
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if text, err := build(out, "none"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var compiled []string
	for line := range strings.Lines(string(text)) {
		_, after, ok := strings.Cut(line, " -c ")
		if !ok {
			continue
		}
		for _, flag := range []string{"-gencode arch=compute_90,code=sm_90", "-DGGML_BACKEND_DL", "-DGGML_BACKEND_BUILD", "-fPIC", "-I" + src + "/include"} {
			if !strings.Contains(line, flag) {
				t.Errorf("%q lacks %s", line, flag)
			}
		}
		name, _, _ := strings.Cut(after, " ")
		compiled = append(compiled, name)
	}
	slices.Sort(compiled)
	if want := cudaFiles(t, src); !slices.Equal(compiled, want) {
		t.Errorf("compiled %d files, want the %d of ggml's own build", len(compiled), len(want))
	}
	spec := specOf(t, modelPath(t, "fairy-7m-q8_0.gguf"), split(8, 1)[0], 128, 64)
	spec.Device, spec.Library = CUDA, filepath.Join(out, "libggml-cuda.so")
	if info := startEngine(t, spec).Info(); info.Device != CUDA {
		t.Errorf("%+v", info)
	}
}

// cudaFiles are the files of ggml's own build for CUDA, without attention for all pairs of
// types.
func cudaFiles(t *testing.T, src string) (out []string) {
	t.Helper()
	dir := filepath.Join(src, "src/ggml-cuda")
	text, err := os.ReadFile(filepath.Join(dir, "CMakeLists.txt"))
	if err != nil {
		t.Fatal(err)
	}
	without := regexp.MustCompile(`(?s)if \(GGML_CUDA_FA_ALL_QUANTS\).*?else\(\)`).ReplaceAllString(string(text), "")
	for _, m := range regexp.MustCompile(`file\(GLOB +\w+ "([^"]+\.cu)"\)`).FindAllStringSubmatch(without, -1) {
		files, err := filepath.Glob(filepath.Join(dir, m[1]))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", m[1], files, err)
		}
		out = append(out, files...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestCUDASymbols: CUDA's library takes ggml from the program that loads it, so each function
// of ggml that its sources name must be there, or be defined in a header or in them.
func TestCUDASymbols(t *testing.T) {
	src := ggmlSources(t)
	read := func(patterns ...string) string {
		var b strings.Builder
		for _, p := range patterns {
			files, err := filepath.Glob(filepath.Join(src, p))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %v, %v", p, files, err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				b.Write(text)
			}
		}
		return b.String()
	}
	headers := read("include/*.h", "src/ggml-impl.h", "src/ggml-backend-impl.h")
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(?:ggml|gguf)_\w+`).FindAllString(read("src/ggml-cuda/*.cu", "src/ggml-cuda/*.cuh"), -1) {
		named[name] = true
	}
	exported, err := dynamicSymbols(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	inline := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:static|inline)[^;(]*?\b(ggml_\w+)\(`).FindAllStringSubmatch(headers, -1) {
		inline[m[1]] = true
	}
	needed := 0
	for _, m := range regexp.MustCompile(`\b((?:ggml|gguf)_\w+) *\([^*]`).FindAllStringSubmatch(headers, -1) {
		name := m[1]
		if !named[name] || inline[name] || strings.HasPrefix(name, "ggml_backend_cuda_") || name == "ggml_backend_is_cuda" {
			continue
		}
		inline[name] = true // once is enough
		needed++
		if !exported[name] {
			t.Errorf("%s is not there for the library", name)
		}
	}
	if needed < 30 {
		t.Errorf("only %d functions were looked for", needed)
	}
}
