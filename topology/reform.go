package topology

import (
	"cmp"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
)

// Do is what a node does with a stage of its own.
type Do string

// What a Reformer asks for. A stage that is not ready is released without announcement.
const (
	// Adopt: load the stage. It must appear among the node's own stages in the view, or
	// LoadFailed be called; until then nothing else is adopted.
	Adopt Do = "adopt"
	// Announce: advertise the stage as Releasing, and go on serving it.
	Announce Do = "announce"
	// Retain: the stage is Releasing no longer.
	Retain Do = "retain"
	// Release: drop the stage. Sessions re-route to other holders.
	Release Do = "release"
)

// Action is one thing to do.
type Action struct {
	Do Do
	// Adoption says what: of the other kinds only Key, Device and Reason.
	Adoption
	From []kevlard.NodeID // who has some of these layers on disk, for Source Peer
}

// Reformer is one node's part in the desired assignment over time: it lets the view
// settle, and turns the plan into a few safe steps.
//
//	          plan wants it, settled                plan wants it not, settled, and
//	absent ---------------------------> loading     routes without it remain
//	   ^  <-- failed, stuck, unwanted --   |        .--------------------------.
//	   |                                   v        |                          v
//	   |                                 ready -----'  <---- retain -----  releasing
//	   '------------------- Settle.Release later, and routes without it remain -'
//
// What a node may give up. A stage goes when the holders that the plan wants instead are
// ready, and ready stages that stay make a route through the whole model. It is announced
// first; others do not count on it from then on. Of two nodes that announce at once the
// one with the lesser ID goes first, since only it is allowed to count on the other. To make room
// for a stage that the plan wants here, copies beyond a last route may go before they are
// replaced, and any may when the model has not been served for Settle.Release and nobody
// loads anything of it: until then it may be served without this node having heard.
type Reformer struct {
	self      kevlard.NodeID
	goal      Goal
	settle    Settle
	plan      Plan
	members   map[kevlard.NodeID]kevlard.BootID // alive when last looked
	quiet     kevlard.Instant                   // of the last join
	fell      kevlard.Instant                   // when last somebody went who had been alive
	wants     map[kevlard.StageKey]want
	unwanted  map[kevlard.StageKey]kevlard.Instant
	announced map[kevlard.StageKey]kevlard.Instant
	loads     map[kevlard.StageKey]load
	failures  map[kevlard.StageKey]failure
	returns   map[kevlard.StageKey]returned
	unserved  map[kevlard.Digest]kevlard.Instant
	pending   kevlard.StageKey // adopted, and not in the view yet
	asked     kevlard.Instant  // when; Never: nothing is pending
	deadline  kevlard.Instant
}

// want is an adoption that waits for its time.
type want struct {
	reason Reason
	since  kevlard.Instant // of what others lost, the last that was heard of them
	begun  kevlard.Instant // when it was first wanted for that reason
}

// load is how far a stage was when it last got further.
type load struct {
	progress int
	at       kevlard.Instant // of that, or while it waits for others, the last look
	begun    kevlard.Instant // of that
}

// maxWaits is how many times Settle.Load a load may wait for others without getting on: who
// says that it waits may hang.
const maxWaits = 10

type failure struct {
	reason string
	until  kevlard.Instant
	wait   time.Duration
}

// returned counts losses of a range that ended with its holder's return.
type returned struct {
	times int
	last  kevlard.Instant
}

// maxFailures bounds the failures that a node remembers and advertises, maxReturns the
// ranges whose holders flap: the oldest are forgotten. maxFrom bounds the sources named.
const (
	maxFailures = 64
	maxReturns  = 1024
	maxFrom     = 16
)

// NewReformer makes the machine for one node. Zero fields of goal and settle are defaults.
func NewReformer(self kevlard.NodeID, goal Goal, settle Settle) *Reformer {
	return &Reformer{
		self: self, goal: goal.withDefaults(), settle: settle.withDefaults(), asked: kevlard.Never, deadline: kevlard.Never,
		wants: map[kevlard.StageKey]want{}, unwanted: map[kevlard.StageKey]kevlard.Instant{}, announced: map[kevlard.StageKey]kevlard.Instant{},
		loads: map[kevlard.StageKey]load{}, failures: map[kevlard.StageKey]failure{}, returns: map[kevlard.StageKey]returned{},
	}
}

// Plan is the desired assignment as of the last step.
func (r *Reformer) Plan() Plan { return r.plan }

// Cramped lists the models that the plan can't hold whole for want of memory.
func (r *Reformer) Cramped() []ModelPlan {
	var out []ModelPlan
	for _, m := range r.plan.Models {
		if m.Needs > 0 {
			out = append(out, m)
		}
	}
	return out
}

// Deadline is when Step must be called if the view does not change before.
func (r *Reformer) Deadline() kevlard.Instant { return r.deadline }

// Failed lists the loads that failed here and are not tried again yet, for the node's
// record.
func (r *Reformer) Failed() []Failed {
	var out []Failed
	for k, f := range r.failures {
		if f.until != kevlard.Never {
			out = append(out, Failed{k, f.reason})
		}
	}
	slices.SortFunc(out, func(a, b Failed) int { return a.Key.Compare(b.Key) })
	return out
}

