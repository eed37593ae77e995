package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestSoak is K04: constant load for a long time (20 min, or KEVLARD_SOAK), and a watchdog that
// wants a token of every stream. An engine that stops answering for good now and then must be
// replaced, not waited for, and nothing piles up.
func TestSoak(t *testing.T) {
	const (
		lanes, tokens = 6, 300
		silence       = 20 * time.Second // of one stream
	)
	length := 20 * time.Minute
	if s := os.Getenv("KEVLARD_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatalf("KEVLARD_SOAK: %v", err)
		}
	} else if !long() {
		t.Skip("it takes 20 min: make test-long, or KEVLARD_SOAK=1m for a short one")
	}
	every := min(time.Minute, length/2)
	m := start(t, fourHosts())
	warm := m.background(t, lanes, tokens)
	eventually(t, streamWithin, func() error { return warm.atLeast(2 * lanes) })
	warm.stop(t)
	before := m.settled(t, nil)
	traffic := m.background(t, lanes, tokens)
	hangs, broken := 0, 0
	for end, next := time.Now().Add(length), time.Now().Add(every/2); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // the load goes on meanwhile
		if err := traffic.silent(silence); err != nil {
			t.Errorf("%v; events: %+v", err, m.events(t))
			break
		}
		if time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(every)
		victim := m.Hosts()[hangs%len(m.Hosts())]
		at, old := time.Now(), m.engine(t, victim, 0)
		sessions := m.through(t, victim, "decode")
		m.chaos(t, "freeze", "--engine", "--for", "ever", victim.Name())
		m.engine(t, victim, old)
		m.ready(t)
		hangs++
		broken += m.recoveries(t, sessions, at)
		t.Logf("%v left, %d hangs, %d streams", time.Until(end).Round(time.Second), hangs, traffic.streams.Load())
	}
	traffic.stop(t)
	t.Logf("%v: %d engines hung, %d streams failed over; longest silence of a stream %v", length, hangs, broken, traffic.longest())
	if hangs == 0 || broken == 0 {
		t.Error("nothing was shown")
	}
	for name, h := range m.settled(t, before) {
		t.Logf("%-9s before %s", name, before[name])
		t.Logf("%-9s after  %s", name, h)
	}
}

// silent returns an error if a lane has had no token for so long.
func (b *background) silent(most time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range b.heard {
		if d := time.Since(at); d > most {
			return fmt.Errorf("lane %d has had no token for %v", i, d.Round(time.Millisecond))
		}
	}
	return nil
}

// longest is the longest time between two tokens of a lane.
func (b *background) longest() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gap.Round(time.Millisecond)
}
