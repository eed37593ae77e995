package engine

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Families of devices. The CPU is built in; the others come with a backend library.
const (
	CPU  = "cpu"
	CUDA = "cuda"
)

// Family is the family of a device as configured: that of cuda:1 is CUDA. Empty is the CPU.
func Family(device string) string {
	name, _, _ := strings.Cut(device, ":")
	if name == "" {
		return CPU
	}
	return name
}

// Library returns the path of the backend library of a family in dir, "" for the CPU. It
// is a file libggml-FAMILY.so; nothing is loaded, so that only engines hold a driver's
// context.
func Library(dir, family string) (string, error) {
	if family == CPU {
		return "", nil
	}
	name := "libggml-" + family + ".so"
	if dir == "" {
		return "", fmt.Errorf("[engine] backend_dir is not set: it names the directory of %s", name)
	}
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is not in [engine] backend_dir: build it with scripts/build-cuda-backend.sh: %w", name, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file", path)
	}
	return filepath.Abs(path)
}

// CheckLibrary reports why a backend library does not fit the program at exe, nil if
// nothing is known against it. It reads both files and loads neither. The library takes ggml
// from the program, so what it lacks there shows that it was built from other sources.
func CheckLibrary(path, exe string) error {
	lib, err := dynamicSymbols(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	program, err := dynamicSymbols(exe)
	if err != nil {
		return fmt.Errorf("%s: %w", exe, err)
	}
	if !lib["ggml_backend_init"] {
		return fmt.Errorf("%s is no backend library of ggml: it has no ggml_backend_init", path)
	}
	var lacking []string
	for name, has := range lib {
		if !has && strings.HasPrefix(name, "ggml_") && !program[name] {
			lacking = append(lacking, name)
		}
	}
	slices.Sort(lacking)
	if n := len(lacking); n > 0 {
		return fmt.Errorf("%s was built from other sources than this program, which lacks %s (%d in all)", path, lacking[0], n)
	}
	return nil
}

// dynamicSymbols are those of a file for this machine, and whether it defines them.
func dynamicSymbols(path string) (map[string]bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("it can't be read as a library or program: %w", err)
	}
	defer f.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]; want != elf.EM_NONE && f.Machine != want {
		return nil, fmt.Errorf("it is for another kind of processor (%v)", f.Machine)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("its symbols can't be read: %w", err)
	}
	out := map[string]bool{}
	for _, s := range symbols {
		out[s.Name] = s.Section != elf.SHN_UNDEF
	}
	return out, nil
}
