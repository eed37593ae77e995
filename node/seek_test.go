package node

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// prompt is long enough to ask who has a part of it.
func prompt() []kevlard.Token {
	p := make([]kevlard.Token, 100)
	for i := range p {
		p[i] = kevlard.Token(i % 10)
	}
	return p
}

// twoPipelines returns an owner in front of n1, n2 and n3, n4.
func twoPipelines(t *testing.T) *rig {
	t.Helper()
	return newRig(t, nil, "n1:0-1", "n2:1-2", "n3:0-1", "n4:1-2")
}

// tell answers what a session asked: who has so many positions.
func (r *rig) tell(id kevlard.SessionID, have map[kevlard.NodeID]int) {
	r.Helper()
	asked := sent[protocol.Seek](r.out)
	load := map[kevlard.NodeID]int{}
	for n, p := range r.m.peers {
		load[n] = p.load
	}
	if len(asked) == 0 {
		r.Fatalf("nobody was asked: %+v", r.out)
	}
	for _, n := range r.view.Nodes {
		if len(asked[n.ID]) == 0 {
			continue
		}
		a := protocol.Sought{Session: id, Load: load[n.ID]}
		if have[n.ID] > 0 {
			a.Stages = []protocol.Holding{{Layers: n.Stages[0].Key.Layers, Class: "c", Positions: have[n.ID]}}
		}
		r.say(n.ID, a)
	}
}

func (r *rig) wantRoute(id kevlard.SessionID, want ...kevlard.NodeID) protocol.Prepare {
	r.Helper()
	to, last := prepares(r.out, id)
	if !slices.Equal(to, want) {
		r.Fatalf("prepared %v, want %v", to, want)
	}
	return last
}

// TestGoesWhereThePrefixIs: the owner has never seen the conversation.
func TestGoesWhereThePrefixIs(t *testing.T) {
	for _, tc := range []struct {
		name string
		have map[kevlard.NodeID]int
		want []kevlard.NodeID
	}{
		{"nowhere", nil, []kevlard.NodeID{"n1", "n2"}},
		{"at one pipeline", map[kevlard.NodeID]int{"n3": 80, "n4": 80}, []kevlard.NodeID{"n3", "n4"}},
		{"at stages of both", map[kevlard.NodeID]int{"n3": 80, "n2": 80}, []kevlard.NodeID{"n3", "n2"}},
		{"only a little", map[kevlard.NodeID]int{"n3": 20, "n4": 20}, []kevlard.NodeID{"n1", "n2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := twoPipelines(t)
			r.submit("s", prompt()...)
			if to, _ := prepares(r.out, "s"); len(to) > 0 {
				t.Fatalf("prepared %v before anybody was asked", to)
			}
			r.tell("s", tc.have)
			r.wantRoute("s", tc.want...)
		})
	}
}

// TestAsksOnlyWhereItHelps: no round trip for a short prompt, nor where there is no
// choice.
func TestAsksOnlyWhereItHelps(t *testing.T) {
	r := twoPipelines(t)
	r.submit("s", 1, 2, 3)
	r.wantRoute("s", "n1", "n2")
	r = newRig(t, nil, "n1:0-1", "n2:1-2")
	r.submit("s", prompt()...)
	r.wantRoute("s", "n1", "n2")
}

// TestAsksAllWithOneMessage: a prompt is long, and its bytes are the same for all.
func TestAsksAllWithOneMessage(t *testing.T) {
	r := twoPipelines(t)
	r.submit("s", prompt()...)
	if all := effectsOf[SendAll](r.out); len(all) != 1 || !slices.Equal(all[0].To, []kevlard.NodeID{"n1", "n2", "n3", "n4"}) {
		t.Errorf("sends to all: %+v", all)
	}
	for _, s := range effectsOf[Send](r.out) {
		if _, seek := s.Message.(protocol.Seek); seek {
			t.Errorf("asks %s by itself", s.To)
		}
	}
}

// TestSilentNodesAreNotWaitedFor takes the answers that came in time.
func TestSilentNodesAreNotWaitedFor(t *testing.T) {
	r := twoPipelines(t)
	r.submit("s", prompt()...)
	for _, n := range []kevlard.NodeID{"n3", "n4"} {
		r.say(n, protocol.Sought{Session: "s", Stages: []protocol.Holding{{Layers: r.node(n).Stages[0].Key.Layers, Class: "c", Positions: 90}}})
	}
	if to, _ := prepares(r.out, "s"); len(to) > 0 {
		t.Fatalf("prepared %v before all have answered", to)
	}
	began := r.now
	r.out = r.sleep(150*time.Millisecond, "n3", "n4")
	r.wantRoute("s", "n3", "n4")
	if took := r.m.sessions["s"].Deadline().Sub(began); took > 2*time.Second {
		t.Errorf("the deadline of the prepares is %v after the question", took)
	}
	r.say("n1", protocol.Sought{Session: "s"}) // too late for anything
	if to, _ := prepares(r.out, "s"); len(to) > 0 {
		t.Errorf("a late answer makes it prepare %v", to)
	}
}

