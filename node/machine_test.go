package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
	"pgregory.net/rapid"
)

func TestSubmitRefuses(t *testing.T) {
	for _, tc := range []struct {
		code   string
		status int
		do     func(*rig)
	}{
		{"draining", 503, func(r *rig) { r.step(Drain{}) }},
		{"overloaded", 429, func(r *rig) {
			for i := range r.m.cfg.Limits.Sessions {
				r.submit(kevlard.SessionID(fmt.Sprint("x", i)), 1)
			}
		}},
		{"session_busy", 409, func(r *rig) { r.submit("s", 1) }},
	} {
		t.Run(tc.code, func(t *testing.T) {
			r := newRig(t, nil, "n1")
			r.m.cfg.Limits.Sessions = 3
			tc.do(r)
			before := len(r.m.sessions)
			r.submit("s", 1)
			f := effectsOf[Finish](r.out)
			if len(f) != 1 || f[0].Err == nil || f[0].Err.Code != tc.code || f[0].Err.Status != tc.status || f[0].Err.Message == "" {
				t.Errorf("finish %+v", f)
			}
			if len(r.m.sessions) != before {
				t.Error("a refused session is kept")
			}
		})
	}
}

func TestDrainIsPublishedAndUndone(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 2}})
	r.step(Drain{})
	if p := effectsOf[Publish](r.out); len(p) != 1 || !p[0].Draining || len(p[0].Stages) != 1 {
		t.Errorf("publishes %+v", p)
	}
	r.step(Drain{Undo: true})
	r.submit("s", 1, 2)
	if to, _ := prepares(r.out, "s"); len(to) != 1 || to[0] != "o" {
		t.Errorf("prepares %v after the drain was undone", to)
	}
}

// TestPoisonIsRemembered lets a request kill two engines and comes back with it.
func TestPoisonIsRemembered(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2")
	r.submit("s", 6, 6, 6)
	for _, n := range []kevlard.NodeID{"n1", "n2"} {
		to, p := prepares(r.out, "s")
		if len(to) != 1 || to[0] != n || p.Solo != (n == "n2") {
			t.Fatalf("prepares %v %+v, want %s", to, p, n)
		}
		r.accept()
		r.say(n, protocol.Lost{Session: "s", Fence: p.Fence, Cause: "engine-exit", Suspect: true})
	}
	if f := effectsOf[Finish](r.out); len(f) != 1 || f[0].Err == nil || f[0].Err.Code != "poisoned" {
		t.Fatalf("finish %+v", f)
	}
	if len(reports(r.out, "poison")) != 1 {
		t.Error("no report names it")
	}
	r.submit("again", 6, 6, 6)
	if f := effectsOf[Finish](r.out); len(f) != 1 || f[0].Err == nil || f[0].Err.Status != 500 {
		t.Errorf("the same request: %+v", f)
	}
	r.submit("other", 6, 6, 7)
	if to, _ := prepares(r.out, "other"); len(to) != 1 {
		t.Error("another request is refused as well")
	}
}

func TestPoisonedForgetsTheOldest(t *testing.T) {
	p := newPoisoned(2)
	for _, b := range []byte{1, 2, 2, 3} {
		p.add(kevlard.Digest{b})
	}
	if p.has(kevlard.Digest{1}) || !p.has(kevlard.Digest{2}) || !p.has(kevlard.Digest{3}) || len(p.keys) != 2 {
		t.Errorf("%v", p.keys)
	}
}

func TestPrepareOfAnotherBoot(t *testing.T) {
	l := kevlard.Layers{Lo: 0, Hi: 2}
	r := newRig(t, []kevlard.Layers{l}, "n1")
	for want, p := range map[protocol.Refusal]protocol.Prepare{
		protocol.RefusedStale:   prepareFor("a", "n1.0", l, ""),
		protocol.RefusedNoStage: prepareFor("b", "n1.1", kevlard.Layers{Lo: 0, Hi: 1}, "n1"),
		"":                      prepareFor("c", "n1.1", l, ""),
	} {
		r.say("n1", p)
		if a := sent[protocol.Prepared](r.out)["n1"]; len(a) != 1 || a[0].Refusal != want {
			t.Errorf("%s: %+v, want %q", p.Session, a, want)
		}
	}
}

// TestWorkGoesThrough runs a session over this node's own two stages, as a shell
// that feeds back what is sent to itself.
func TestWorkGoesThrough(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 1}, {Lo: 1, Hi: 2}})
	r.submit("s", 1, 2, 3)
	var tokens []kevlard.Token
	queue := r.out
	for i := 0; len(queue) > 0 && i < 10000; i++ {
		e := queue[0]
		queue = queue[1:]
		r.now = r.now.Add(time.Microsecond)
		switch e := e.(type) {
		case Send:
			r.step(Received{From: "o", Boot: "o.1", Message: e.Message})
		case SendFrame:
			r.step(Arrived{From: "o", Boot: "o.1", Frame: e.Frame})
		case RunBatch:
			done := BatchDone{Stage: e.Stage, Run: e.Run, Batch: e.Batch.ID, Rows: make([][]byte, len(e.Batch.Parts))}
			for i, p := range e.Batch.Parts {
				done.Rows[i] = make([]byte, 8*len(p.Tokens))
				if p.Sample {
					done.Sampled = append(done.Sampled, kevlard.Sampled{Token: kevlard.Token(len(p.History))})
				}
			}
			r.step(done)
		case Emit:
			tokens = append(tokens, e.Token)
			r.out = nil
		default:
			r.out = nil
		}
		queue = append(queue, r.out...)
	}
	if len(tokens) != 50 || tokens[0] != 3 || tokens[49] != 52 {
		t.Errorf("%d tokens %v", len(tokens), tokens)
	}
	if s := r.m.Snapshot(r.now); len(s.Sessions) != 0 || s.Stages[0].Sessions != 0 || s.Stages[1].FreeCells != 1024 || s.Counters.GeneratedTokens != 50 {
		t.Errorf("left over: %+v", s)
	}
}

