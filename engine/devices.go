package engine

import (
	"fmt"
	"os"
	"path/filepath"
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
