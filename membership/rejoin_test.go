package membership

import (
	"testing"
	"time"
)

// A death shortens the wait for the next round that is under way: here that wait lasts
// ten minutes, and memberlist has forgotten the dead when the network is whole again.
func TestDeathShortensWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.timer = func(p *profile) { p.rejoinMin, p.rejoinMax = 10*time.Minute, 11*time.Minute }
		procs := w.ring(4)
		time.Sleep(20 * time.Second) // all have made their second round
		w.net.Partition(seedsOf(1, 2))
		time.Sleep(2 * time.Minute)
		for _, p := range procs {
			if n := p.Alive(); n != 2 {
				t.Fatalf("%s sees %d alive in its half, want 2", p.cfg.Name, n)
			}
		}
		w.net.Partition()
		// missMax, and what a round may take
		healed := w.agree(25*time.Second, procs...)
		t.Logf("one ring %v after the heal", healed)
	})
}
