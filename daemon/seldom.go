package daemon

import (
	"sync"
	"time"
)

// seldomEvery is how often an equal trouble becomes an event; seldomKeys bounds
// the troubles remembered. When full, all are forgotten, so some come early.
const (
	seldomEvery = time.Minute
	seldomKeys  = 256
)

// seldom keeps a peer's misbehaviour from filling the event log.
type seldom struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (s *seldom) allow(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if at, ok := s.last[key]; ok && now.Sub(at) < seldomEvery {
		return false
	}
	if s.last == nil || len(s.last) >= seldomKeys {
		s.last = map[string]time.Time{}
	}
	s.last[key] = now
	return true
}
