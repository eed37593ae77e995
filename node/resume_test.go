package node

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// streamsTo1 is a node with a session whose record two witnesses have, with one token shown to client 1.
func streamsTo1(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.step(Submit{Session: "s", Client: 1, Request: Request{Model: model.ID, Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, Envelope: []byte("e")}})
	r.accept()
	r.say("n2", logged("s", 1, 0))
	r.say("n3", logged("s", 1, 0))
	r.token("s", 2, 7)
	if e := effectsOf[Emit](r.out); len(e) != 1 {
		t.Fatalf("emitted %v", e)
	}
	return r
}

func running(r *rig) bool {
	r.step(Find{Session: "s"})
	return effectsOf[Found](r.out)[0].Running
}

// TestLateWordOfAnEarlierClient: two clients claim a session. What is said of the first one,
// when the second has it, does not cut the second off, here or at another node.
func TestLateWordOfAnEarlierClient(t *testing.T) {
	late := map[string]Event{"pause": Pause{Session: "s", Client: 1}, "cancel": Cancel{Session: "s", Client: 1}}
	for name, ev := range late {
		t.Run(name+" and one here", func(t *testing.T) {
			r := streamsTo1(t)
			r.step(Pause{Session: "s", Client: 1})
			r.step(Resume{Session: "s", Client: 2})
			if got := effectsOf[Replay](r.out); len(got) != 1 || len(got[0].Tokens) != 1 {
				t.Fatalf("replayed %v", got)
			}
			r.step(ev)
			if f := effectsOf[Finish](r.out); len(f) != 0 || !running(r) {
				t.Errorf("the second client is cut off: %+v", f)
			}
			r.step(Pause{Session: "s", Client: 2})
			if f := effectsOf[Finish](r.out); len(f) != 1 || f[0].Reason != "paused" {
				t.Errorf("the second client goes: %+v", f)
			}
		})
		t.Run(name+" and one elsewhere", func(t *testing.T) {
			r := streamsTo1(t)
			r.step(Pause{Session: "s", Client: 1})
			r.say("n3", protocol.Follow{Session: "s", Number: 1})
			if got := sent[protocol.Followed](r.out)["n3"]; len(got) != 1 || !slices.Equal(got[0].Tokens, []kevlard.Token{7}) {
				t.Fatalf("followed %+v", got)
			}
			r.accept()
			r.step(ev)
			if got := sent[protocol.Followed](r.out)["n3"]; len(got) != 0 || !running(r) {
				t.Errorf("the follower is cut off: %+v", got)
			}
			r.say("n1", protocol.Step{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 2}, Next: 3, Sampled: true, Token: 8})
			if got := sent[protocol.Followed](r.out)["n3"]; len(got) != 1 || got[0].From != 1 || !slices.Equal(got[0].Tokens, []kevlard.Token{8}) {
				t.Errorf("the follower gets %+v", got)
			}
		})
		t.Run(name+" of a follower here", func(t *testing.T) {
			r := newRig(t, nil, "n1:0-2")
			r.step(Follow{Session: "s", Owner: "n1", Client: 1})
			r.say("n1", protocol.Followed{Session: "s", Number: 1, Done: true, Reason: "error", Code: "session_busy", Status: 409})
			r.step(Follow{Session: "s", Owner: "n1", Client: 2})
			r.step(ev)
			if len(effectsOf[Finish](r.out)) != 0 || len(sent[protocol.Unfollow](r.out)) != 0 {
				t.Errorf("the second client is cut off: %+v", r.out)
			}
			r.say("n1", protocol.Followed{Session: "s", Number: 2, Tokens: []kevlard.Token{7}})
			if got := effectsOf[Replay](r.out); len(got) != 1 {
				t.Errorf("replayed %v", got)
			}
		})
	}
}

