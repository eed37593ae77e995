package daemon_test

import (
	"math"
	"testing"
)

// TestClocks compares clocks of daemons on one host, which are the same one: however long
// an answer took, the difference is within what is said of it (and rounded to 1 µs).
func TestClocks(t *testing.T) {
	r := newRing(t)
	a := r.start("a", span(0, 8))
	r.start("b")
	r.start("c")
	r.ready()
	r.until("both answer", func() bool { return len(a.Clocks(t.Context()).Clocks) == 2 })
	got := a.Clocks(t.Context())
	for i, c := range got.Clocks {
		if c.Node != []string{"b", "c"}[i] || math.Abs(c.OffsetMS) > c.WithinMS+0.002 {
			t.Errorf("%+v", c)
		}
	}
	c := r.all()[2]
	r.kill(c)
	r.until("the dead one is not asked", func() bool { return stateOf(a, "c") == "dead" })
	if got := a.Clocks(t.Context()); len(got.Clocks) > 1 {
		t.Errorf("%+v", got)
	}
}
