package daemon_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/kevlard/kevlard"
)

// TestNothingIsLeft starts and stops rings, some of them under load, and wants
// the goroutines and file descriptors of before. A leak of one for each node or run
// would make nine.
func TestNothingIsLeft(t *testing.T) {
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("file descriptors can't be counted here: %v", err)
		}
		return len(entries)
	}
	cycle := func() {
		r := newRing(t)
		gateway := r.start("gate")
		for _, n := range []kevlard.NodeID{"a", "b"} {
			r.start(n, span(0, 4), span(4, 8))
		}
		r.ready()
		j := newJob(1, 900)
		s, err := gateway.Generate(t.Context(), j.name, j.req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.stopAll()
		r.members = nil
	}
	const once = 5 // goroutines and files that libraries start or open once and keep
	goroutines, files := runtime.NumGoroutine(), fds()
	for range 3 {
		cycle()
	}
	newRing(t).until("goroutines and files are as before", func() bool {
		return runtime.NumGoroutine() <= goroutines+once && fds() <= files+once
	})
}