// TestUsageIsThatOfOneAnswer: what of the prompt was found is told again to who comes back,
// wherever that is, and counted once; so are tokens that another owner has generated.
func TestUsageIsThatOfOneAnswer(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.step(Submit{Session: "s", Client: 1, Request: Request{Model: model.ID, Prompt: []kevlard.Token{1, 2, 3, 4}, MaxTokens: 5, Envelope: []byte("e")}})
	for n, p := range sent[protocol.Prepare](r.out) {
		r.say(n, protocol.Prepared{Session: "s", Fence: p[0].Fence, Have: 3})
	}
	if got := effectsOf[Reused](r.out); len(got) != 1 || got[0].Positions != 3 {
		t.Fatalf("found %v", got)
	}
	r.say("n2", logged("s", 1, 0))
	r.say("n3", logged("s", 1, 0))
	r.token("s", 4, 7)
	for _, l := range sent[protocol.Log](r.sleep(60*time.Millisecond, "n1", "n2", "n3")) {
		if l[0].Entries[0].Reused != 3 {
			t.Errorf("logged %+v", l)
		}
	}
	r.step(Pause{Session: "s", Client: 1})
	r.step(Resume{Session: "s", Client: 2})
	if got := effectsOf[Reused](r.out); len(got) != 1 || got[0].Positions != 3 {
		t.Errorf("to who comes back: found %v", got)
	}
	r.step(Pause{Session: "s", Client: 2})
	r.say("n3", protocol.Follow{Session: "s", Number: 1})
	if got := sent[protocol.Followed](r.out)["n3"]; len(got) != 1 || got[0].Cached != 3 {
		t.Errorf("to who comes back elsewhere: %+v", got)
	}
	if c := r.m.Snapshot(r.now).Counters; c.PrefixReused != 3 || c.GeneratedTokens != 1 {
		t.Errorf("counted %+v", c)
	}

	f := newRig(t, nil, "n1:0-2")
	f.step(Follow{Session: "s", Owner: "n1", Client: 1})
	f.say("n1", protocol.Followed{Session: "s", Number: 1, Tokens: []kevlard.Token{7}, Cached: 3})
	if got := effectsOf[Reused](f.out); len(got) != 1 || got[0].Positions != 3 {
		t.Errorf("at who follows: found %v", got)
	}

	o := newRig(t, nil, "n1:0-2", "n2", "n3")
	o.takesOver(protocol.Record{Prompt: []kevlard.Token{1, 2, 3, 4}, MaxTokens: 5, Tokens: []kevlard.Token{7, 8}, Reused: 3})
	o.step(Resume{Session: "s", Client: 1})
	if got := effectsOf[Reused](o.out); len(got) != 1 || got[0].Positions != 3 {
		t.Errorf("at the next owner: found %v", got)
	}
	for n, p := range sent[protocol.Prepare](o.out) {
		o.say(n, protocol.Prepared{Session: "s", Fence: p[0].Fence, Have: 5})
	}
	o.acknowledged(2)
	if e := effectsOf[Emit](o.out); len(e) != 2 {
		t.Fatalf("emitted %v", e)
	}
	if c := o.m.Snapshot(o.now).Counters; c.PrefixReused != 0 || c.GeneratedTokens != 0 {
		t.Errorf("counted what the last owner has counted: %+v", c)
	}
	o.say("n1", protocol.Step{Session: "s", Fence: kevlard.Fence{Epoch: 2, Term: 1}, Next: 6, Sampled: true, Token: 9})
	if c := o.m.Snapshot(o.now).Counters; c.GeneratedTokens != 1 {
		t.Errorf("%d tokens are counted", c.GeneratedTokens)
	}
}

// takesOver makes the rig win session s, of which n1 and n2 have the record.
func (r *rig) takesOver(rec protocol.Record) {
	r.Helper()
	rec.Session, rec.Epoch, rec.Owner, rec.Model, rec.Envelope = "s", 1, protocol.Life{Node: "n9", Boot: "n9.1"}, model.ID, []byte("e")
	rec.Witnesses = protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "n3", Boot: "n3.1"}}}
	if rec.Class == "" {
		rec.Class = "c"
	}
	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("n1", protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: rec.Owner, Witnesses: rec.Witnesses})
	for _, n := range []kevlard.NodeID{"n1", "n2"} {
		r.say(n, protocol.Promise{Session: "s", Epoch: 2, Record: &rec})
	}
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Err != nil {
		r.Fatalf("taken over %+v", got)
	}
}

// acknowledged makes n1 and n2 have what was generated in epoch 2, and gathers the effects.
func (r *rig) acknowledged(through int) {
	var out []Effect
	for _, n := range []kevlard.NodeID{"n1", "n2"} {
		r.say(n, protocol.Logged{Entries: []protocol.LoggedEntry{{Session: "s", Epoch: 2, Version: 1, Through: through}}})
		out = append(out, r.out...)
	}
	r.out = out
}

