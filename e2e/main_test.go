package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// kevlardBin is the binary under test. It is set before the first test and never
// again.
var kevlardBin string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if kevlardBin = os.Getenv("KEVLARD_BIN"); kevlardBin != "" {
		abs, err := filepath.Abs(kevlardBin)
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e: KEVLARD_BIN:", err)
			return 1
		}
		kevlardBin = abs
		return m.Run()
	}
	if os.Getenv("CGO_ENABLED") == "0" {
		fmt.Fprintln(os.Stderr, "e2e: skipped: with CGO_ENABLED=0 the binary has no engine")
		return 0
	}
	dir, err := os.MkdirTemp("", "kevlard-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	kevlardBin = filepath.Join(dir, "kevlard")
	build := exec.Command("go", "build", "-o", kevlardBin, "./cmd/kevlard")
	build.Dir = ".."
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: build kevlard:", err)
		return 1
	}
	return m.Run()
}

// long reports whether tests that take minutes are wanted.
func long() bool { return os.Getenv("KEVLARD_E2E_LONG") != "" }

// needLong skips a test that takes minutes.
func needLong(t *testing.T, takes string) {
	t.Helper()
	if !long() {
		t.Skipf("takes %s: set KEVLARD_E2E_LONG=1 to run it", takes)
	}
}
