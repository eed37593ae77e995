package audit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// ringOf makes a view of holders from words like "a+b-c": a agrees with b and disputes c.
func ringOf(words ...string) topology.View {
	var v topology.View
	for _, w := range words {
		s := topology.Stage{Key: middle.Key, State: topology.Ready, Class: "c"}
		for i := 1; i+1 < len(w); i += 2 {
			if about := kevlard.NodeID(w[i+1 : i+2]); w[i] == '+' {
				s.Agrees = append(s.Agrees, about)
			} else {
				s.Disputes = append(s.Disputes, about)
			}
		}
		v.Nodes = append(v.Nodes, topology.Node{ID: kevlard.NodeID(w[:1]), Boot: kevlard.BootID(w[:1] + ".1"), State: topology.Alive, Stages: []topology.Stage{s}})
	}
	return v
}

// settle shows a view, and shows it again when all waiting is over.
func (t *Trust) settle(v topology.View) (lost, regained []Tally) {
	lost, regained = t.See(1, v)
	if at := t.Deadline(); at != kevlard.Never {
		more, again := t.See(at, v)
		lost, regained = append(lost, more...), append(regained, again...)
	}
	return lost, regained
}

func distrusted(t *Trust, v topology.View) (out string) {
	for _, n := range v.Nodes {
		if t.Distrusts(n.ID) {
			out += string(n.ID)
		}
	}
	return out
}

func TestTrust(t *testing.T) {
	for _, c := range []struct {
		name string
		ring []string
		want string
	}{
		{"nobody says anything", []string{"a", "b"}, ""},
		{"all agree", []string{"a+b+c", "b+a+c", "c+a+b"}, ""},
		{"two against one, who disputes both", []string{"a+b-c", "b+a-c", "c-a-b"}, "c"},
		{"one is enough where nobody confirms", []string{"a-b", "b"}, "b"},
		{"of two that dispute each other neither is used", []string{"a-b", "b-a"}, "ab"},
		{"two pairs dispute each other: a tie", []string{"a+b-c-d", "b+a-c-d", "c+d-a-b", "d+c-a-b"}, "abcd"},
		{"three against two liars", []string{"a+b+c-d-e", "b+a+c-d-e", "c+a+b-d-e", "d+e-a-b-c", "e+d-a-b-c"}, "de"},
		{"a word on oneself counts for nothing", []string{"a-b", "b+b+b+b"}, "b"},
		{"saying it twice is one vote", []string{"a+b", "b+a", "c-a-a-a"}, ""},
		{"who says both disputes", []string{"a+b-b", "b"}, "b"},
		{"names that nobody has", []string{"a-z-y"}, ""},
	} {
		var trust Trust
		v := ringOf(c.ring...)
		lost, _ := trust.settle(v)
		if got := distrusted(&trust, v); got != c.want || len(lost) != len(c.want) {
			t.Errorf("%s: %q is not believed (%v), want %q", c.name, got, lost, c.want)
		}
		if again, back := trust.settle(v); len(again)+len(back) != 0 {
			t.Errorf("%s: the same view changes something: %v %v", c.name, again, back)
		}
		if (trust.Suffix() == "") != (c.want == "") {
			t.Errorf("%s: suffix %q", c.name, trust.Suffix())
		}
	}
}

