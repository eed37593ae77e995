package membership

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestSplits splits a ring of eight in virtual time and heals it: it is one ring again
// within 20 s, or within a minute if it lasted so long that memberlist has forgotten the
// dead. KEVLARD_RING_TRIALS is how often, and makes it try all parts and times.
func TestSplits(t *testing.T) {
	times, all := 1, false
	if n, err := strconv.Atoi(os.Getenv("KEVLARD_RING_TRIALS")); err == nil {
		times, all = n, true
	}
	for _, lasts := range []time.Duration{time.Minute, 3 * time.Minute} {
		for _, part := range []int{1, 3, 4} {
			if !all && (part != 3 || lasts > time.Minute) {
				continue
			}
			t.Run(fmt.Sprintf("%d+%d %v", part, 8-part, lasts), func(t *testing.T) {
				var lone, rest, sum, worst time.Duration
				for range times {
					inWorld(t, func(t *testing.T, w *world) {
						procs := w.ring(8)
						time.Sleep(20 * time.Second)
						var a []string
						for i := range part {
							a = append(a, addrOf(i+1))
						}
						w.net.Partition(a)
						began := time.Now()
						sees := func(p *proc, alive int) func() bool {
							return func() bool { return int(p.table.live.Load()) == alive }
						}
						for i, p := range procs {
							alive := 8 - part
							if i < part {
								alive = part
							}
							w.eventually(lasts, "the others are dead", sees(p, alive))
							if took := time.Since(began); i < part {
								lone = max(lone, took)
							} else {
								rest = max(rest, took)
							}
						}
						time.Sleep(time.Until(began.Add(lasts)))
						w.net.Partition()
						healed := w.agree(2*time.Minute, procs...)
						worst = max(worst, healed)
						sum += healed
					})
				}
				t.Logf("all others were dead after %v (part of %d), %v (the rest, or later); one ring %v after the heal, at most %v",
					lone, part, rest, sum/time.Duration(times), worst)
				if limit := min(lasts/3, time.Minute); worst > limit {
					t.Errorf("one ring %v after the heal, want at most %v", worst, limit)
				}
			})
		}
	}
}
