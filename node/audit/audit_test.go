package audit

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// rig is a ring of holders of one stage, of which "me" audits the others. Stages compute
// a hash of their weights and the input.
type rig struct {
	*testing.T
	m       *Machine
	now     kevlard.Instant
	hold    Holding
	view    topology.View
	weights map[kevlard.NodeID]string // of who differs; "" is right
	mute    map[kevlard.NodeID]bool   // answers nothing
	refuses map[kevlard.NodeID]bool
	bad     map[kevlard.NodeID]bool // not believed
	busy    bool
	asked   []asked
	judged  []Judged
	inputs  []string // of each frame to a peer
}

type asked struct {
	node kevlard.NodeID
	at   kevlard.Instant
}

var middle = Holding{Key: kevlard.StageKey{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 2, Hi: 4}}, Class: "c", Width: 64, Vocab: 100}

func newRig(t *testing.T, h Holding, peers ...kevlard.NodeID) *rig {
	r := &rig{T: t, hold: h, weights: map[kevlard.NodeID]string{}, mute: map[kevlard.NodeID]bool{}, refuses: map[kevlard.NodeID]bool{}}
	r.m = New(Config{Self: "me", Boot: "me.1", Seed: [32]byte{7}})
	for _, n := range append([]kevlard.NodeID{"me"}, peers...) {
		r.view.Nodes = append(r.view.Nodes, topology.Node{
			ID: n, Boot: kevlard.BootID(n + ".1"), State: topology.Alive, Stages: []topology.Stage{{Key: h.Key, State: topology.Ready, Class: h.Class}},
		})
	}
	slices.SortFunc(r.view.Nodes, func(a, b topology.Node) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
	r.see()
	return r
}

func (r *rig) node(id kevlard.NodeID) *topology.Node {
	return &r.view.Nodes[slices.IndexFunc(r.view.Nodes, func(n topology.Node) bool { return n.ID == id })]
}

func (r *rig) see() {
	r.do(r.m.See(r.now, topology.View{Nodes: slices.Clone(r.view.Nodes)}, []Holding{r.hold}, func(n kevlard.NodeID) bool { return r.bad[n] }, nil))
}

// do plays the stages.
func (r *rig) do(effects []Effect) {
	r.Helper()
	for _, e := range effects {
		switch e := e.(type) {
		case Judged:
			r.judged = append(r.judged, e)
		case Send:
			p, ok := e.Message.(protocol.Prepare)
			if !ok {
				continue
			}
			if _, err := protocol.NewCodec().EncodeMessage(p); err != nil {
				r.Errorf("a stage would not take it: %v", err)
			}
			if e.To != "me" {
				r.asked = append(r.asked, asked{e.To, r.now})
			}
			switch {
			case r.refuses[e.To]:
				r.answer(e.To, protocol.Prepared{Session: p.Session, Fence: p.Fence, Lo: p.Stage.Layers.Lo, Refusal: protocol.RefusedCapacity})
			case !r.mute[e.To]:
				r.answer(e.To, protocol.Prepared{Session: p.Session, Fence: p.Fence, Lo: p.Stage.Layers.Lo})
			}
		case SendFrame:
			r.compute(e.To, e.Frame.Items)
		}
	}
}

func (r *rig) answer(from kevlard.NodeID, msg protocol.Message) {
	if r.m.Concerns(msg.(protocol.Prepared).Session) {
		r.do(r.m.Received(r.now, from, msg, nil))
	}
}

func (r *rig) compute(at kevlard.NodeID, items []protocol.Item) {
	for _, it := range items {
		r.computeItem(at, it)
	}
}

func (r *rig) computeItem(at kevlard.NodeID, it protocol.Item) {
	if at != "me" {
		r.inputs = append(r.inputs, fmt.Sprint(it.Tokens, it.Rows))
	}
	h := fnv.New64a()
	fmt.Fprint(h, r.weights[at], it.Tokens, it.Rows)
	if r.hold.Last {
		s := protocol.Step{Session: it.Session, Fence: it.Fence, Next: it.End(), Sampled: true, Token: kevlard.Token(h.Sum64() % 100), Logprobs: &kevlard.Logprobs{Chosen: -1}}
		if r.m.Concerns(it.Session) {
			r.do(r.m.Received(r.now, at, s, nil))
		}
		return
	}
	out := protocol.Item{Session: it.Session, Fence: it.Fence, Lo: r.hold.Key.Layers.Hi, Width: r.hold.Width}
	for i := range it.Tokens { // one by one: frames are cut anywhere
		row := make([]byte, r.hold.Width)
		binary.LittleEndian.PutUint64(row, h.Sum64()>>2) // no NaN
		out.Pos, out.Tokens, out.Rows = i, it.Tokens[i:i+1], row
		if r.m.Concerns(out.Session) {
			r.do(r.m.Arrived(r.now, at, out, nil))
		}
	}
}

// sleep lets time pass.
func (r *rig) sleep(d time.Duration) {
	for end := r.now.Add(d); ; {
		at := r.m.Deadline()
		if r.m.run == nil {
			for c, s := range r.m.claims {
				if s.live && s.at < at {
					r.Fatalf("due at %v, and %v at %v", at, c, s.at)
				}
			}
		}
		if at > end {
			r.now = end
			return
		}
		r.now = max(at, r.now)
		r.do(r.m.Wake(r.now, func(_ kevlard.NodeID, n int) bool {
			if n > positions || n*r.hold.Width > maxBytes {
				r.Errorf("an audit of %d positions", n)
			}
			return !r.busy
		}, nil))
	}
}

func (r *rig) times(n kevlard.NodeID) (k int) {
	for _, a := range r.asked {
		if a.node == n {
			k++
		}
	}
	return k
}

func kinds() map[string]Holding {
	first, last := middle, middle
	first.Key.Layers.Lo, last.Last = 0, true
	return map[string]Holding{"first stage": first, "middle": middle, "last": last}
}

// TestFindsOtherWeights audits an honest peer and one with other weights.
func TestFindsOtherWeights(t *testing.T) {
	for name, h := range kinds() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, h, "a", "b")
			r.weights["b"] = "other"
			r.sleep(r.m.cfg.Timing.First)
			agrees, disputes := r.m.Words(h.Key)
			if !slices.Equal(agrees, []kevlard.NodeID{"a"}) || !slices.Equal(disputes, []kevlard.NodeID{"b"}) {
				t.Fatalf("after %v: agrees with %v, disputes %v", r.m.cfg.Timing.First, agrees, disputes)
			}
			if !r.m.Disputes("b") || r.m.Disputes("a") || len(r.judged) != 2 {
				t.Errorf("judged %+v", r.judged)
			}
			if r.times("b") != 2 || r.times("a") != 1 {
				t.Errorf("asked %v: want an audit repeated only where it differs", r.asked)
			}
			seen := map[string]bool{}
			for _, in := range r.inputs {
				if seen[in] {
					t.Error("an input was used twice")
				}
				seen[in] = true
			}
		})
	}
}