// TestOthersAreWaitedFor: one word is not enough while holders that could turn the count
// have not spoken, and is after a while.
func TestOthersAreWaitedFor(t *testing.T) {
	see := func(trust *Trust, at kevlard.Instant, ring ...string) string {
		v := ringOf(ring...)
		trust.See(at, v)
		return distrusted(trust, v)
	}
	var trust Trust
	if got := see(&trust, 1, "a-b", "b", "c"); got != "" || trust.Deadline() != kevlard.Instant(1).Add(grace) {
		t.Errorf("before c has spoken: %q, until %v", got, trust.Deadline())
	}
	if got := see(&trust, 2, "a-b", "b", "c+b"); got != "" || trust.Deadline() != kevlard.Never {
		t.Errorf("c confirms: %q, until %v", got, trust.Deadline())
	}
	if got := see(&trust, 3, "a-b", "b", "c-b"); got != "b" {
		t.Errorf("c disputes too: %q", got)
	}
	trust = Trust{}
	see(&trust, 1, "a-b", "b", "c")
	if got := see(&trust, kevlard.Instant(grace), "a-b", "b", "c"); got != "" {
		t.Errorf("a moment early: %q", got)
	}
	if got := see(&trust, trust.Deadline(), "a-b", "b", "c"); got != "b" || trust.Deadline() != kevlard.Never {
		t.Errorf("c says nothing: %q, until %v", got, trust.Deadline())
	}
	trust = Trust{}
	see(&trust, 1, "a-b", "b", "c")
	trust.Forgive(kevlard.Instant(2*grace), grace) // this node was away
	if got := see(&trust, kevlard.Instant(2*grace), "a-b", "b", "c"); got != "" || trust.Deadline() != kevlard.Instant(1).Add(2*grace) {
		t.Errorf("after this node was away: %q, until %v", got, trust.Deadline())
	}
	trust = Trust{}
	v := ringOf("a-b", "b", "c", "d", "e")
	v.Nodes[2].State, v.Nodes[3].Stages[0].Class, v.Nodes[4].Stages[0].State = topology.Dead, "other", topology.Loading
	if trust.See(1, v); !trust.Distrusts("b") {
		t.Error("waits for who can't speak")
	}
	trust = Trust{}
	if got := see(&trust, 1, "a-b", "b", "c-b", "d"); got != "b" {
		t.Errorf("d could not turn it: %q", got)
	}
}

// TestTrustIsRegained only by another holder's word, or when the name is forgotten.
func TestTrustIsRegained(t *testing.T) {
	var trust Trust
	trust.settle(ringOf("a-b", "b"))
	suffix := trust.Suffix()
	for _, stays := range [][]string{
		{"b"},      // who found it is gone
		{"a", "b"}, // and has come back without a memory
		{"a-b", "b"},
		{"b+b"},
	} {
		if _, back := trust.settle(ringOf(stays...)); len(back) != 0 || !trust.Distrusts("b") {
			t.Errorf("%v clears b", stays)
		}
	}
	if _, back := trust.settle(ringOf("a+b", "b+a")); len(back) != 1 || trust.Distrusts("b") {
		t.Errorf("a's agreement does not clear b: %v", back)
	}
	if trust.Suffix() != suffix {
		t.Error("what was computed under the liar can be found again")
	}
	trust.settle(ringOf("a-b", "b"))
	if trust.Suffix() == suffix {
		t.Error("a second loss changes no names")
	}
	if trust.settle(ringOf("a-b")); trust.Distrusts("b") {
		t.Error("a name that the ring has forgotten is not believed")
	}
}

// in has the stage of a node of the view in another state.
func in(v topology.View, of kevlard.NodeID, s topology.StageState) topology.View {
	for i := range v.Nodes {
		if v.Nodes[i].ID == of {
			v.Nodes[i].Stages[0].State = s
		}
	}
	return v
}

