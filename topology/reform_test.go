package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// TestForms: eight daemons started one after the other hold two pipelines three seconds
// after the last, and the loads of one stage; nothing is loaded twice.
func TestForms(t *testing.T) {
	m, weights := even("fairy", 8, 100, 60, 20)
	w := newMesh(t, 1)
	w.lag = 300 * time.Millisecond
	for _, n := range ring(m, weights, 8, 2000).Nodes {
		w.start(n)
		w.run(100 * time.Millisecond)
	}
	w.run(2900*time.Millisecond + w.load)
	w.want(t, 4, 2)
	if min := int64(2 * (8*100 + 2*60)); w.bytes != min {
		t.Errorf("%d bytes were loaded, %d are needed: %v", w.bytes, min, w.actions)
	}
}

// TestGrows adds nodes one at a time, 3 to 8.
func TestGrows(t *testing.T) {
	w, v := formed(t, 3, 2000, 1)
	w.run(20 * time.Second)
	w.want(t, 4, 2)
	m, weights := even("fairy", 8, 100, 60, 20)
	more := ring(m, weights, 8, 2000).Nodes[len(v.Nodes):]
	copies := 8
	for i, n := range more {
		before := len(w.actions)
		adopted := w.adopted[n.ID]
		w.start(n)
		w.run(90 * time.Second)
		w.want(t, 4, 2)
		least := copies / (len(v.Nodes) + i + 1) // what an equal share leaves to the newcomer
		if got := w.adopted[n.ID] - adopted; got != least {
			t.Errorf("node %d loaded %d ranges, want %d: %v", len(v.Nodes)+i+1, got, least, w.actions[before:])
		}
		for _, o := range w.ids {
			if o != n.ID && len(w.hosts[o].node.Stages) == 0 {
				t.Errorf("%s has nothing to do", o)
			}
		}
	}
	if w.reasons[Rebalance] != 6 || w.reasons[Join] != 8 || len(w.reasons) != 2 {
		t.Errorf("reasons %v", w.reasons)
	}
}

// TestDeath: one death costs the bytes that were lost, and no others.
func TestDeath(t *testing.T) {
	for n := range 8 {
		w, v := formed(t, 8, 2000, int64(n))
		lost := w.hosts[v.Nodes[n].ID].node.Stages
		before, acts := w.bytes, len(w.actions)
		w.kill(v.Nodes[n].ID)
		w.run(60 * time.Second)
		w.want(t, 4, 2)
		s := newSizes(v.Nodes[0].Weights[0])
		if want := s.weight(lost[0].Key.Layers); w.bytes-before != want || w.reasons[Death] != 1 || len(w.actions) != acts+1 {
			t.Errorf("%d bytes for %d lost: %v", w.bytes-before, want, w.actions[acts:])
		}
	}
}

// TestDeathCountsFromTheLastWord: the ring's verdict is slow, and part of the wait.
func TestDeathCountsFromTheLastWord(t *testing.T) {
	for verdict, want := range map[time.Duration]time.Duration{2 * time.Second: 4 * time.Second, 6 * time.Second: 6500 * time.Millisecond} {
		w, v := formed(t, 8, 2000, 1)
		w.verdict = verdict
		w.kill(v.Nodes[3].ID)
		died, before := w.now, len(w.actions)
		w.run(10 * time.Second)
		if len(w.actions) != before+1 {
			t.Fatalf("%v", w.actions[before:])
		}
		text, _, _ := strings.Cut(w.actions[before], " ")
		at, err := time.ParseDuration(text)
		if took := at - time.Duration(died); err != nil || took < want || took > want+w.lag+time.Duration(tick) {
			t.Errorf("verdict after %v: adopted after %v, want %v (%v)", verdict, took, want, err)
		}
	}
}

// TestFlap: up three seconds, down three seconds, twenty times: nobody else moves.
func TestFlap(t *testing.T) {
	for _, n := range []int{0, 5} {
		w, v := formed(t, 8, 2000, int64(n))
		flapper := v.Nodes[n]
		before := len(w.actions)
		for range 20 {
			w.kill(flapper.ID)
			w.run(3 * time.Second)
			w.start(flapper)
			w.run(3 * time.Second)
		}
		for _, a := range w.actions[before:] {
			var at, who string
			if fmt.Sscan(a, &at, &who); who != string(flapper.ID) {
				t.Errorf("moved by a flapping node: %s", a)
			}
		}
		w.run(time.Minute)
		w.want(t, 4, 2)
	}
}