// TestRefusalsAreRelayed: a stage that does not know a session can only tell who
// sent the work; that stage knows the owner.
func TestRefusalsAreRelayed(t *testing.T) {
	l := kevlard.Layers{Lo: 0, Hi: 1}
	r := newRig(t, []kevlard.Layers{l}, "n1", "n2")
	r.say("n1", prepareFor("s", "n1.1", l, "n2"))
	refused := protocol.Refused{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 1, Reason: protocol.RefusedUnknown}
	r.say("n2", refused)
	if got := sent[protocol.Refused](r.out); len(got) != 1 || len(got["n1"]) != 1 || got["n1"][0] != refused {
		t.Errorf("relayed %v, want it at n1", got)
	}
	r.say("n2", protocol.Refused{Session: "unknown", Fence: refused.Fence, Lo: 1, Reason: protocol.RefusedUnknown})
	if got := sent[protocol.Refused](r.out); len(got) != 0 {
		t.Errorf("relayed %v of a session that nobody knows", got)
	}
	r.step(Arrived{From: "n2", Boot: "n2.1", Frame: protocol.Frame{Items: []protocol.Item{{Session: "x", Fence: refused.Fence, Lo: 7, Tokens: []kevlard.Token{1}}}}})
	if got := sent[protocol.Refused](r.out)["n2"]; len(got) != 1 || got[0].Reason != protocol.RefusedNoStage {
		t.Errorf("work for a stage that is not here: %+v", got)
	}
}

func TestServable(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:1-2")
	if ok, missing := r.m.Servable(model); !ok {
		t.Errorf("missing %v", missing)
	}
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	if ok, missing := r.m.Servable(model); ok || len(missing) != 1 || missing[0] != (kevlard.Layers{Lo: 1, Hi: 2}) {
		t.Errorf("%v, missing %v", ok, missing)
	}
}

// TestDeathInTheRing: only the ring declares death, and that moves sessions whose
// links say nothing.
func TestDeathInTheRing(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2")
	r.submit("s", 1, 2, 3)
	r.accept()
	r.node("n1").State = topology.Suspect
	r.see()
	if f := reports(r.out, "failover"); len(f) > 0 {
		t.Errorf("suspicion moves a session: %+v", f)
	}
	r.node("n1").State = topology.Dead
	r.see()
	if f := reports(r.out, "failover"); len(f) != 1 || f[0].Cause != "dead" {
		t.Errorf("failovers %+v", f)
	}
	if to, _ := prepares(r.out, "s"); len(to) != 1 || to[0] != "n2" {
		t.Errorf("prepares %v, want n2", to)
	}
}

// TestTimersAgainstMap compares the heap with a map that is searched.
func TestTimersAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ts timers
		naive := map[kevlard.SessionID]kevlard.Instant{}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			id := kevlard.SessionID(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "id"))
			at := kevlard.Instant(rapid.IntRange(0, 20).Draw(t, "at"))
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				ts.set(id, kevlard.Never)
				delete(naive, id)
			case 1:
				got, ok := ts.pop(at)
				var want kevlard.SessionID
				due := at + 1
				for n, x := range naive {
					if x < due || x == due && want != "" && n < want {
						want, due = n, x
					}
				}
				if ok != (want != "") || got != want {
					t.Fatalf("pop(%d) = %q %v, want %q", at, got, ok, want)
				}
				delete(naive, want)
			default:
				ts.set(id, at)
				naive[id] = at
			}
			least := kevlard.Never
			for _, x := range naive {
				least = min(least, x)
			}
			if ts.next() != least {
				t.Fatalf("next %d, want %d", ts.next(), least)
			}
		}
	})
}

// TestBlameIsNotWantOfRoom: a session that recovers keeps newcomers back while it
// waits for room, not while it only shuns the nodes that there are.
func TestBlameIsNotWantOfRoom(t *testing.T) {
	newcomer := func(r *rig) []kevlard.NodeID {
		r.step(Submit{Session: "new", Request: Request{Model: model.ID, Prompt: []kevlard.Token{1}, MaxTokens: 2}})
		to, _ := prepares(r.out, "new")
		return to
	}
	t.Run("blame", func(t *testing.T) {
		r := newRig(t, nil, "n1:0-2")
		r.submit("old", 1, 2, 3)
		r.accept()
		r.step(PeerDown{Node: "n1", Cause: "reset"})
		r.step(PeerUp{Node: "n1", Boot: "n1.1"})
		if to, _ := prepares(r.out, "old"); len(to) != 0 {
			t.Fatalf("old goes back to %v at once", to)
		}
		if to := newcomer(r); len(to) != 1 {
			t.Errorf("new is prepared at %v, want n1", to)
		}
	})
	t.Run("no room", func(t *testing.T) {
		r := newRig(t, nil, "n1:0-2", "n2:0-2")
		r.say("n1", protocol.Ping{Seq: 1, Free: 10})
		r.submit("old", 1, 2, 3)
		if to, _ := prepares(r.out, "old"); !slices.Equal(to, []kevlard.NodeID{"n2"}) {
			t.Fatalf("old is prepared at %v, want n2", to)
		}
		r.accept()
		r.step(PeerDown{Node: "n2", Cause: "reset"})
		if to := newcomer(r); len(to) != 0 {
			t.Errorf("new is prepared at %v, and old waits for that room", to)
		}
	})
}