// TestAWordThatWasOutvotedStaysSo: of two honest holders one is restarted, and the liar that
// both have found still disputes the other. Nobody has said anything new of that one.
func TestAWordThatWasOutvotedStaysSo(t *testing.T) {
	all := []string{"a+b-c", "b+a-c", "c-a-b"}
	later := kevlard.Instant(1).Add(grace)
	for name, v := range map[string]topology.View{
		"b loads":       in(ringOf("a-c", "b", "c-a-b"), "b", topology.Loading),
		"b has nothing": ringOf("a-c", "c-a-b"),
		"a loads": func() topology.View {
			v := in(ringOf("a", "b-c", "c-a-b"), "a", topology.Loading)
			v.Nodes[0].Boot = "a.2"
			return v
		}(),
	} {
		var trust Trust
		trust.settle(ringOf(all...))
		for _, at := range []kevlard.Instant{later, later.Add(grace)} {
			if lost, _ := trust.See(at, v); len(lost) != 0 || !trust.Distrusts("c") {
				t.Errorf("%s: %v is not believed", name, lost)
			}
		}
	}
	see := func(trust *Trust, at kevlard.Instant, v topology.View) string {
		trust.See(at, v)
		return distrusted(trust, v)
	}
	for name, away := range map[string]time.Duration{"too early": 0, "this node was away": grace} { // b may not have looked again
		var trust Trust
		trust.settle(ringOf(all...))
		at := (later - 1).Add(away)
		trust.Forgive(at, away)
		if got := see(&trust, at, ringOf("a-c", "c-a-b")); got != "ac" {
			t.Errorf("%s: %q are not believed when b is gone", name, got)
		}
	}
	var trust Trust // another life of a may be another one: others say so at once, or do not
	trust.settle(ringOf(all...))
	v := ringOf("a-c", "b-c", "c-a-b")
	v.Nodes[0].Boot = "a.2"
	if got := see(&trust, later, v); got != "c" || trust.Deadline() == kevlard.Never {
		t.Errorf("%q are not believed when a is back, until %v", got, trust.Deadline())
	}
	if got := see(&trust, trust.Deadline(), v); got != "ac" {
		t.Errorf("%q are not believed when nobody confirms the new life of a", got)
	}
	trust = Trust{} // what is new counts
	trust.settle(ringOf("a+b-c", "b+a-c", "c-a-b"))
	if got := see(&trust, later, ringOf("a-c", "b-a-c", "c-a-b")); got != "ac" {
		t.Errorf("%q are not believed when b has changed its mind of a", got)
	}
	v = ringOf("a-c", "c-a")
	v.Nodes[1].Boot = "c.2"
	trust = Trust{}
	trust.settle(ringOf(all...))
	if got := see(&trust, later, v); got != "ac" {
		t.Errorf("%q are not believed when another life of c disputes a", got)
	}
}

// TestLayersNobodyElseHas: a liar says that it holds layers that are nobody's, and disputes
// honest nodes there.
func TestLayersNobodyElseHas(t *testing.T) {
	other := middle.Key
	other.Layers.Hi++
	v := ringOf("a+b", "b+a", "c")
	v.Nodes[2].Stages = append(v.Nodes[2].Stages, topology.Stage{Key: other, State: topology.Ready, Class: "c", Disputes: []kevlard.NodeID{"a", "b"}})
	var trust Trust
	if lost, _ := trust.settle(v); len(lost) != 0 {
		t.Errorf("%v are not believed", lost)
	}
	// Where nobody stands for a node its accuser counts, as for layers that both hold: it may
	// have been found, and hold others now.
	v.Nodes[0].Stages[0].Agrees, trust = nil, Trust{}
	if lost, _ := trust.settle(v); len(lost) != 1 || !trust.Distrusts("b") {
		t.Errorf("%v are not believed", lost)
	}
}

// TestOtherLayersAfterTheRepair: a node that was found, and repaired, takes other layers on.
// Another holder of these clears it; the word of who found it stands.
func TestOtherLayersAfterTheRepair(t *testing.T) {
	other := middle.Key
	other.Layers.Hi++
	stage := func(words ...kevlard.NodeID) []topology.Stage {
		return []topology.Stage{{Key: other, State: topology.Ready, Class: "c", Agrees: words}}
	}
	var trust Trust
	trust.settle(ringOf("a-b", "b", "c"))
	v := ringOf("a-b", "b", "c")
	v.Nodes[1].Stages, v.Nodes[2].Stages = stage(), stage()
	if trust.settle(v); !trust.Distrusts("b") {
		t.Error("other layers alone clear it")
	}
	v.Nodes[0].Stages = append(v.Nodes[0].Stages, stage("b")...)
	if trust.settle(v); !trust.Distrusts("b") {
		t.Error("who disputes it clears it")
	}
	v.Nodes[2].Stages = stage("b")
	if _, back := trust.settle(v); len(back) != 1 || trust.Distrusts("b") {
		t.Errorf("c does not clear it: %v", back)
	}
}

