package membership

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

func TestTombsAreBounded(t *testing.T) {
	now := time.Now()
	tab := newTable("self", Meta{Peer: "p", Boot: "b"})
	for i := range maxTombs + 10 {
		name := kevlard.NodeID(fmt.Sprintf("n%04d", i))
		tab.alive(name, "10.0.0.1:1", Meta{Peer: "q", Boot: "b"}, now)
		tab.lost(name, now.Add(time.Duration(i)*time.Second))
	}
	now = now.Add(time.Hour)
	tab.sweep(now)
	if m := tab.members(); len(m) != maxTombs || m[0].Name != "n0010" {
		t.Errorf("%d members from %s on, want the newest %d", len(m), m[0].Name, maxTombs)
	}
	tab.sweep(now.Add(tombAge))
	if m := tab.members(); len(m) != 0 {
		t.Errorf("%d members after %v", len(m), tombAge)
	}
	for i := range maxGone + 10 {
		tab.farewell(gone{Name: "x", Boot: kevlard.BootID(fmt.Sprint(i))}, now.Add(time.Duration(i)))
	}
	if n := len(tab.goners); n != maxGone {
		t.Errorf("%d gone boots, want %d", n, maxGone)
	}
	if tab.goners[bootOf{"x", "9"}] != (goneAt{}) {
		t.Error("an old gone boot survived newer ones")
	}
}

func TestRingFull(t *testing.T) {
	tab := newTable("self", Meta{Peer: "p", Boot: "b"})
	for i := range maxMembers {
		tab.alive(kevlard.NodeID(fmt.Sprintf("n%d", i)), "a", Meta{Peer: "q", Boot: "b"}, time.Now())
	}
	if err := tab.admit("more", Meta{Peer: "q", Boot: "b"}); err == nil {
		t.Error("admitted beyond the limit")
	}
	if err := tab.admit("n1", Meta{Peer: "q", Boot: "c"}); err != nil {
		t.Errorf("a restart in a full ring: %v", err)
	}
}

func TestGoodbyeDecidesLeftOrDead(t *testing.T) {
	m := Meta{Peer: "q", Boot: "b1"}
	leaving := m
	leaving.Leaving = true
	for _, c := range []struct {
		name string
		do   func(*table, time.Time)
		want State
	}{
		{"crash", func(t *table, now time.Time) { t.lost("n", now) }, StateDead},
		{"flag", func(t *table, now time.Time) { t.alive("n", "a", leaving, now); t.lost("n", now) }, StateLeft},
		{"gone before", func(t *table, now time.Time) { t.farewell(gone{Name: "n", Boot: "b1"}, now); t.lost("n", now) }, StateLeft},
		{"gone after", func(t *table, now time.Time) { t.lost("n", now); t.farewell(gone{Name: "n", Boot: "b1"}, now) }, StateLeft},
		{"gone of an earlier boot", func(t *table, now time.Time) { t.farewell(gone{Name: "n", Boot: "b0"}, now); t.lost("n", now) }, StateDead},
		{"forced while alive", func(t *table, now time.Time) {
			t.farewell(gone{Name: "n", Boot: "b1", Forced: true}, now)
			t.lost("n", now)
		}, StateDead},
		{"forced when dead", func(t *table, now time.Time) {
			t.lost("n", now)
			t.farewell(gone{Name: "n", Boot: "b1", Forced: true}, now)
		}, ""},
	} {
		tab := newTable("self", Meta{Peer: "p", Boot: "b"})
		tab.alive("n", "a", m, time.Now())
		c.do(tab, time.Now())
		if got, _ := tab.get("n"); got.State != c.want {
			t.Errorf("%s: %q, want %q", c.name, got.State, c.want)
		}
	}
}

// Whatever memberlist and the peers say in whatever order: a live or dead name
// never changes its peer, a replaced boot never comes back, a claim is answered
// as the view says, and the alive are counted right.
func TestNamesStayWithTheirPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable("self", Meta{Peer: "p", Boot: "b"})
		now := time.Now()
		replaced := map[kevlard.BootID]bool{} // of names that never vanished since
		forget := func(name kevlard.NodeID) {
			maps.DeleteFunc(replaced, func(b kevlard.BootID, _ bool) bool { return strings.HasPrefix(string(b), string(name)) })
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "s")) * time.Second)
			name := kevlard.NodeID(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name"))
			peer := rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "peer")
			boot := kevlard.BootID(string(name) + peer + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "boot"))
			before, known := tab.get(name)
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0, 1:
				m := Meta{Peer: peer, Boot: boot}
				err := tab.admit(name, m)
				if replaced[boot] && before.Meta.Peer == peer && err == nil {
					t.Fatalf("boot %s is back after its successor %s", boot, before.Meta.Boot)
				}
				if err == nil {
					if known && before.Meta.Peer == peer && before.Meta.Boot != boot {
						replaced[before.Meta.Boot] = true
					}
					if known && before.Meta.Peer != peer {
						forget(name)
					}
					tab.alive(name, "addr", m, now)
				}
			case 2:
				tab.lost(name, now)
			case 3:
				tab.farewell(gone{Name: name, Boot: boot, Forced: rapid.Bool().Draw(t, "forced")}, now)
			case 4:
				tab.merge(syncState{Tombs: []tomb{{Name: name, Peer: peer, Boot: boot, Addr: "addr"}}}, now)
			}
			after, still := tab.get(name)
			if !still {
				forget(name) // force-left: its history goes with it
			}
			if known && still && (before.State == StateAlive || before.State == StateDead) && after.Meta.Peer != before.Meta.Peer {
				t.Fatalf("%s went from peer %s (%s) to %s", name, before.Meta.Peer, before.State, after.Meta.Peer)
			}
			if known && !still && before.State == StateAlive {
				t.Fatalf("%s vanished while alive", name)
			}
			alive := 0
			for _, m := range tab.members() {
				if m.State == StateAlive {
					alive++
				}
			}
			if got := int(tab.live.Load()); got != alive {
				t.Fatalf("%d are counted as alive, %d are", got, alive)
			}
			v := tab.shows(claim{Name: name, Peer: peer, Boot: boot, Addr: "addr"})
			if (v.Shows == showsOther) != (still && after.State != StateLeft && after.Meta.Peer != peer) {
				t.Fatalf("claim of %s by %s: %+v, but the view is %+v", name, peer, v, after)
			}
		}
	})
}
