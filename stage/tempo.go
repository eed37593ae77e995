package stage

import (
	"time"

	"github.com/kevlard/kevlard"
)

// tempo measures how long the engine takes for one row, so that a device that is slower
// than others shows. Batches of one row are alike wherever they run; larger ones are not.
// It is the mean of a window, since a device that is halted half of the time is fast in
// between, and the least of the last windows, since anything may slow a host down for
// some seconds. What is shown moves only with a change that matters.
type tempo struct {
	busy time.Duration // with batches of any size, since the stage is there

	begun   kevlard.Instant // of the window; 0: none
	rows    int             // of the window
	took    time.Duration   // for them
	windows []time.Duration // means of the last, the oldest first
	shown   time.Duration   // 0: not known
}

const (
	tempoRows    = 20 // a window with fewer goes on
	tempoWindows = 3
)

// batch takes a batch that has been computed, and reports whether what is shown changed.
// A window is as long as is said, at least.
func (t *tempo) batch(now kevlard.Instant, rows int, took, window time.Duration) (changed bool) {
	t.busy += took
	if rows != 1 {
		return false
	}
	if t.begun == 0 {
		t.begun = now
	}
	t.rows++
	t.took += took
	if now.Sub(t.begun) < window || t.rows < tempoRows {
		return false
	}
	if len(t.windows) == tempoWindows {
		t.windows = append(t.windows[:0], t.windows[1:]...)
	}
	t.windows = append(t.windows, max(1, t.took/time.Duration(t.rows)))
	t.begun, t.rows, t.took = 0, 0, 0
	if len(t.windows) < tempoWindows {
		return false
	}
	least := t.windows[0]
	for _, w := range t.windows {
		least = min(least, w)
	}
	if d := least - t.shown; 4*max(d, -d) < t.shown {
		return false
	}
	t.shown = least
	return true
}

// restart forgets what another engine did.
func (t *tempo) restart() { *t = tempo{busy: t.busy} }