// TestAuditorsThatAreAway clear nobody: of three that found two liars, which confirm each
// other, two are started anew.
func TestAuditorsThatAreAway(t *testing.T) {
	var trust Trust
	trust.settle(ringOf("a+b+c-d-e", "b+a+c-d-e", "c+a+b-d-e", "d+e-a-b-c", "e+d-a-b-c"))
	v := ringOf("a-d-e", "b", "c", "d+e-a-b-c", "e+d-a-b-c")
	v.Nodes[1].Boot, v.Nodes[2].Boot = "b.2", "c.2"
	if _, back := trust.See(1, v); len(back) != 0 || !trust.Distrusts("d") || !trust.Distrusts("e") {
		t.Errorf("liars are believed: %v", back)
	}
	// Who says otherwise now has refuted itself.
	if _, back := trust.See(1, ringOf("a-d+e", "b+d+e", "c+d+e", "d+e", "e+d")); len(back) != 2 {
		t.Errorf("%v is believed again", back)
	}
}

// TestDeadAuditorsCount: a liar is not cleared by the death of who found it.
func TestDeadAuditorsCount(t *testing.T) {
	v := ringOf("a-b", "b")
	v.Nodes[0].State = topology.Dead
	var trust Trust // of a node that joins now
	if trust.settle(v); !trust.Distrusts("b") {
		t.Error("b is believed")
	}
}

// TestMinorityBansNobody: whatever fewer liars than honest holders say of whom, each honest
// holder is believed once all honest ones have audited each other, and each liar that one
// of them has found is not.
func TestMinorityBansNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		honest := rapid.IntRange(1, 6).Draw(t, "honest")
		liars := rapid.IntRange(0, honest-1).Draw(t, "liars")
		name := func(i int) kevlard.NodeID { return kevlard.NodeID(fmt.Sprintf("n%02d", i)) }
		var v topology.View
		for i := range honest + liars {
			s := topology.Stage{Key: middle.Key, State: topology.Ready}
			for j := range honest + liars {
				switch lies := i >= honest; {
				case i == j:
				case lies && rapid.Bool().Draw(t, "says"):
					s.Disputes = append(s.Disputes, name(j))
				case lies && rapid.Bool().Draw(t, "confirms"):
					s.Agrees = append(s.Agrees, name(j), name(j), name(i))
				case lies:
				case j < honest:
					s.Agrees = append(s.Agrees, name(j))
				default:
					s.Disputes = append(s.Disputes, name(j))
				}
			}
			stages := []topology.Stage{s}
			if i >= honest && rapid.Bool().Draw(t, "repeats") {
				stages = append(stages, s, s)
			}
			v.Nodes = append(v.Nodes, topology.Node{ID: name(i), State: topology.Alive, Stages: stages})
		}
		var trust Trust
		lost, _ := trust.settle(v)
		for i := range honest + liars {
			if got := trust.Distrusts(name(i)); got != (i >= honest) {
				t.Errorf("%d honest and %d liars: %s is believed: %v (%v)", honest, liars, name(i), !got, lost)
			}
		}
	})
}

// TestSuffixIsTheSameEverywhere: owners that see the losses in another order share KV.
func TestSuffixIsTheSameEverywhere(t *testing.T) {
	var x, y Trust
	x.settle(ringOf("a-b", "b", "c", "d"))
	x.settle(ringOf("a-b", "b", "c-d", "d"))
	y.settle(ringOf("a", "b", "c-d", "d"))
	y.settle(ringOf("a-b", "b", "c-d", "d"))
	if x.Suffix() != y.Suffix() || x.Suffix() == "" {
		t.Errorf("%q and %q", x.Suffix(), y.Suffix())
	}
	if !slices.Equal(x.Bad()[0].Against, []kevlard.NodeID{"a"}) {
		t.Errorf("%v", x.Bad())
	}
}

func TestSuffixOfSalt(t *testing.T) {
	for salt, want := range map[string]string{
		"": "", "tenant": "", "~0123456789abcdef": "~0123456789abcdef", "tenant~0123456789abcdef": "~0123456789abcdef",
		"tenant~0123456789abcdeF": "", "0123456789abcdef": "", "tenant~0123456789abcde": "", "a~0123456789abcdef~fedcba9876543210": "~fedcba9876543210",
	} {
		if got := Suffix(salt); got != want {
			t.Errorf("of %q: %q, want %q", salt, got, want)
		}
	}
}
