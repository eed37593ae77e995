package membership

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

func TestInquest(t *testing.T) {
	const patience = 500 * time.Millisecond
	lost, knows, nothing := Testimony{Lost: true}, Testimony{Connected: true}, Testimony{}
	r, s, a := SignRefused, SignSilent, SignAlive
	for _, c := range []struct {
		name   string
		signs  []Sign // one every fifth of the patience
		want   Step
		others int
		said   []Testimony
		then   Step
	}{
		{"killed", []Sign{r, r, r, r, r, r}, Ask, 6, []Testimony{lost, lost, lost}, Bury},
		{"killed, one answers", []Sign{r, r, r, r, r, r}, Ask, 6, []Testimony{lost}, Bury},
		{"killed, others were never connected", []Sign{r, r, r, r, r, r}, Ask, 6, []Testimony{nothing, nothing}, Bury},
		{"killed, in a ring of two", []Sign{r, r, r, r, r, r}, Ask, 0, nil, Bury},
		{"refused to this node only", []Sign{r, r, r, r, r, r}, Ask, 6, []Testimony{lost, knows, lost}, Dismiss},
		{"refused, and nobody answers", []Sign{r, r, r, r, r, r}, Ask, 6, nil, Look},
		{"restarted at once", []Sign{r, r, a, a, a, a}, Dismiss, 6, nil, Look},
		{"its connections went before its ports", []Sign{a, r, r, r, r, r}, Ask, 0, nil, Bury},
		{"stalled: the kernel takes connections", []Sign{a, a, a, a, a, a}, Dismiss, 6, nil, Look},
		{"vanished", []Sign{s, s, s, s, s, s}, Dismiss, 6, []Testimony{lost, lost, lost}, Look},
		{"refused on the way out", []Sign{r, r, s, s, s, s}, Ask, 6, []Testimony{lost, lost, lost}, Bury},
		{"refused and silent, one agrees", []Sign{r, r, s, s, s, s}, Ask, 6, []Testimony{lost}, Look},
		{"refused and silent, one was never connected", []Sign{r, r, s, s, s, s}, Ask, 6, []Testimony{lost, lost, nothing}, Look},
		{"refused and silent, in a ring of two", []Sign{r, r, s, s, s, s}, Ask, 0, nil, Look},
		{"one look timed out, and then all were refused, in a ring of two", []Sign{s, r, r, r, r, r}, Ask, 0, nil, Look},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Time{}.Add(time.Hour)
			q := NewInquest(now, patience)
			for i, sign := range c.signs {
				got := q.Look(now, sign)
				if last := i == len(c.signs)-1; last && got != c.want || !last && got != Look {
					t.Fatalf("look %d: step %d, want %d at the end", i, got, c.want)
				}
				now = now.Add(patience / 5)
			}
			if c.want != Ask {
				return
			}
			if got := q.Hear(c.others, c.said); got != c.then {
				t.Errorf("step %d after what others say, want %d", got, c.then)
			}
		})
	}
}

// A look that timed out, as when this host stood still itself, is forgotten when all were
// refused for the whole patience after it.
func TestInquestForgetsALateLook(t *testing.T) {
	const patience = 500 * time.Millisecond
	now := time.Time{}.Add(time.Hour)
	q := NewInquest(now, patience)
	for i, c := range []struct {
		sign Sign
		want Step // with what others say where it is to ask them
	}{{SignRefused, Look}, {SignSilent, Look}, {SignRefused, Look}, {SignRefused, Look}, {SignRefused, Look}, {SignRefused, Look}, {SignRefused, Look}, {SignRefused, Bury}} {
		step := q.Look(now, c.sign)
		if step == Ask {
			step = q.Hear(0, nil)
		}
		if step != c.want {
			t.Fatalf("look %d: step %d, want %d", i, step, c.want)
		}
		now = now.Add(patience / 5)
	}
}

// Whatever is seen in whatever order: who took a connection, answered a ping or is
// connected to somebody is never gone, nor is who was only silent, nor anybody before the
// patience is over.
func TestInquestNeverBuriesTheLiving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Time{}.Add(time.Hour)
		lived, patience := now, time.Duration(rapid.IntRange(1, 3000).Draw(t, "patience"))*time.Millisecond
		q := NewInquest(now, patience)
		refused := false
		for {
			now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "ms")) * time.Millisecond)
			sign := Sign(rapid.IntRange(int(SignSilent), int(SignAlive)).Draw(t, "sign"))
			refused = sign != SignAlive && (refused || sign == SignRefused)
			if sign == SignAlive {
				lived = now
			}
			switch step := q.Look(now, sign); {
			case sign == SignAlive && (step == Ask || step == Bury):
				t.Fatalf("it is alive, and step %d follows", step)
			case step == Dismiss:
				return
			case step == Look:
				continue
			}
			break
		}
		if now.Sub(lived) < patience || !refused {
			t.Fatalf("asked after %v of %v, refused %v", now.Sub(lived), patience, refused)
		}
		others := rapid.IntRange(0, 5).Draw(t, "others")
		var said []Testimony
		connected := false
		for range rapid.IntRange(0, min(others, 3)).Draw(t, "said") {
			x := Testimony{Connected: rapid.Bool().Draw(t, "connected"), Lost: rapid.Bool().Draw(t, "lost")}
			connected = connected || x.Connected
			said = append(said, x)
		}
		if q.Hear(others, said) == Bury && (connected || others > 0 && len(said) == 0) {
			t.Fatalf("buried, with %d others who said %+v", others, said)
		}
	})
}