// TestRejoinInTime: a node that is back before its death has settled costs nothing.
func TestRejoinInTime(t *testing.T) {
	w, v := formed(t, 8, 2000, 1)
	before := w.reasons[Death]
	w.kill(v.Nodes[2].ID)
	w.run(w.verdict + 1500*time.Millisecond)
	w.start(v.Nodes[2])
	w.run(time.Minute)
	if w.reasons[Death] != before {
		t.Errorf("%v", w.actions)
	}
	w.want(t, 4, 2)
}

// TestSplits: the parts of a ring load what they lack, and no more, but for one range where
// layers had no holder: those are not waited for until the last verdict is there. Healed,
// all is held already, and what is too much goes. Nothing moves after that.
func TestSplits(t *testing.T) {
	for seed := range int64(4) {
		for name, part := range map[string][]int{"5+3": {5, 6, 7}, "4+4": {4, 5, 6, 7}, "1+7": {3}} {
			for _, lasts := range []time.Duration{15 * time.Second, time.Minute} {
				w, v := formed(t, 8, 2000, seed)
				cut := map[kevlard.NodeID]bool{}
				for _, i := range part {
					cut[v.Nodes[(i+int(seed))%8].ID] = true
				}
				least, sizes := w.lacking(cut, true)+w.lacking(cut, false), newSizes(v.Nodes[0].Weights[0])
				more := sizes.weight(kevlard.Layers{Lo: 0, Hi: 2})
				before, acts := w.bytes, len(w.actions)
				w.cut.part, w.cut.since, w.cut.healed = cut, w.now, kevlard.Never
				w.run(lasts)
				if got := w.bytes - before; got < least || got > least+more {
					t.Errorf("%s, seed %d, %v: %d bytes were loaded, the least is %d: %v", name, seed, lasts, got, least, w.actions[acts:])
				}
				before, w.cut.healed = w.bytes, w.now
				healed := len(w.actions)
				w.run(time.Minute)
				w.want(t, 4, 2)
				rested := len(w.actions)
				w.run(time.Minute)
				if w.bytes != before || len(w.actions) != rested {
					t.Errorf("%s, seed %d, %v: after the heal %d bytes were loaded: %v", name, seed, lasts, w.bytes-before, w.actions[healed:])
				}
			}
		}
	}
}

// lacking is how many bytes one part has to load to hold every range twice, or once in a
// part of one.
func (w *mesh) lacking(part map[kevlard.NodeID]bool, in bool) (bytes int64) {
	holders, members := map[kevlard.Layers]int{}, 0
	for _, id := range w.ids {
		for _, s := range w.hosts[id].node.Stages {
			holders[s.Key.Layers] += int(flag(part[id] == in))
		}
		members += int(flag(part[id] == in))
	}
	s := newSizes(w.hosts[w.ids[0]].node.Weights[0])
	for l, n := range holders {
		bytes += s.weight(l) * int64(max(0, min(2, members)-n))
	}
	return bytes
}

// TestDrain: what a draining node holds is held elsewhere before it is given up.
func TestDrain(t *testing.T) {
	w, v := formed(t, 8, 2000, 1)
	h := w.hosts[v.Nodes[4].ID]
	h.node.State = Draining
	w.publish(h)
	w.run(time.Minute)
	if len(h.node.Stages) > 0 || w.reasons[Drained] != 1 {
		t.Errorf("%v", w.actions)
	}
	w.want(t, 4, 2)
}

// TestBrokenDisk: a load that fails goes to somebody else, and is not tried in a loop.
func TestBrokenDisk(t *testing.T) {
	m, weights := even("fairy", 8, 100, 60, 20)
	w := newMesh(t, 1)
	v := ring(m, weights, 8, 2000)
	w.broken[v.Nodes[3].ID] = true
	for _, n := range v.Nodes {
		w.start(n)
	}
	w.run(20 * time.Second)
	w.want(t, 4, 2)
	w.run(10 * time.Minute)
	// 30 s, 1, 2, 4, 8 minutes: a range each time, of the few that exist.
	if got := w.adopted[v.Nodes[3].ID]; got > 4*6 {
		t.Errorf("%d loads on a broken disk in ten minutes: %v", got, w.actions)
	}
	if f := w.hosts[v.Nodes[3].ID].r.Failed(); len(f) == 0 || f[0].Reason != "broken disk" {
		t.Errorf("failures %v", f)
	}
}

