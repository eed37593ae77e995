package topology

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

// mesh runs a Reformer for each node in virtual time. Nodes see each other late, each
// pair by a time of its own; loads take time. It holds that no device is ever over its
// budget and that nobody gives up the last route: that may end only with a death.
type mesh struct {
	t       interface{ Fatalf(string, ...any) }
	rng     *rand.Rand
	now     kevlard.Instant
	next    kevlard.Instant // something happens, if nobody does anything before
	settle  Settle
	verdict time.Duration // from a death to the ring's word on it
	lag     time.Duration // the most that news takes
	load    time.Duration // of one stage
	broken  map[kevlard.NodeID]bool
	hosts   map[kevlard.NodeID]*member
	ids     []kevlard.NodeID
	actions []string
	bytes   int64
	adopted map[kevlard.NodeID]int
	reasons map[Reason]int
	cut     cut
}

// cut is a split of the ring: what the members of a part say reaches the others no more,
// and some time later these call them dead. When it is healed, each pair sees each other
// again at a time of its own, ten times later than news comes.
type cut struct {
	part          map[kevlard.NodeID]bool // one of the two; nil: there is none
	since, healed kevlard.Instant
}

type member struct {
	node  Node // the truth
	up    bool
	boots int
	// The life before, and its end: what died with it is not yet missed by others.
	former Node
	died   kevlard.Instant
	r      *Reformer
	done   map[kevlard.StageKey]kevlard.Instant
	lags   map[kevlard.NodeID]time.Duration
	heard  map[kevlard.NodeID]int // index of the last news of each
	// missing are those of the other part that it calls dead.
	missing map[kevlard.NodeID]bool
	past    []news
}

// news is what a node said of itself, from a time on.
type news struct {
	at   kevlard.Instant
	node Node
	up   bool
}

const tick = kevlard.Instant(100 * time.Millisecond)

func newMesh(t interface{ Fatalf(string, ...any) }, seed int64) *mesh {
	return &mesh{
		t: t, rng: rand.New(rand.NewSource(seed)), verdict: 2 * time.Second, lag: time.Second, load: 500 * time.Millisecond,
		broken: map[kevlard.NodeID]bool{}, hosts: map[kevlard.NodeID]*member{}, adopted: map[kevlard.NodeID]int{}, reasons: map[Reason]int{},
	}
}

// start begins a life of a node, with nothing resident.
func (w *mesh) start(n Node) {
	h := w.hosts[n.ID]
	if h == nil {
		h = &member{lags: map[kevlard.NodeID]time.Duration{}}
		w.hosts[n.ID] = h
		w.ids = append(w.ids, n.ID)
		slices.Sort(w.ids)
	}
	h.boots++
	n.Boot = kevlard.BootID(fmt.Sprint(n.ID, h.boots))
	n.Stages, n.State = nil, Alive
	h.node, h.up, h.done = n, true, map[kevlard.StageKey]kevlard.Instant{}
	h.r, h.heard, h.missing = NewReformer(n.ID, Goal{}, w.settle), map[kevlard.NodeID]int{}, map[kevlard.NodeID]bool{}
	w.publish(h)
}

func (w *mesh) kill(id kevlard.NodeID) {
	h := w.hosts[id]
	h.up, h.former, h.died = false, h.node, w.now
	w.publish(h)
}

// publish makes what is true of a node news, on its way to the others.
func (w *mesh) publish(h *member) {
	n := h.node
	n.Stages = slices.Clone(n.Stages)
	n.Failed = h.r.Failed()
	h.past = append(h.past, news{w.now, n, h.up})
}

// view is what a node knows now, and news whether that is more than at the last call.
func (w *mesh) view(self *member) (v View, fresh bool) {
	for _, id := range w.ids {
		h := w.hosts[id]
		if h == self {
			v.Nodes = append(v.Nodes, h.node)
			fresh = fresh || self.heard[id] != len(h.past)
			self.heard[id] = len(h.past)
			continue
		}
		lag, ok := self.lags[id]
		if !ok {
			lag = time.Duration(w.rng.Int63n(int64(w.lag)))
			self.lags[id] = lag
		}
		apart := w.cut.part != nil && w.cut.part[id] != w.cut.part[self.node.ID]
		missed, met := w.cut.since.Add(w.verdict+lag), w.cut.healed
		if met != kevlard.Never {
			met = met.Add(10 * lag)
		}
		missing := apart && missed <= w.now && w.now < met
		for _, at := range []kevlard.Instant{missed, met} {
			if apart && at > w.now {
				w.next = min(w.next, at)
			}
		}
		fresh = fresh || self.missing[id] != missing
		self.missing[id] = missing
		heard := -1
		for i, x := range slices.Backward(h.past) {
			// Lives end late, so a return may be heard before the end of the life before.
			at := x.at.Add(lag)
			if !x.up {
				at = at.Add(w.verdict)
			}
			if apart && at > w.cut.since {
				at = max(at, met)
			}
			if at <= w.now {
				heard = i
				break
			}
			w.next = min(w.next, at)
		}
		fresh = fresh || self.heard[id] != heard
		self.heard[id] = heard
		if heard < 0 {
			continue
		}
		n := h.past[heard].node
		switch {
		case !h.past[heard].up:
			n.State, n.Heard = Dead, h.died
		case missing:
			n.State, n.Heard = Dead, w.cut.since
		}
		v.Nodes = append(v.Nodes, n)
	}
	return v, fresh
}

