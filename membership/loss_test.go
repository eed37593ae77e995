package membership

import (
	"os"
	"testing"
	"time"
)

// Loss and a crash under loss: no live node is taken for dead (K30).
func TestLossMakesNoDeaths(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		w.net.Loss(0.05)
		for range 3 * 60 / 5 {
			time.Sleep(5 * time.Second)
			w.agree(time.Millisecond, procs...)
		}
		procs[6].kill()
		w.agree(15*time.Second, without(procs, 6)...)
		procs[6] = w.start(w.config(7, seedsOf(1, 2, 3)...))
		w.agree(15*time.Second, procs...)
	})
}

// K30: a twentieth of the packets is lost and each thing sent comes up to 300 ms late, for
// ten minutes; the members hear each other over the mesh once a second, as daemons do. No
// live node is taken for dead, and a dead one is found. (Without the mesh, gossip alone
// takes one for dead now and then: its probes time out after 150 ms.)
func TestJitterMakesNoDeaths(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		w.net.Loss(0.05)
		w.net.Jitter(300 * time.Millisecond)
		minutes := 2
		if os.Getenv("KEVLARD_E2E_LONG") != "" {
			minutes = 10
		}
		for range 60 * minutes {
			time.Sleep(time.Second)
			for _, p := range procs {
				for _, o := range procs {
					p.Vouch(o.cfg.Name, o.cfg.Meta.Boot)
				}
			}
			w.agree(time.Millisecond, procs...)
		}
		procs[6].kill()
		rest := without(procs, 6)
		t.Logf("a death is seen by all after %v", w.agree(30*time.Second, rest...))
		for _, p := range procs {
			if n := p.FalseDeaths(); n != 0 {
				t.Errorf("%s counts %d false deaths", p.cfg.Name, n)
			}
		}
	})
}
