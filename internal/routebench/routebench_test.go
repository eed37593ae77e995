package routebench_test

import (
	"testing"

	"github.com/kevlard/kevlard/internal/routebench"
)

// TestDecisionsAllocateNothing, and most go where the prefix is.
func TestDecisionsAllocateNothing(t *testing.T) {
	for _, nodes := range []int{4, 64, 1000} {
		m := routebench.New(nodes, 10_000)
		same, found := 0, true
		const decisions = 200
		for range decisions { // the buffers grow
			ok, at := m.Decide()
			found = found && ok
			if at {
				same++
			}
		}
		if !found || same < decisions*3/4 {
			t.Errorf("%d nodes: all found %v, %d of %d decisions went where the prefix is", nodes, found, same, decisions)
		}
		if n := testing.AllocsPerRun(100, func() { m.Decide() }); n != 0 {
			t.Errorf("%d nodes: %v allocations per decision", nodes, n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	m := routebench.New(64, 10_000)
	for b.Loop() {
		m.Decide()
	}
}
