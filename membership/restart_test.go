package membership

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// A node that is killed and comes back within seconds is a new life, and no verdict on the
// old one hits it: neither where the restart was not heard of yet, nor at a member that was
// restarted too and knows of neither life, so that it would take the old verdict for one on
// the new.
func TestRestartIsNoDeath(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		w.net.Loss(0.02)
		rng := rand.New(rand.NewPCG(1, 1))
		sleep := func(below time.Duration) { time.Sleep(rand64(rng, below)) }
		record := uint64(1)
		churn := func(p *proc) { // as a node does whose stages load
			for range rng.IntN(8) {
				record++
				p.SetRecord(record)
				sleep(150 * time.Millisecond)
			}
		}
		counted := func() (sum uint64) {
			for _, p := range w.procs {
				sum += p.FalseDeaths()
			}
			return sum
		}
		trials := 100
		if os.Getenv("KEVLARD_E2E_LONG") != "" {
			trials = 1000 // half a minute; without the fix, one in 200 is hit
		}
		for trial := range trials {
			before := counted()
			victims := []int{rng.IntN(len(procs))}
			if other := rng.IntN(len(procs)); other != victims[0] {
				victims = append(victims, other)
			}
			down := rand64(rng, 4*time.Second)
			for _, i := range victims {
				churn(procs[i])
				procs[i].kill()
			}
			time.Sleep(down)
			for _, i := range victims {
				procs[i] = w.start(w.config(i+1, seedsOf(1, 2, 3)...))
				churn(procs[i])
			}
			w.agree(time.Minute, procs...)
			sleep(6 * time.Second)
			if n := counted() - before; n > 0 {
				t.Errorf("trial %d: nodes %v were down for %v; after it %d members took one for dead that lived", trial, victims, down, n)
			}
		}
	})
}

func rand64(rng *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(below)))
}

// Incarnations of lives grow with the clock, whatever they said; a clock that makes no
// sense is no harm.
func TestSeniority(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	if a, b := seniority(now), seniority(now.Add(time.Second)); b != a+10 {
		t.Errorf("%d, and a second later %d", a, b)
	}
	for _, odd := range []time.Time{{}, time.Unix(0, 0), seniorSince(), seniorSince().AddDate(20, 0, 0)} {
		if n := seniority(odd); n != 1 {
			t.Errorf("in %v: %d, want 1", odd, n)
		}
	}
}
