package stage

import "github.com/kevlard/kevlard"

// tombstones remember the newest fence of sessions that ended here, so that a
// late prepare or item cannot bring one back. The oldest is forgotten first.
type tombstones struct {
	fences map[kevlard.SessionID]kevlard.Fence
	ring   []kevlard.SessionID // grows to most
	most   int
	at     int // of the oldest, once the ring is full
}

func newTombstones(n int) tombstones {
	return tombstones{fences: map[kevlard.SessionID]kevlard.Fence{}, most: n}
}

func (t *tombstones) add(id kevlard.SessionID, f kevlard.Fence) {
	old, ok := t.fences[id]
	if !ok {
		if len(t.ring) < t.most {
			t.ring = append(t.ring, id)
		} else {
			delete(t.fences, t.ring[t.at])
			t.ring[t.at] = id
			t.at = (t.at + 1) % t.most
		}
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
