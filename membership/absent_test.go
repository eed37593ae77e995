package membership

import (
	"testing"
	"time"
)

// A node that starts anew, alone, knows of how many others it can't say anything; those
// that it meets are not among them, and after a day nobody is.
func TestAbsent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		dir := t.TempDir()
		cfg := w.config(1)
		cfg.DataDir = dir
		first := w.start(cfg)
		procs := []*proc{first}
		for i := 2; i <= 4; i++ {
			procs = append(procs, w.start(w.config(i, addrOf(1))))
		}
		w.agree(10*time.Second, procs...)
		time.Sleep(5 * time.Second)
		if n := first.Absent(); n != 0 {
			t.Errorf("%d are absent, and all are here", n)
		}
		first.kill()
		w.net.Blackhole(addrOf(1), true)
		again := w.start(cfg)
		if n := again.Absent(); n != 3 {
			t.Errorf("%d are absent, want 3", n)
		}
		w.net.Blackhole(addrOf(1), false)
		w.eventually(time.Minute, "all are met again", func() bool { return again.Absent() == 0 })
		again.kill()
		for _, p := range procs[1:] { // a day of gossip takes a minute
			p.kill()
		}
		time.Sleep(25 * time.Hour)
		w.net.Blackhole(addrOf(1), true)
		if n := w.start(cfg).Absent(); n != 0 {
			t.Errorf("%d are absent after a day", n)
		}
	})
}