// truth is the view of somebody who knows everything.
func (w *mesh) truth() View {
	var v View
	for _, id := range w.ids {
		if h := w.hosts[id]; h.up {
			v.Nodes = append(v.Nodes, h.node)
		}
	}
	return v
}

// unmissed is the truth, and what died so lately that nobody can know.
func (w *mesh) unmissed() View {
	v := w.truth()
	for _, id := range w.ids {
		if h := w.hosts[id]; h.former.ID != "" && w.now <= h.died.Add(w.verdict+w.lag) {
			n := h.former
			n.ID, n.State = "former "+n.ID, Alive
			v.Nodes = append(v.Nodes, n)
		}
	}
	return v.sorted()
}

// run lets time pass. It returns when the last action was, or Never for none.
func (w *mesh) run(d time.Duration) (last kevlard.Instant) {
	last = kevlard.Never
	for end := w.now.Add(d); w.now < end; w.now = min(end, max(w.now+tick, w.next)) {
		w.next = kevlard.Never
		for _, id := range w.ids {
			h := w.hosts[id]
			if !h.up {
				continue
			}
			w.finish(h)
			v, fresh := w.view(h)
			if fresh || w.now >= h.r.Deadline() {
				for _, a := range h.r.Step(w.now, v, nil) {
					last, w.next = w.now, w.now
					w.apply(h, a)
				}
			}
			w.next = min(w.next, h.r.Deadline())
			for _, at := range h.done {
				w.next = min(w.next, at)
			}
		}
	}
	return last
}

// finish ends the loads that are done.
func (w *mesh) finish(h *member) {
	changed := false
	for i := len(h.node.Stages) - 1; i >= 0; i-- {
		s := &h.node.Stages[i]
		at, ok := h.done[s.Key]
		if !ok || w.now < at {
			continue
		}
		delete(h.done, s.Key)
		changed = true
		if w.broken[h.node.ID] {
			h.r.LoadFailed(w.now, s.Key, "broken disk")
			h.node.Stages = slices.Delete(h.node.Stages, i, i+1)
			continue
		}
		s.State = Ready
	}
	if changed {
		w.publish(h)
		w.next = w.now
	}
}

func (w *mesh) apply(h *member, a Action) {
	w.actions = append(w.actions, fmt.Sprintf("%v %s %s %v %s", time.Duration(w.now), h.node.ID, a.Do, a.Key.Layers, a.Reason))
	i := slices.IndexFunc(h.node.Stages, func(s Stage) bool { return s.Key == a.Key })
	if (i >= 0) == (a.Do == Adopt) {
		w.t.Fatalf("%v\nthe last one makes no sense", w.actions)
	}
	// Stages are values in shared slices of older news: change a copy.
	h.node.Stages = slices.Clone(h.node.Stages)
	switch a.Do {
	case Adopt:
		for _, s := range h.node.Stages {
			if s.State == Loading {
				w.t.Fatalf("%v\ntwo loads at once", w.actions)
			}
		}
		h.node.Stages = append(h.node.Stages, Stage{Key: a.Key, State: Loading, Class: "c", Device: a.Device})
		h.done[a.Key] = w.now.Add(w.load)
		w.bytes += a.Bytes
		w.adopted[h.node.ID]++
		w.reasons[a.Reason]++
		used := int64(0)
		for _, s := range h.node.Stages {
			used += h.node.Weights[0].need(s.Key.Layers)
		}
		if used > h.node.Devices[0].Budget {
			w.t.Fatalf("%v\n%s uses %d of %d", w.actions, h.node.ID, used, h.node.Devices[0].Budget)
		}
	case Announce, Retain:
		h.node.Stages[i].Releasing = a.Do == Announce
	case Release:
		served := w.truth().served(a.Key.Model)
		h.node.Stages = slices.Delete(h.node.Stages, i, i+1)
		delete(h.done, a.Key)
		if served && !w.unmissed().served(a.Key.Model) {
			w.t.Fatalf("%v\nthe last route is gone", w.actions)
		}
	}
	w.publish(h)
}

// holders counts the ready holders of each range.
func (w *mesh) holders() map[kevlard.Layers]int {
	out := map[kevlard.Layers]int{}
	for _, n := range w.truth().Nodes {
		for _, s := range n.Stages {
			if s.State == Ready {
				out[s.Key.Layers]++
			}
		}
	}
	return out
}

func (w *mesh) want(t *testing.T, ranges, each int) {
	t.Helper()
	got := w.holders()
	for l, n := range got {
		if n != each {
			t.Errorf("%v has %d holders, want %d\n%v", l, n, each, w.actions)
		}
	}
	if len(got) != ranges {
		t.Errorf("%d ranges, want %d: %v", len(got), ranges, w.actions)
	}
}

// formed is a ring of n nodes that has come to rest.
func formed(t interface{ Fatalf(string, ...any) }, n int, budget int64, seed int64) (*mesh, View) {
	m, weights := even("fairy", 8, 100, 60, 20)
	w := newMesh(t, seed)
	v := ring(m, weights, n, budget)
	for _, n := range v.Nodes {
		w.start(n)
		w.run(300 * time.Millisecond)
	}
	w.run(time.Minute)
	return w, v
}