// TestResplits: three nodes hold a model that fills them; one dies, and two can hold it.
func TestResplits(t *testing.T) {
	w, v := formed(t, 3, 720, 1) // five or six layers each
	w.kill(v.Nodes[1].ID)
	w.run(2 * time.Minute)
	if !w.truth().served(v.Nodes[0].Models[0].ID) {
		t.Errorf("not served by two: %v\n%v", w.actions, w.hosts[v.Nodes[0].ID].r.Plan())
	}
	w.kill(v.Nodes[0].ID) // one can't
	w.run(time.Minute)
	p := w.hosts[v.Nodes[2].ID].r.Plan()
	if len(p.Models[0].Missing) == 0 {
		t.Errorf("nothing is missing: %v", p)
	}
	w.start(v.Nodes[0])
	w.run(2 * time.Minute)
	if !w.truth().served(v.Nodes[0].Models[0].ID) {
		t.Errorf("not served again: %v", w.actions)
	}
}

// TestConverges throws deaths, returns and drains at rings of any size and memory, lets
// them rest, and holds that all have done what the common plan says, and that none goes
// on moving. What must hold at every moment is in mesh.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, weights := even("fairy", 8, 100, rapid.SampledFrom([]int64{0, 60}).Draw(t, "ends"), 20)
		w := newMesh(t, rapid.Int64().Draw(t, "seed"))
		v := ring(m, weights, rapid.IntRange(1, 9).Draw(t, "nodes"), 0)
		for i := range v.Nodes {
			v.Nodes[i].Devices[0] = Device{rapid.SampledFrom([]int64{300, 600, 1000, 3000}).Draw(t, "budget"), rapid.SampledFrom([]int{1000, 1000, 500}).Draw(t, "speed")}
			v.Nodes[i].Zone = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")
			if rapid.IntRange(0, 3).Draw(t, "empty") == 0 && i > 0 {
				v.Nodes[i].Local = nil
			}
		}
		for _, n := range v.Nodes {
			w.start(n)
			w.run(time.Duration(rapid.IntRange(0, 2000).Draw(t, "between")) * time.Millisecond)
		}
		for range rapid.IntRange(0, 6).Draw(t, "faults") {
			n := rapid.SampledFrom(v.Nodes).Draw(t, "node")
			switch h := w.hosts[n.ID]; {
			case h.up && rapid.IntRange(0, 3).Draw(t, "drain") == 0:
				h.node.State = Draining
				w.publish(h)
			case h.up:
				w.kill(n.ID)
			default:
				w.start(n)
			}
			w.run(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "pause")) * time.Millisecond)
		}
		w.run(5 * time.Minute)
		moved := len(w.actions)
		w.run(time.Minute)
		if len(w.actions) > moved {
			t.Fatalf("still moving: %v", w.actions[max(0, moved-10):])
		}
		truth := w.truth()
		for _, n := range truth.Nodes {
			h := w.hosts[n.ID]
			v, _ := w.view(h)
			if s := h.r.Plan().Mine(v, n.ID); n.State == Alive && (len(s.Adopt) > 0 || len(s.Release) > 0) {
				t.Fatalf("%s has not done its part %+v:\n%v\n%v", n.ID, s, h.r.Plan(), w.actions)
			}
		}
	})
}

// TestWaitingLoad: a load that waits for another fetch is not stuck, however long; one that
// makes no progress is, from then on.
func TestWaitingLoad(t *testing.T) {
	m, weights := even("fairy", 8, 100, 60, 20)
	v := ring(m, weights, 2, 2000)
	r := NewReformer(v.Nodes[0].ID, Goal{}, Settle{Load: time.Minute})
	key := kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: 0, Hi: 4}}
	for _, c := range []struct {
		at    time.Duration
		waits bool
		stuck bool
	}{
		{time.Second, false, false},
		{50 * time.Second, true, false},
		{10 * time.Minute, true, false},
		{11*time.Minute - time.Second, false, false},
		{11*time.Minute + time.Second, false, true},
	} {
		v.Nodes[0].Stages = []Stage{{Key: key, State: Loading, Progress: 300, Waits: c.waits}}
		out := r.Step(kevlard.Instant(c.at), v, nil)
		if got := slices.ContainsFunc(out, func(a Action) bool { return a.Reason == LoadStuck }); got != c.stuck {
			t.Errorf("at %v, waiting %v: given up %v, want %v", c.at, c.waits, got, c.stuck)
		}
	}
}
