package kvbench

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestRun measures a little of everything; the figures of a loaded machine mean nothing,
// but they must be there.
func TestRun(t *testing.T) {
	sizes := []int{1 << 10, 256 << 10, 16 << 20}
	said := 0
	results, err := Run(t.Context(), Options{Sizes: sizes, Conns: 2, Rounds: 2, Each: 20 * time.Millisecond, Say: func(string, ...any) { said++ }})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2*len(sizes) || said != len(results) {
		t.Fatalf("%d results, %d lines of progress", len(results), said)
	}
	for i, r := range results {
		name := []string{"tcp-tls", "tcp-plain"}[i/len(sizes)]
		if r.Transport != name || r.Piece != sizes[i%len(sizes)] || r.Speed <= 0 || r.Ceiling <= 0 || r.Ratio <= 0 || r.CPU <= 0 || r.CeilingCPU <= 0 || r.Worst > r.Best || r.Best <= 0 {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if Memcpy(time.Millisecond) <= 0 {
		t.Error("no speed of memcpy")
	}
}

// TestRunEndsWithItsContext interrupts the bare ways and the mover's.
func TestRunEndsWithItsContext(t *testing.T) {
	why := errors.New("interrupted")
	for _, w := range []func() (way, error){
		func() (way, error) { return newMoved(2, true, false) },
		func() (way, error) { return newBare(2, false) },
	} {
		made, err := w()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
		_, err = made.move(ctx, 1<<20, time.Now().Add(time.Hour))
		cancel()
		if err := made.close(); err != nil {
			t.Error(err)
		}
		if !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
	}
}
