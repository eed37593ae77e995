package ringbench

import (
	"sync"
	"time"

	"github.com/kevlard/kevlard"
)

// death is one vanished host, and who has seen it.
type death struct {
	index  int
	boot   kevlard.BootID
	killed time.Time

	counted bool
	// Of the watch:
	first, last time.Time
	missing     map[int]bool // members that show it as alive
}

// watch collects when which member shows which vanished host as dead.
type watch struct {
	mu     sync.Mutex
	up     []time.Time       // since when; zero: down
	deaths map[string]*death // by name, those that some member has not seen
}

func newWatch(members int) *watch {
	return &watch{up: make([]time.Time, members), deaths: map[string]*death{}}
}

// grown reports whether member i is up for long enough that all know it, and it
// all.
func (w *watch) grown(i int) bool { return !w.up[i].IsZero() && time.Since(w.up[i]) >= 0 }

// settled says that all know all.
func (w *watch) settled() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.up {
		w.up[i] = time.Now()
	}
}

// expect says that member i vanishes now.
func (w *watch) expect(i int, boot kevlard.BootID) *death {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up[i] = time.Time{}
	for _, d := range w.deaths {
		w.saw(d, i, d.last) // who is down need not see it
	}
	d := &death{index: i, boot: boot, killed: time.Now(), missing: map[int]bool{}}
	for o := range w.up {
		if w.grown(o) {
			d.missing[o] = true
		}
	}
	w.deaths[nameOf(i)] = d
	return d
}

// started says that member i observes, once it knows all.
func (w *watch) started(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up[i] = time.Now().Add(growth)
}

// open returns the deaths that observer has not seen.
func (w *watch) open(observer int) map[string]kevlard.BootID {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]kevlard.BootID{}
	for name, d := range w.deaths {
		if d.missing[observer] {
			out[name] = d.boot
		}
	}
	return out
}

// dead says that observer shows a boot of name as dead.
func (w *watch) dead(observer int, name string, boot kevlard.BootID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.deaths[name]; d != nil && d.boot == boot && d.missing[observer] {
		now := time.Now()
		if d.first.IsZero() {
			d.first = now
		}
		w.saw(d, observer, now)
	}
}

// saw takes observer off the list of a death. The mutex is held.
func (w *watch) saw(d *death, observer int, at time.Time) {
	if !d.missing[observer] {
		return
	}
	delete(d.missing, observer)
	d.last = at
	if len(d.missing) == 0 {
		delete(w.deaths, nameOf(d.index))
	}
}

// over reports whether all have seen it.
func (w *watch) over(d *death) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(d.missing) == 0
}
