package stage

import "github.com/kevlard/kevlard"

// tombstones remember the newest fence of sessions that ended here, so that a
// late prepare or item cannot bring one back. The oldest is forgotten first.
type tombstones struct {
	fences map[kevlard.SessionID]kevlard.Fence
	ring   []kevlard.SessionID
	at     int
}

func newTombstones(n int) tombstones {
	return tombstones{fences: map[kevlard.SessionID]kevlard.Fence{}, ring: make([]kevlard.SessionID, n)}
}

func (t *tombstones) add(id kevlard.SessionID, f kevlard.Fence) {
	old, ok := t.fences[id]
	if !ok {
		if gone := t.ring[t.at]; gone != "" {
			delete(t.fences, gone)
		}
		t.ring[t.at] = id
		t.at = (t.at + 1) % len(t.ring)
	}
	if !ok || f.Compare(old) > 0 {
		t.fences[id] = f
	}
}

// covers reports whether work at fence f for the session is over.
func (t *tombstones) covers(id kevlard.SessionID, f kevlard.Fence) bool {
	old, ok := t.fences[id]
	return ok && f.Compare(old) <= 0
}