// TestIdleNodesDoNotDrawAway (K63): one node that is down and holds nothing does not make
// those with the prefix look busy.
func TestIdleNodesDoNotDrawAway(t *testing.T) {
	r := twoPipelines(t)
	for _, n := range []kevlard.NodeID{"n3", "n4"} {
		r.say(n, protocol.Ping{Seq: 1, Sessions: 6, Free: 1000})
	}
	r.node("n1").State = topology.Dead
	r.see()
	r.submit("s", prompt()...)
	r.tell("s", map[kevlard.NodeID]int{"n3": 90, "n4": 90})
	r.wantRoute("s", "n3", "n4")
}

// TestDrainingHolderOnce (K64): the next turn goes elsewhere while the holder drains, and
// returns to it afterwards.
func TestDrainingHolderOnce(t *testing.T) {
	r := twoPipelines(t)
	have := map[kevlard.NodeID]int{"n3": 90, "n4": 90}
	r.node("n3").State = topology.Draining
	r.see()
	r.submit("s", prompt()...)
	if asked := sent[protocol.Seek](r.out); len(asked["n3"]) > 0 {
		t.Error("a draining node was asked")
	}
	r.tell("s", have)
	r.wantRoute("s", "n1", "n2") // n4 alone is worth nothing
	r.step(Cancel{Session: "s"})
	r.node("n3").State = topology.Alive
	r.see()
	r.submit("t", prompt()...)
	r.tell("t", have)
	r.wantRoute("t", "n3", "n4")
}

// TestOverloadedHolderIsCopiedFrom: the session runs elsewhere, and its stages know whom
// to ask for what they lack.
func TestOverloadedHolderIsCopiedFrom(t *testing.T) {
	r := twoPipelines(t)
	for _, n := range []kevlard.NodeID{"n3", "n4"} {
		r.say(n, protocol.Ping{Seq: 1, Sessions: 20, Free: 1000})
	}
	r.submit("s", prompt()...)
	r.tell("s", map[kevlard.NodeID]int{"n3": 90, "n4": 90})
	if p := r.wantRoute("s", "n1", "n2"); p.Source != "n4" || p.Mark != 90 {
		t.Errorf("source %q of %d positions, want n4 of 90", p.Source, p.Mark)
	}
}

// TestTenantsAreAskedApart: the salt goes with the question.
func TestTenantsAreAskedApart(t *testing.T) {
	r := twoPipelines(t)
	r.step(Submit{Session: "s", Request: Request{Model: model.ID, Prompt: prompt(), MaxTokens: 5, Salt: "key:a"}})
	if f := sent[protocol.Seek](r.out)["n1"]; len(f) != 1 || f[0].Salt != "key:a" || !slices.Equal(f[0].Tokens, prompt()) {
		t.Errorf("asked %+v", f)
	}
}

// TestSaysWhatItHolds answers for a session that is prepared here.
func TestSaysWhatItHolds(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 2}}, "n1")
	r.say("n1", protocol.Seek{Session: "x", Model: kevlard.Digest{9}, Tokens: prompt()})
	if a := sent[protocol.Sought](r.out)["n1"]; len(a) != 1 || a[0].Session != "x" || len(a[0].Stages) != 0 {
		t.Errorf("another model: %+v", a)
	}
	r.say("n1", protocol.Seek{Session: "x", Model: model.ID, Tokens: prompt()})
	if a := sent[protocol.Sought](r.out)["n1"]; len(a) != 1 || len(a[0].Stages) != 0 {
		t.Errorf("nothing is here: %+v", a)
	}
}

// TestFindingsGoWithTheSession leaves nothing behind.
func TestFindingsGoWithTheSession(t *testing.T) {
	r := twoPipelines(t)
	r.submit("s", prompt()...)
	r.step(Cancel{Session: "s"})
	if len(r.m.seekings) != 0 {
		t.Errorf("%d findings of sessions that are over", len(r.m.seekings))
	}
	r.say("n1", protocol.Sought{Session: "s"})
	if len(r.out) != 0 {
		t.Errorf("an answer for a session that is over does %+v", r.out)
	}
}
