package pace

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// TestBucket: over any stretch of time no more leaves than the rate, what was saved up
// and one chunk; and whoever always has something to send gets the whole rate.
func TestBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(MinRate, 10_000_000_000).Draw(t, "rate")
		b := newBucket(rate)
		type sent struct {
			at kevlard.Instant
			n  int
		}
		var all []sent
		now := kevlard.Instant(rapid.Int64Range(0, 1e12).Draw(t, "start"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 1e8).Draw(t, "pause")))
			n := rapid.IntRange(1, b.chunk()).Draw(t, "bytes")
			now = now.Add(b.take(now, n))
			all = append(all, sent{now, n})
		}
		for i := range all {
			total := 0
			for _, s := range all[i:] {
				total += s.n
				most := float64(rate)*(s.at.Sub(all[i].at)+burstTime).Seconds() + float64(b.chunk()) + 64
				if float64(total) > most {
					t.Fatalf("%d bytes within %v at %d bytes/s: want at most %.0f", total, s.at.Sub(all[i].at), rate, most)
				}
			}
		}
		// Greedy: a second's worth takes at most a second and its own last chunk.
		begin, total := now, int64(0)
		for total < rate {
			now = now.Add(b.take(now, b.chunk()))
			total += int64(b.chunk())
		}
		if took := now.Sub(begin); took > time.Second+2*burstTime {
			t.Fatalf("%d bytes took %v at %d bytes/s", total, took, rate)
		}
	})
}

// TestPacer: no rate is no cap; one that is too small is refused.
func TestPacer(t *testing.T) {
	p, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if wait := p.Take(16 << 20); wait != 0 || p.Chunk(5<<20) != 5<<20 {
			t.Errorf("waits %v for chunks of %d bytes", wait, p.Chunk(5<<20))
		}
	}
	for _, rate := range []int64{-1, 1, MinRate - 1} {
		if _, err := New(rate); err == nil {
			t.Errorf("%d bytes/s: accepted", rate)
		}
	}
	if p, err = New(MinRate); err != nil || p.Take(MinRate) != 0 || p.Take(1) == 0 || p.Chunk(1<<20) != 4<<10 {
		t.Errorf("%d bytes/s: %v", MinRate, err)
	}
}