// LoadFailed gives a range back: others adopt it, and this node tries again after a
// while, longer each time. Call Step next.
func (r *Reformer) LoadFailed(now kevlard.Instant, k kevlard.StageKey, reason string) {
	f := r.failures[k]
	f.reason = reason
	f.wait = min(max(2*f.wait, r.settle.Retry), r.settle.RetryMax)
	f.until = now.Add(f.wait)
	if len(r.failures) >= maxFailures {
		oldest := k
		for o, g := range r.failures {
			if oldest == k || cmp.Or(cmp.Compare(g.until, r.failures[oldest].until), o.Compare(oldest)) < 0 {
				oldest = o
			}
		}
		delete(r.failures, oldest)
	}
	r.failures[k] = f
	if r.asked != kevlard.Never && r.pending == k {
		r.asked = kevlard.Never
	}
	delete(r.loads, k)
}

// Step looks at the view, in which the node's own stages are up to date, and appends
// what to do now.
func (r *Reformer) Step(now kevlard.Instant, v View, out []Action) []Action {
	r.deadline = kevlard.Never
	v = v.sorted()
	i, ok := slices.BinarySearchFunc(v.Nodes, r.self, func(n Node, id kevlard.NodeID) int { return cmp.Compare(n.ID, id) })
	if !ok || !v.Nodes[i].planned() {
		r.plan = Plan{}
		return out
	}
	r.expire(now)
	v = View{Nodes: slices.Clone(v.Nodes)}
	self := &v.Nodes[i]
	out = r.watchLoads(now, self, out)
	self.Failed = r.Failed()
	r.look(now, v)
	r.plan = v.Plan(r.goal)
	r.watchRoutes(now, v)
	share := r.plan.Mine(v, r.self)
	r.want(now, v, self, share)
	cramped := map[int]bool{} // devices where a wanted stage waits for room
	out = r.adopt(now, v, self, share, cramped, out)
	return r.release(now, v, self, share, cramped, out)
}

// wake makes t a time to look again.
func (r *Reformer) wake(t kevlard.Instant) { r.deadline = min(r.deadline, t) }

// expire forgets what is over.
func (r *Reformer) expire(now kevlard.Instant) {
	for k, f := range r.failures {
		switch {
		case f.until == kevlard.Never:
		case now < f.until:
			r.wake(f.until)
		default: // it may be tried again; how long it waited is remembered until it succeeds
			f.until = kevlard.Never
			r.failures[k] = f
		}
	}
	for k, x := range r.returns {
		if now >= x.last.Add(r.settle.Forget) {
			delete(r.returns, k)
		}
	}
}

// watchLoads gives up loads that make no progress, and forgets failures of those that
// succeeded.
func (r *Reformer) watchLoads(now kevlard.Instant, self *Node, out []Action) []Action {
	if r.asked != kevlard.Never {
		switch {
		case slices.ContainsFunc(self.Stages, func(s Stage) bool { return s.Key == r.pending }):
			r.asked = kevlard.Never
		case now >= r.asked.Add(r.settle.Load):
			r.LoadFailed(now, r.pending, "the load was never begun")
		default:
			r.wake(r.asked.Add(r.settle.Load))
		}
	}
	seen := map[kevlard.StageKey]bool{}
	for _, s := range slices.Clone(self.Stages) {
		if s.State == Ready {
			delete(r.failures, s.Key)
			continue
		}
		if s.State == Stalled {
			continue
		}
		seen[s.Key] = true
		l, ok := r.loads[s.Key]
		switch {
		case !ok || s.Progress != l.progress:
			l = load{s.Progress, now, now}
		case s.Waits && now < l.begun.Add(maxWaits*r.settle.Load):
			l.at = now
		}
		r.loads[s.Key] = l
		if now < l.at.Add(r.settle.Load) {
			r.wake(l.at.Add(r.settle.Load))
			continue
		}
		r.LoadFailed(now, s.Key, "the load made no progress in "+r.settle.Load.String())
		delete(seen, s.Key)
		out = append(out, Action{Do: Release, Adoption: Adoption{Key: s.Key, Device: s.Device, Reason: LoadStuck}})
		self.Stages = slices.DeleteFunc(slices.Clone(self.Stages), func(o Stage) bool { return o.Key == s.Key })
	}
	for k := range r.loads {
		if !seen[k] {
			delete(r.loads, k)
		}
	}
	return out
}

// look notes when a node last joined, or came back in a new life, and when one last went.
func (r *Reformer) look(now kevlard.Instant, v View) {
	alive := map[kevlard.NodeID]kevlard.BootID{}
	for _, n := range v.Nodes {
		if n.planned() && n.State == Alive {
			alive[n.ID] = n.Boot
			if boot, ok := r.members[n.ID]; !ok || boot != n.Boot {
				r.quiet = now
			}
		}
	}
	for id := range r.members {
		if _, ok := alive[id]; !ok {
			r.fell = now
		}
	}
	r.members = alive
}

