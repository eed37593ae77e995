//go:build cgo

package engine

import (
	"testing"

	"github.com/kevlard/kevlard"
)

// TestClass: equal for all layer ranges of one build, and this
// build (llamafile GEMM for q8_0 only; for floats it differs for one row) is invariant.
func TestClass(t *testing.T) {
	class, invariant, err := selfTest(1, device{family: CPU})
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

// TestNumericsAreRemembered: a stage believes what the same program measured with as many
// threads, and nothing else.
func TestNumericsAreRemembered(t *testing.T) {
	spec := specOf(t, modelPath(t, "fairy-7m-q8_0.gguf"), kevlard.Layers{Lo: 0, Hi: 1}, 16, 4)
	open := func(n Numerics) Info {
		t.Helper()
		spec.Numerics = n
		s, err := Open(spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Info()
	}
	first := open(Numerics{})
	if n := first.Numerics; n.Class != first.Class || n.Invariant != first.Invariant || n.Threads != spec.Threads || n.Program.Size == 0 {
		t.Fatalf("it measured %+v", n)
	}
	told := first.Numerics
	told.Class = "as it was told"
	if got := open(told); got.Class != told.Class || got.Numerics != told {
		t.Errorf("measured again: %+v", got.Numerics)
	}
	spec.Numerics = told // to the next life of an engine of this program
	if got := startEngine(t, spec).Info(); got.Class != told.Class || got.Numerics != told {
		t.Errorf("the process measured again: %+v", got.Numerics)
	}
	for name, change := range map[string]func(*Numerics){
		"another program":   func(n *Numerics) { n.Program.ModTime++ },
		"other threads":     func(n *Numerics) { n.Threads++ },
		"no known programs": func(n *Numerics) { *n = Numerics{Threads: spec.Threads, Class: told.Class} },
	} {
		n := told
		change(&n)
		if got := open(n); got.Class != first.Class || got.Numerics != first.Numerics {
			t.Errorf("%s: %+v is believed", name, n)
		}
	}
}

func BenchmarkSelfTest(b *testing.B) {
	for b.Loop() {
		if _, _, err := selfTest(1, device{family: CPU}); err != nil {
			b.Fatal(err)
		}
	}
}
