package stage

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// play runs batches of one row, one every 100 ms, and returns what was shown after each
// second; took says how long the nth of them takes.
func play(t *tempo, now *kevlard.Instant, d time.Duration, took func(n int) time.Duration) (shown []time.Duration) {
	for n := range int(d / (100 * time.Millisecond)) {
		*now = now.Add(100 * time.Millisecond)
		t.batch(*now, 1, took(n), 20*time.Second)
		if n%10 == 9 {
			shown = append(shown, t.shown)
		}
	}
	return shown
}

func steady(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// TestTempoFollows: a device that is throttled by half, or halted half of the time, shows
// after a minute, and when it is over, in a third of that.
func TestTempoFollows(t *testing.T) {
	for name, slow := range map[string]func(int) time.Duration{
		"throttled": steady(20 * time.Millisecond),
		"halted now and then": func(n int) time.Duration {
			if n%4 == 0 {
				return 50 * time.Millisecond
			}
			return 10 * time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m tempo
			now := kevlard.Instant(1)
			if s := play(&m, &now, 70*time.Second, steady(10*time.Millisecond)); s[55] != 0 || s[69] != 10*time.Millisecond {
				t.Fatalf("at first: %v", s)
			}
			if s := play(&m, &now, 90*time.Second, slow); s[39] != 10*time.Millisecond || s[89].Round(time.Millisecond) != 20*time.Millisecond {
				t.Errorf("slow: %v", s)
			}
			if s := play(&m, &now, 45*time.Second, steady(10*time.Millisecond)); s[44] != 10*time.Millisecond {
				t.Errorf("fast again: %v", s)
			}
		})
	}
}

// TestTempoIsDeaf: no freeze of up to a window moves what is shown, nor does noise, nor do
// batches of more rows.
func TestTempoIsDeaf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m tempo
		now := kevlard.Instant(1)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		noise := func(int) time.Duration {
			return 9*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Millisecond)))
		}
		freeze := func(int) time.Duration { return time.Duration(10+rng.IntN(990)) * time.Millisecond }
		play(&m, &now, 70*time.Second, noise)
		before := m.shown
		if before == 0 {
			t.Fatal("nothing is shown after 70 s")
		}
		for range rapid.IntRange(1, 4).Draw(t, "freezes") {
			play(&m, &now, 60*time.Second, noise)
			play(&m, &now, time.Duration(rapid.IntRange(0, 19).Draw(t, "seconds"))*time.Second, freeze)
			m.batch(now, 64, time.Minute, 20*time.Second)
		}
		if m.shown != before {
			t.Fatalf("%v is shown, %v before", m.shown, before)
		}
	})
}

// TestTempoOfFew: rows that come seldom are measured over a longer time.
func TestTempoOfFew(t *testing.T) {
	var m tempo
	now := kevlard.Instant(1)
	for range tempoRows*tempoWindows - 1 {
		now = now.Add(3 * time.Second)
		if m.batch(now, 1, time.Millisecond, 20*time.Second) {
			t.Fatal("shown after too few rows")
		}
	}
	if !m.batch(now.Add(3*time.Second), 1, time.Millisecond, 20*time.Second) || m.shown != time.Millisecond {
		t.Errorf("%v is shown", m.shown)
	}
	if m.restart(); m.shown != 0 || m.busy != tempoRows*tempoWindows*time.Millisecond {
		t.Errorf("another engine: %v is shown, busy for %v", m.shown, m.busy)
	}
}