// TestEndIsLogged: where another owner could generate other tokens, no end is shown before
// the witnesses know of it; who takes the session over then ends it there.
func TestEndIsLogged(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.node("n1").Stages[0].Class = kevlard.BestEffort + "c"
	r.see()
	r.step(Submit{Session: "s", Client: 1, Request: Request{
		Model: model.ID, Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, EOG: []kevlard.Token{9}, Envelope: []byte("e"),
	}})
	r.accept()
	r.say("n2", logged("s", 1, 0))
	r.say("n3", logged("s", 1, 0))
	r.token("s", 2, 7)
	r.say("n2", logged("s", 1, 1))
	r.say("n3", logged("s", 1, 1))
	if e := effectsOf[Emit](r.out); len(e) != 1 {
		t.Fatalf("emitted %v", e)
	}
	r.token("s", 3, 9)
	if f := effectsOf[Finish](r.out); len(f) != 0 {
		t.Fatalf("ended with %+v before a witness knows of it", f)
	}
	for n, l := range sent[protocol.Log](r.out) {
		if e := l[0].Entries[0]; e.From > 1 || e.Tokens[len(e.Tokens)-1] != 9 {
			t.Errorf("%s is told %+v", n, e)
		}
	}
	r.say("n2", logged("s", 1, 2))
	if f := effectsOf[Finish](r.out); len(f) != 0 {
		t.Fatalf("ended with %+v when one witness knows of it", f)
	}
	r.say("n3", logged("s", 1, 2))
	if f := effectsOf[Finish](r.out); len(f) != 1 || f[0].Reason != "stop" {
		t.Fatalf("ended with %+v when two witnesses know of it", f)
	}

	for _, class := range []string{"c", kevlard.BestEffort + "c"} {
		o := newRig(t, nil, "n1:0-2", "n2", "n3")
		o.takesOver(protocol.Record{
			Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, EOG: []kevlard.Token{9}, Tokens: []kevlard.Token{7, 9}, Class: class,
			Sampling: kevlard.Sampling{Logprobs: true}, Logprobs: []kevlard.Logprobs{{Chosen: -1}, {Chosen: -2}},
		})
		o.step(Resume{Session: "s", Client: 1})
		if len(sent[protocol.Prepare](o.out)) != 0 {
			t.Errorf("%s: what has ended is generated on", class)
		}
		o.acknowledged(2)
		e, f := effectsOf[Emit](o.out), effectsOf[Finish](o.out)
		if len(e) != 1 || e[0].Token != 7 || e[0].Logprobs.Chosen != -1 || len(f) != 1 || f[0].Reason != "stop" {
			t.Errorf("%s: emitted %v, ended with %+v", class, e, f)
		}
	}
}

// TestNoQuorumPauses: an owner whose witnesses do not answer gives up, with the status of
// that code, and the session can be resumed.
func TestNoQuorumPauses(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.node("n1").Stages[0].Class = kevlard.BestEffort + "c"
	r.see()
	r.begin("s")
	r.accept()
	r.token("s", 2, 7)
	out := r.sleep(20*time.Second, "n1", "n2", "n3")
	f := effectsOf[Finish](out)
	if len(f) != 1 || f[0].Err == nil || f[0].Err.Code != "session_no_quorum" || f[0].Err.Status != 409 {
		t.Fatalf("ended with %+v", f)
	}
	r.step(Find{Session: "s"})
	if got := effectsOf[Found](r.out)[0]; !got.Owned || got.Running {
		t.Errorf("afterwards %+v", got)
	}
}

// TestPausedAreDescribedOnce: snapshots of sessions without a client are shared until one
// comes or goes.
func TestPausedAreDescribedOnce(t *testing.T) {
	r := streamsTo1(t)
	r.step(Pause{Session: "s", Client: 1})
	a, b := r.m.Snapshot(r.now).Paused, r.m.Snapshot(r.now).Paused
	if len(a) != 1 || len(b) != 1 || &a[0] != &b[0] {
		t.Errorf("%v is made anew as %v", a, b)
	}
	r.step(Resume{Session: "s", Client: 2})
	if c := r.m.Snapshot(r.now).Paused; len(c) != 0 || len(a) != 1 || a[0].ID != "s" {
		t.Errorf("now %v; before %v", c, a)
	}
	r.step(Pause{Session: "s", Client: 2})
	if c := r.m.Snapshot(r.now).Paused; len(c) != 1 {
		t.Errorf("again %v", c)
	}
}
