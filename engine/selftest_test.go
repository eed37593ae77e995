//go:build cgo

package engine

import (
	"testing"

	"github.com/kevlard/kevlard"
)

// TestClass: equal for all layer ranges of one build, and this
// build (llamafile GEMM for q8_0 only; for floats it differs for one row) is invariant.
func TestClass(t *testing.T) {
	class, invariant, err := selfTest(1)
	if err != nil || len(class) != 32 || !invariant {
		t.Fatalf("class %q, invariant %v, error %v", class, invariant, err)
	}
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	for _, l := range []kevlard.Layers{{Lo: 0, Hi: 1}, {Lo: 3, Hi: 8}} {
		s, err := Open(specOf(t, path, l, 16, 4), nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.info.Class != class || !s.info.Invariant {
			t.Errorf("layers %v: class %q, invariant %v; want %q, true", l, s.info.Class, s.info.Invariant, class)
		}
		s.Close()
	}
}

func BenchmarkSelfTest(b *testing.B) {
	for b.Loop() {
		if _, _, err := selfTest(1); err != nil {
			b.Fatal(err)
		}
	}
}
