package main

import (
	"fmt"
	"io"
	"sync"
)

// progress shows how far a long step is, on one line of stderr, at each full
// percent. Its methods may be called by any number of goroutines.
type progress struct {
	w    io.Writer
	what string

	mu    sync.Mutex
	shown int64 // percent; -1: nothing yet
}

func newProgress(w io.Writer, what string) *progress { return &progress{w: w, what: what, shown: -1} }

func (p *progress) update(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if percent := done * 100 / max(total, 1); percent > p.shown {
		p.shown = percent
		fmt.Fprintf(p.w, "\r%s: %d %% of %s", p.what, percent, byteSize(total))
	}
}

// end finishes the line, if there is one.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown >= 0 {
		fmt.Fprintln(p.w)
	}
}