// want notes since when each adoption is wanted for its reason. A loss that is over
// before it was acted on was a flap.
func (r *Reformer) want(now kevlard.Instant, v View, self *Node, share Share) {
	next := map[kevlard.StageKey]want{}
	for _, a := range share.Adopt {
		w, ok := r.wants[a.Key]
		if !ok || w.reason != a.Reason {
			w = want{a.Reason, now, now}
			if a.Reason == Death || a.Reason == Resplit {
				w.since = v.heard(a.Key, now)
			}
		}
		next[a.Key] = w
	}
	for k, w := range r.wants {
		held := slices.ContainsFunc(self.Stages, func(s Stage) bool { return s.Key == k })
		if _, still := next[k]; still || held || w.reason != Death || v.lost(k) {
			continue // it is wanted, was adopted, here or elsewhere, or could not be
		}
		if x := r.returns[k]; len(r.returns) < maxReturns || x.times > 0 {
			r.returns[k] = returned{min(x.times+1, 5), now}
		}
	}
	r.wants = next
}

// heard is when one of the nodes that are gone and held some of a stage's layers was last
// heard, before now; now if that is not known.
func (v View) heard(k kevlard.StageKey, now kevlard.Instant) (last kevlard.Instant) {
	for _, n := range v.Nodes {
		if (n.State == Dead || n.State == Left) && n.has(k) {
			last = max(last, cmp.Or(n.Heard, now))
		}
	}
	return min(cmp.Or(last, now), now)
}

// due is when a wanted adoption may begin.
func (r *Reformer) due(v View, self *Node, a Adoption) kevlard.Instant {
	w := r.wants[a.Key]
	rested := func(d time.Duration) kevlard.Instant {
		return min(max(w.since.Add(d), r.quiet.Add(d)), w.since.Add(5*d))
	}
	// Where many go at once, as in a split, their deaths are seen one after the other, and
	// what one asks for is not what all of them ask for.
	fallen := min(r.fell.Add(r.settle.Death/8), w.begun.Add(r.settle.Death/2))
	switch served := v.served(a.Key.Model); {
	case a.Reason == Death && a.ready > 0 && served:
		return max(fallen, w.since.Add(r.settle.Death<<r.returns[a.Key].times))
	case a.Reason == Death && (a.ready > 0 || served):
		return max(fallen, w.since.Add(r.settle.Death))
	case a.Reason == Death:
		return fallen
	case a.Reason == Drained && a.ready == 0:
		return w.since
	case a.Reason == Drained:
		return w.since.Add(r.settle.Drain)
	case a.Reason == Resplit && !served:
		return max(fallen, rested(r.settle.Death))
	case a.Reason == Join:
		return rested(r.settle.Join)
	case a.Reason == Rebalance && len(self.Stages) == 0:
		return w.since.Add(r.settle.Newcomer)
	}
	return w.since.Add(r.settle.Rebalance)
}

// adopt begins the most urgent load that is due, if none is under way.
func (r *Reformer) adopt(now kevlard.Instant, v View, self *Node, share Share, cramped map[int]bool, out []Action) []Action {
	busy := r.asked != kevlard.Never || slices.ContainsFunc(self.Stages, func(s Stage) bool { return s.State == Cold || s.State == Loading })
	weights := v.weights()
	for _, a := range share.Adopt {
		if busy {
			return out // its end changes the view, or is a deadline of its own
		}
		if due := r.due(v, self, a); now < due {
			r.wake(due)
			continue
		}
		if cramped[a.Device] {
			continue
		}
		room := self.Devices[a.Device].Budget
		for _, s := range self.Stages {
			if w, ok := weights[s.Key.Model]; ok && s.Device == a.Device {
				room -= w.need(s.Key.Layers)
			}
		}
		if a.Need > room {
			cramped[a.Device] = true
			continue
		}
		act := Action{Do: Adopt, Adoption: a}
		if a.Source == Peer {
			act.From = v.sources(a.Key, r.self)
		}
		r.pending, r.asked, busy = a.Key, now, true
		r.wake(now.Add(r.settle.Load))
		out = append(out, act)
	}
	return out
}

// need is what a stage takes of a budget; 0 for weights or ranges that make no sense.
func (w Weights) need(l kevlard.Layers) int64 {
	layers := 0
	for _, r := range w.Layers {
		layers += r.Count
	}
	if !w.Check(layers) || !valid(l) || l.Hi > layers {
		return 0
	}
	s := newSizes(w)
	return s.need(l)
}

// sources lists who has some of a stage's layers on disk.
func (v View) sources(k kevlard.StageKey, self kevlard.NodeID) (out []kevlard.NodeID) {
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.ID == self || n.State == Dead || n.State == Left || len(out) == maxFrom {
			continue
		}
		if slices.ContainsFunc(n.local(k.Model), func(l kevlard.Layers) bool { return l.Lo < k.Layers.Hi && k.Layers.Lo < l.Hi }) {
			out = append(out, n.ID)
		}
	}
	return out
}