// TestNothingDiffersUnnoticed changes one bit after the other.
func TestNothingDiffersUnnoticed(t *testing.T) {
	mine := make([]byte, 2*middle.Width)
	for i := range mine {
		mine[i] = byte(i)
	}
	for bit := range 8 * len(mine) {
		theirs := slices.Clone(mine)
		theirs[bit/8] ^= 1 << (bit % 8)
		if differRows(middle, mine, theirs) == "" {
			t.Fatalf("bit %d differs and is not found", bit)
		}
	}
	if why := differRows(middle, mine, slices.Clone(mine)); why != "" {
		t.Errorf("equal rows differ: %s", why)
	}
}

func TestInputsOfTwoLivesDiffer(t *testing.T) {
	inputs := map[string]bool{}
	for i := range 3 {
		r := newRig(t, middle)
		r.m.cfg.Seed[1], r.m.cfg.Boot = byte(i), "me.1"
		r.view.Nodes = append([]topology.Node{{ID: "a", Boot: "a.1", State: topology.Alive, Stages: r.view.Nodes[0].Stages}}, r.view.Nodes...)
		r.see()
		r.sleep(r.m.cfg.Timing.First)
		inputs[fmt.Sprint(r.inputs)] = true
	}
	if len(inputs) != 3 {
		t.Errorf("%d different inputs of three secrets", len(inputs))
	}
}

