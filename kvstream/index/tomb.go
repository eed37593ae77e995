package index

import "github.com/kevlard/kevlard"

// tombs remember the newest fence of sessions that were closed at a stage, so that
// late rows and offers cannot bring a copy back. The oldest is forgotten first.
type tombs struct {
	fences map[tomb]kevlard.Fence
	ring   []tomb
	at     int
}

type tomb struct {
	session kevlard.SessionID
	lo      int
}

func newTombs(n int) tombs { return tombs{fences: map[tomb]kevlard.Fence{}, ring: make([]tomb, n)} }

func (t *tombs) add(id kevlard.SessionID, lo int, f kevlard.Fence) {
	k := tomb{id, lo}
	old, ok := t.fences[k]
	if !ok {
		if gone := t.ring[t.at]; gone.session != "" {
			delete(t.fences, gone)
		}
		t.ring[t.at] = k
		t.at = (t.at + 1) % len(t.ring)
	}
	if !ok || f.Compare(old) > 0 {
		t.fences[k] = f
	}
}

func (t *tombs) covers(id kevlard.SessionID, lo int, f kevlard.Fence) bool {
	old, ok := t.fences[tomb{id, lo}]
	return ok && f.Compare(old) <= 0
}