// A boot that was buried is dead until it shows life, which old rumours do not; memberlist
// may follow before or after.
func TestBury(t *testing.T) {
	now := time.Now()
	one, two := Meta{Peer: "q", Boot: "b1"}, Meta{Peer: "q", Boot: "b2"}
	newer := one
	newer.Record = 7
	for _, c := range []struct {
		name    string
		do      func(*table)
		want    State
		revived uint64
	}{
		{"buried", func(*table) {}, StateDead, 0},
		{"then memberlist says so", func(tab *table) { tab.lost("n", now) }, StateDead, 0},
		{"then an old rumour comes", func(tab *table) { tab.alive("n", "a", newer, now) }, StateDead, 0},
		{"then it answers a ping", func(tab *table) { tab.heard("n", "b1", now) }, StateAlive, 1},
		{"then one that does not say its life does", func(tab *table) { tab.heard("n", "", now) }, StateAlive, 1},
		{"then its next life does", func(tab *table) { tab.heard("n", "b2", now) }, StateDead, 0},
		{"then it is back", func(tab *table) { tab.alive("n", "a", two, now) }, StateAlive, 0},
		{"memberlist says so and takes it back", func(tab *table) { tab.lost("n", now); tab.alive("n", "a", one, now) }, StateAlive, 1},
		{"it left", func(tab *table) { tab.farewell(gone{Name: "n", Boot: "b1"}, now) }, StateLeft, 0},
		{"a ping of the really dead", func(tab *table) { tab.lost("n", now); tab.heard("n", "b1", now) }, StateDead, 0},
	} {
		tab := newTable("self", Meta{Peer: "p", Boot: "b"})
		tab.alive("n", "a", one, now)
		if tab.bury("n", "b0", now) || tab.bury("self", "b", now) || tab.bury("x", "b1", now) {
			t.Error("buried another life, itself or nobody")
		}
		if !tab.bury("n", "b1", now) || tab.bury("n", "b1", now) {
			t.Error("not buried, or twice")
		}
		c.do(tab)
		if got, _ := tab.get("n"); got.State != c.want || tab.revived.Load() != c.revived {
			t.Errorf("%s: %s, %d revived, want %s, %d", c.name, got.State, tab.revived.Load(), c.want, c.revived)
		}
	}
}

// A member that was buried although it lives is alive again soon, because it answers pings
// and asks, and nobody else ever took it for dead.
func TestBuriedAlive(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		if !procs[2].Bury("node-06", procs[5].cfg.Meta.Boot) {
			t.Fatal("not buried")
		}
		if m, _ := procs[2].Member("node-06"); m.State != StateDead {
			t.Fatalf("it is %s", m.State)
		}
		t.Logf("alive again after %v", w.agree(10*time.Second, procs...))
		for i, p := range procs {
			if want := uint64(0); p.FalseDeaths() != want && i != 2 {
				t.Errorf("%s counts %d false deaths", p.cfg.Name, p.FalseDeaths())
			}
		}
		if procs[2].FalseDeaths() != 1 {
			t.Errorf("%d false deaths are counted, want 1", procs[2].FalseDeaths())
		}
		if ok, err := procs[0].Ping(procs[0].Members()[3]); !ok || err != nil {
			t.Errorf("a ping of a live member: %v, %v", ok, err)
		}
	})
}