// TestOneDifferenceIsNoDispute lets one result be wrong.
func TestOneDifferenceIsNoDispute(t *testing.T) {
	r := newRig(t, middle, "a")
	r.weights["a"] = "a flipped bit"
	for r.times("a") < 1 {
		at := r.m.Deadline()
		r.now = at
		r.do(r.m.Wake(at, func(kevlard.NodeID, int) bool { return true }, nil))
	}
	r.weights["a"] = ""
	r.sleep(time.Second)
	if r.m.Disputes("a") || r.times("a") != 1+looks || r.m.Counters().Differed != 1 || r.m.Counters().Agreed != looks {
		t.Errorf("%+v after %d audits, disputed: %v", r.m.Counters(), r.times("a"), r.m.Disputes("a"))
	}
}

// TestSlightFault: a fault that shows in one of four inputs is disputed at its second
// difference, and stays so as long as it shows now and then.
func TestSlightFault(t *testing.T) {
	r := newRig(t, middle, "a")
	k := 0
	fault := func(kevlard.NodeID, int) bool {
		k++
		r.weights["a"] = []string{"", "", "", "slight"}[k%4]
		return true
	}
	for end := r.now.Add(time.Hour); r.m.Deadline() < end; {
		r.now = r.m.Deadline()
		r.do(r.m.Wake(r.now, fault, nil))
		if c := r.m.Counters(); c.Differed >= 2 && !r.m.Disputes("a") {
			t.Fatalf("%+v, and it is not disputed", c)
		}
	}
	if !r.m.Disputes("a") || len(r.judged) != 2 { // it agreed at first
		t.Errorf("disputed: %v, judged %+v, %+v", r.m.Disputes("a"), r.judged, r.m.Counters())
	}
}

// TestSilenceIsNoVerdict: who does not answer is asked less and less often.
func TestSilenceIsNoVerdict(t *testing.T) {
	for name, set := range map[string]func(*rig){
		"mute":    func(r *rig) { r.mute["a"] = true },
		"refuses": func(r *rig) { r.refuses["a"] = true },
		"own":     func(r *rig) { r.refuses["me"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, middle, "a")
			set(r)
			r.sleep(time.Hour)
			agrees, disputes := r.m.Words(middle.Key)
			if len(agrees)+len(disputes) != 0 || r.m.Counters().Silent == 0 {
				t.Errorf("agrees %v, disputes %v, %+v", agrees, disputes, r.m.Counters())
			}
			if n := r.times("a"); n < 5 || n > 20 {
				t.Errorf("asked %d times in an hour", n)
			}
		})
	}
}

// TestCost counts the audits of a day, and wants the first ones of many holders apart.
func TestCost(t *testing.T) {
	var peers []kevlard.NodeID
	for i := range 40 {
		peers = append(peers, kevlard.NodeID(fmt.Sprintf("n%02d", i)))
	}
	r := newRig(t, middle, peers...)
	r.sleep(r.m.cfg.Timing.First)
	if len(r.asked) != neighbours {
		t.Errorf("%d of 40 peers are audited, want %d", len(r.asked), neighbours)
	}
	at := map[kevlard.Instant]bool{}
	for _, a := range r.asked {
		at[a.at] = true
	}
	if len(at) != neighbours {
		t.Errorf("%d first audits at %d times", len(r.asked), len(at))
	}
	r.sleep(24 * time.Hour)
	if n := len(r.asked); n < 100*neighbours || n > 200*neighbours { // every 10 minutes is 144
		t.Errorf("%d audits of %d peers in a day", n, neighbours)
	}
}

