package daemon_test

import (
	"strings"
	"testing"
	"time"
)

// TestOtherSecretIsAnEvent: a node that gossips with another secret is in the event log of
// both sides, once a minute at most, with its address.
func TestOtherSecretIsAnEvent(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	a := r.start("a")
	cfg := r.config("odd")
	cfg.Secret = []byte("fedcba9876543210fedcba9876543210")
	odd := r.run(cfg)
	told := func(m *member) (n int) {
		for _, e := range m.Events(time.Time{}) {
			if e.Type == "refused-peer" && strings.Contains(e.Cause, "gossips with a different secret") && e.Detail != "" {
				n++
			}
		}
		return n
	}
	r.until("both tell of the other", func() bool { return told(a) > 0 && told(odd) > 0 })
	if n := told(a); n != 1 {
		t.Errorf("%d events", n)
	}
	r.until("its status says why it is alone", func() bool {
		for _, p := range odd.Status().Problems {
			if strings.Contains(p.What, "this node is alone in its ring") && strings.Contains(p.What, "different secret") && strings.Contains(p.Fix, "[ring] join") {
				return true
			}
		}
		return false
	})
}
