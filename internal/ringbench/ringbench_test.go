package ringbench

import (
	"context"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kevlard/kevlard/membership"
)

// inBubble measures in virtual time: the figures are those of a machine that is
// never late.
func inBubble(t *testing.T, cfg Config) (r Result) {
	t.Helper()
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = Run(context.Background(), cfg); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // memberlist's timers end by themselves
	})
	t.Logf("%.1f s: %+v", time.Since(began).Seconds(), r)
	return r
}

// TestRing measures small rings with both settings.
func TestRing(t *testing.T) {
	for _, settings := range []string{"lan", membership.MemberlistLAN} {
		t.Run(settings, func(t *testing.T) {
			r := inBubble(t, Config{Settings: settings, Members: 12, Kills: 12, Idle: 60 * time.Second, Soak: 30 * time.Second, Loss: 0.05, Seed: 1})
			if r.FalseDeaths != 0 || r.LossFalseDeaths != 0 {
				t.Errorf("false deaths: %d, under loss %d", r.FalseDeaths, r.LossFalseDeaths)
			}
			// The derivation is of quantiles; a dozen deaths have to be near it.
			if r.First.P50 < 0.7*r.DerivedFirst.P50 || r.First.P50 > 1.4*r.DerivedFirst.P50 || r.First.Max > 1.5*r.DerivedFirst.P99 {
				t.Errorf("first shown dead %+v, derived %+v", r.First, r.DerivedFirst)
			}
			if r.Everyone.P50 < r.First.P50 || r.Everyone.Max > 2*r.DerivedEveryone.P99 {
				t.Errorf("shown dead by all %+v, derived %+v", r.Everyone, r.DerivedEveryone)
			}
			if r.Packets < 1 || r.PacketBytes < 50 || r.StreamBytes <= 0 || r.Streams <= 0 {
				t.Errorf("traffic %+v", r)
			}
		})
	}
}

// TestLargeRing measures a ring of the size that KEVLARD_RING_SIZE says with both
// settings, as docs/operating.md shows it. A thousand members take minutes.
func TestLargeRing(t *testing.T) {
	size, err := strconv.Atoi(os.Getenv("KEVLARD_RING_SIZE"))
	if err != nil {
		t.Skip("KEVLARD_RING_SIZE is not set: this takes minutes")
	}
	for _, settings := range []string{"lan", membership.MemberlistLAN} {
		t.Run(settings, func(t *testing.T) {
			inBubble(t, Config{
				Settings: settings, Members: size, Kills: 30, Idle: 3 * time.Minute, Soak: time.Minute, Loss: 0.05, Seed: 1,
				Progress: func(s string) { t.Log(s) },
			})
		})
	}
}