func TestEveryoneIsAuditedByEight(t *testing.T) {
	names := []kevlard.NodeID{}
	for i := range 20 {
		names = append(names, kevlard.NodeID(fmt.Sprintf("n%02d", i)))
	}
	by := map[kevlard.NodeID]int{}
	for i, self := range names {
		r := newRig(t, middle, slices.Concat(names[:i], names[i+1:])...)
		r.view.Nodes = slices.DeleteFunc(r.view.Nodes, func(n topology.Node) bool { return n.ID == "me" })
		r.m = New(Config{Self: self, Seed: [32]byte{1}})
		r.see()
		for c := range r.m.claims {
			by[c.node]++
		}
	}
	for _, n := range names {
		if by[n] != neighbours {
			t.Errorf("%s is audited by %d", n, by[n])
		}
	}
}

func TestWaitsWhileBusy(t *testing.T) {
	r := newRig(t, middle, "a")
	r.busy = true
	r.sleep(time.Minute)
	if len(r.asked) != 0 {
		t.Errorf("asked %v under overload", r.asked)
	}
	r.busy = false
	r.sleep(2 * r.m.cfg.Timing.Retry)
	if r.times("a") != 1 {
		t.Errorf("asked %d times when there was time", r.times("a"))
	}
}

// TestAnotherLife: a claim of another life is new. An agreement does not carry over, a
// dispute stands until it is refuted.
func TestAnotherLife(t *testing.T) {
	r := newRig(t, middle, "a", "b")
	r.weights["b"] = "other"
	r.sleep(r.m.cfg.Timing.First)
	r.node("a").Boot, r.node("b").Boot = "a.2", "b.2"
	r.mute["a"], r.mute["b"] = true, true
	r.see()
	if agrees, disputes := r.m.Words(middle.Key); len(agrees) != 0 || len(disputes) != 1 {
		t.Errorf("of new lives: agrees %v, disputes %v", agrees, disputes)
	}
	r.mute, r.weights["b"] = map[kevlard.NodeID]bool{}, ""
	r.sleep(20 * time.Second)
	if agrees, disputes := r.m.Words(middle.Key); len(agrees) != 2 || len(disputes) != 0 {
		t.Errorf("after the repair: agrees %v, disputes %v", agrees, disputes)
	}
	r.view.Nodes = slices.DeleteFunc(r.view.Nodes, func(n topology.Node) bool { return n.ID != "me" })
	r.see()
	if len(r.m.claims) != 0 || r.m.Deadline() != kevlard.Never {
		t.Errorf("%d claims of nobody, due at %v", len(r.m.claims), r.m.Deadline())
	}
}

// TestWhatWasSaidOfAnotherLife is taken back: others count it as long as the record has it.
func TestWhatWasSaidOfAnotherLife(t *testing.T) {
	r := newRig(t, middle, "a", "b")
	r.sleep(r.m.cfg.Timing.First)
	r.judged = nil
	r.node("a").Boot = "a.2"
	r.node("b").Stages = nil
	r.see()
	if want := []Judged{{Node: "a", Key: middle.Key}, {Node: "b", Key: middle.Key}}; !slices.Equal(r.judged, want) {
		t.Errorf("judged %+v, want %+v", r.judged, want)
	}
	r.judged = nil
	if r.see(); len(r.judged) != 0 {
		t.Errorf("the same view again: %+v", r.judged)
	}
}

