package ringbench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kevlard/kevlard/membership"
)

// measured runs in virtual time.
func measured(t *testing.T, cfg Config) Result {
	t.Helper()
	cfg.Virtual = true
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	return r
}

// TestRing measures small rings with both settings.
func TestRing(t *testing.T) {
	for _, settings := range []string{"lan", membership.MemberlistLAN} {
		t.Run(settings, func(t *testing.T) {
			r := measured(t, Config{Settings: settings, Members: 12, Kills: 12, Idle: 60 * time.Second, Soak: 30 * time.Second, Loss: 0.05, Seed: 1})
			if *r.FalseDeaths != 0 || *r.LossFalseDeaths != 0 {
				t.Errorf("false deaths: %d, under loss %d", *r.FalseDeaths, *r.LossFalseDeaths)
			}
			if r.Kills != 12 || r.SoakSeconds != 30 || r.CutShort || r.Starved || r.Clock != "virtual" {
				t.Errorf("not all was measured, or not in virtual time: %+v", r)
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

// TestCancelled wants a ring in virtual time to end with its caller's context.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	_, err := Run(ctx, Config{Settings: "lan", Members: 3, Kills: 1, Idle: 1000 * time.Hour, Virtual: true, Progress: func(string) { cancel(why) }})
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
}

// TestLimit wants a ring that takes too long to end with what it has, and to say so.
func TestLimit(t *testing.T) {
	r := measured(t, Config{Settings: "lan", Members: 3, Kills: 100_000, Idle: 1000 * time.Hour, Soak: 1000 * time.Hour, Limit: time.Nanosecond, Seed: 1})
	if !r.CutShort || r.Kills < 1 || r.Kills == 100_000 || r.FalseDeaths == nil || r.LossFalseDeaths == nil || r.Packets == 0 {
		t.Errorf("got %+v", r)
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
			measured(t, Config{
				Settings: settings, Members: size, Kills: 30, Idle: 30 * time.Second, Soak: time.Minute, Loss: 0.05, Seed: 1,
				Progress: func(s string) { t.Log(s) },
			})
		})
	}
}
