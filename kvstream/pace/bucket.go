package pace

import (
	"math"
	"time"

	"github.com/kevlard/kevlard"
)

// bucket paces bytes to a rate. It is a function of the times it is told: it keeps the
// instant at which everything taken so far has been paid for.
type bucket struct {
	rate  int64         // bytes a second
	burst time.Duration // how far behind now the paid instant may lie
	paid  kevlard.Instant
}

// burstTime is how much unused time can be used up at once.
const burstTime = 50 * time.Millisecond

func newBucket(rate int64) bucket {
	return bucket{rate: rate, burst: burstTime, paid: math.MinInt64}
}

// take takes n bytes at time now, which does not go back, and returns how long to wait
// before they may be sent.
func (b *bucket) take(now kevlard.Instant, n int) time.Duration {
	b.paid = max(b.paid, now-kevlard.Instant(b.burst))
	wait := max(0, b.paid.Sub(now))
	b.paid += kevlard.Instant(int64(n) * int64(time.Second) / b.rate)
	return wait
}

// chunkBytes is the largest chunk.
const chunkBytes = 256 << 10

// chunk is the most bytes to take at once: a twentieth of a second's.
func (b *bucket) chunk() int { return int(min(max(b.rate/20, 4<<10), chunkBytes)) }