// TestClearedByEight: who is not believed is confirmed by a holder that had no word on it
// only when eight audits in a row agree.
func TestClearedByEight(t *testing.T) {
	r := newRig(t, middle, "a", "b")
	r.bad = map[kevlard.NodeID]bool{"a": true}
	r.see()
	r.sleep(r.m.cfg.Timing.First)
	if agrees, _ := r.m.Words(middle.Key); len(agrees) != 2 || r.times("a") != looks || r.times("b") != 1 {
		t.Errorf("agrees with %v after %d audits of a and %d of b", agrees, r.times("a"), r.times("b"))
	}
	r = newRig(t, middle, "a")
	r.bad = map[kevlard.NodeID]bool{"a": true}
	r.see()
	r.busy = true // for one audit at a time
	for r.times("a") < looks-1 {
		r.now = r.m.Deadline()
		r.do(r.m.Wake(r.now, func(kevlard.NodeID, int) bool { r.busy = !r.busy; return !r.busy }, nil))
	}
	r.weights["a"] = "slight"
	r.sleep(time.Minute)
	if agrees, disputes := r.m.Words(middle.Key); len(agrees) != 0 || len(disputes) != 1 {
		t.Errorf("agrees with %v, disputes %v after %d audits", agrees, disputes, r.times("a"))
	}
}

// TestDisputesAreLookedInto: who disputes, and who is disputed, is audited at once, though
// it agreed just now.
func TestDisputesAreLookedInto(t *testing.T) {
	r := newRig(t, middle, "a", "b", "c")
	r.sleep(r.m.cfg.Timing.First)
	r.node("a").Stages = slices.Clone(r.node("a").Stages)
	r.node("a").Stages[0].Disputes = []kevlard.NodeID{"b"}
	for range 3 { // the same word does not count again
		r.see()
		r.sleep(r.m.cfg.Timing.First)
	}
	if r.times("a") != 2 || r.times("b") != 2 || r.times("c") != 1 {
		t.Errorf("asked a %d, b %d and c %d times", r.times("a"), r.times("b"), r.times("c"))
	}
}

// TestStrangers: what others send, and what is no answer, counts for nothing.
func TestStrangers(t *testing.T) {
	r := newRig(t, middle, "a")
	r.mute["a"] = true
	for r.m.run == nil {
		r.now = r.m.Deadline()
		r.do(r.m.Wake(r.now, func(kevlard.NodeID, int) bool { return true }, nil))
	}
	id := r.m.run.id
	it := protocol.Item{Session: id, Lo: 4, Tokens: make([]kevlard.Token, positions), Width: 64, Rows: make([]byte, positions*64)}
	for name, change := range map[string]func(*protocol.Item) kevlard.NodeID{
		"a third node": func(*protocol.Item) kevlard.NodeID { return "z" },
		"a gap":        func(it *protocol.Item) kevlard.NodeID { it.Pos = 1; return "a" },
		"too many":     func(it *protocol.Item) kevlard.NodeID { it.Tokens = append(it.Tokens, 1); return "a" },
		"width":        func(it *protocol.Item) kevlard.NodeID { it.Width = 32; return "a" },
		"no rows":      func(it *protocol.Item) kevlard.NodeID { it.Rows = nil; return "a" },
	} {
		bad := it
		bad.Tokens = slices.Clone(it.Tokens)
		if out := r.m.Arrived(r.now, change(&bad), bad, nil); len(out) != 0 || r.m.run == nil || r.m.run.theirs.n != 0 {
			t.Errorf("%s: taken", name)
		}
	}
	if out := r.m.Received(r.now, "z", protocol.Refused{Session: id}, nil); len(out) != 0 || r.m.run == nil {
		t.Error("a third node ended the audit")
	}
}

// TestOff: without a secret nobody is audited.
func TestOff(t *testing.T) {
	for name, c := range map[string]Config{"no seed": {Self: "me"}, "never": {Self: "me", Seed: [32]byte{1}, Timing: Timing{Every: -1}}} {
		r := newRig(t, middle, "a")
		r.m = New(c)
		r.see()
		r.sleep(time.Hour)
		if len(r.asked) != 0 {
			t.Errorf("%s: asked %v", name, r.asked)
		}
	}
}