// Gossip's verdict waits while a boot is heard beside it, and no longer; goodbyes count at
// once.
func TestVouch(t *testing.T) {
	const hold = 2 * time.Second
	one, two := Meta{Peer: "q", Boot: "b1"}, Meta{Peer: "q", Boot: "b2"}
	leaving := one
	leaving.Leaving = true
	for _, c := range []struct {
		name string
		do   func(*table, time.Time) // what happens in the first second
		want [3]State                // after 1, 3 and 40 s
	}{
		{"not heard", func(tab *table, now time.Time) { tab.lost("n", now) }, [3]State{StateDead, StateDead, StateDead}},
		{"heard, then silent", func(tab *table, now time.Time) { tab.attest("n", "b1", now); tab.lost("n", now) }, [3]State{StateAlive, StateDead, StateDead}},
		{"heard on and on", func(tab *table, now time.Time) { tab.attest("n", "b1", now.Add(time.Hour)); tab.lost("n", now) }, [3]State{StateAlive, StateAlive, StateDead}},
		{"refuted", func(tab *table, now time.Time) {
			tab.attest("n", "b1", now)
			tab.lost("n", now)
			tab.alive("n", "a", one, now)
		}, [3]State{StateAlive, StateAlive, StateAlive}},
		{"another life was heard", func(tab *table, now time.Time) { tab.attest("n", "b2", now); tab.lost("n", now) }, [3]State{StateDead, StateDead, StateDead}},
		{"the life before was heard", func(tab *table, now time.Time) {
			tab.attest("n", "b1", now)
			tab.alive("n", "a", two, now)
			tab.lost("n", now)
		}, [3]State{StateDead, StateDead, StateDead}},
		{"it leaves", func(tab *table, now time.Time) {
			tab.attest("n", "b1", now)
			tab.alive("n", "a", leaving, now)
			tab.lost("n", now)
		}, [3]State{StateLeft, StateLeft, StateLeft}},
		{"its ports refuse", func(tab *table, now time.Time) {
			tab.attest("n", "b1", now)
			tab.lost("n", now)
			tab.bury("n", "b1", now)
		}, [3]State{StateDead, StateDead, StateDead}},
	} {
		now := time.Now()
		tab := newTable("self", Meta{Peer: "p", Boot: "b"})
		tab.vouch = hold
		tab.alive("n", "a", one, now)
		c.do(tab, now)
		for i, after := range []time.Duration{time.Second, 3 * time.Second, 40 * time.Second} {
			tab.expire(now.Add(after))
			if got, _ := tab.get("n"); got.State != c.want[i] {
				t.Errorf("%s: %s after %v, want %s", c.name, got.State, after, c.want[i])
			}
		}
		if n := tab.revived.Load(); n != 0 {
			t.Errorf("%s: %d false deaths", c.name, n)
		}
	}
}

// A member whose gossip is cut off is alive to who hears it otherwise, until it does not.
func TestHeardBesideGossip(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		w.net.Blackhole(addrOf(5), true)
		for range 40 {
			procs[0].Vouch("node-05", procs[4].cfg.Meta.Boot)
			time.Sleep(250 * time.Millisecond)
		}
		for i, p := range without(procs, 4) {
			m, _ := p.Member("node-05")
			if want := map[bool]State{true: StateAlive, false: StateDead}[i == 0]; m.State != want {
				t.Errorf("%s shows %s, want %s", p.cfg.Name, m.State, want)
			}
		}
		t.Logf("dead %v after the last word", w.agree(5*time.Second, without(procs, 4)...))
	})
}

// A buried boot of which the mesh brings a message lives, whatever gossip had said; a
// goodbye of somebody doomed counts at once; expire is asked for once.
func TestVouchedDead(t *testing.T) {
	now := time.Now()
	tab := newTable("self", Meta{Peer: "p", Boot: "b"})
	tab.vouch = 2 * time.Second
	state := func(n kevlard.NodeID) State {
		m, _ := tab.get(n)
		return m.State
	}
	for _, n := range []kevlard.NodeID{"n", "m", "o"} {
		tab.alive(n, "a", Meta{Peer: string(n), Boot: "b1"}, now)
		tab.attest(n, "b1", now)
	}
	tab.bury("n", "b1", now)
	if tab.attest("n", "another", now); state("n") != StateDead {
		t.Errorf("another boot was heard, and n is %s", state("n"))
	}
	if tab.attest("n", "b1", now); state("n") != StateAlive || tab.live.Load() != 3 {
		t.Errorf("n was heard and is %s; %d are alive, want 3", state("n"), tab.live.Load())
	}
	if !tab.lost("m", now) || tab.lost("o", now) {
		t.Error("expire is wanted once while somebody is doomed")
	}
	if tab.farewell(gone{Name: "m", Boot: "b1"}, now); state("m") != StateLeft {
		t.Errorf("m said goodbye and is %s", state("m"))
	}
	if tab.expire(now.Add(3 * time.Second)); state("o") != StateDead || tab.live.Load() != 1 {
		t.Errorf("o is %s, %d are alive", state("o"), tab.live.Load())
	}
	if tab.attest("n", "b1", now.Add(4*time.Second)); !tab.lost("n", now.Add(4*time.Second)) {
		t.Error("nobody is doomed, and expire is not wanted for the next")
	}
}
