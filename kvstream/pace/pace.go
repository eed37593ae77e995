// Package pace caps what a node sends, over all peers, connections and transports that
// share a Pacer.
package pace

import (
	"fmt"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
)

// MinRate is the smallest cap in bytes a second: under it a chunk would take longer than a
// connection may stall.
const MinRate = 64 << 10

// Pacer tells how long to wait before bytes may be sent. nil caps nothing.
type Pacer struct {
	began time.Time

	mu     sync.Mutex
	bucket bucket
}

// New returns a pacer of so many bytes a second; nil for 0, which means no cap.
func New(rate int64) (*Pacer, error) {
	switch {
	case rate == 0:
		return nil, nil
	case rate < MinRate:
		return nil, fmt.Errorf("bandwidth is %d bytes/s: want 0 (no cap) or at least %d", rate, MinRate)
	}
	return &Pacer{began: time.Now(), bucket: newBucket(rate)}, nil
}

// Take takes n bytes, at most mover.MaxBody and a header, and returns how long to wait
// before they may be sent.
func (p *Pacer) Take(n int) time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bucket.take(kevlard.Instant(time.Since(p.began)), n)
}

// Chunk is the most bytes to take at once for them to leave evenly, at most the given.
func (p *Pacer) Chunk(most int) int {
	if p == nil {
		return most
	}
	return min(most, p.bucket.chunk())
}
