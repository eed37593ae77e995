package node

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// begin submits a resumable session over n1 and lets it decode one token.
func (r *rig) begin(id kevlard.SessionID) {
	r.step(Submit{Session: id, Request: Request{Model: model.ID, Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, Envelope: []byte("e")}})
}

func (r *rig) token(id kevlard.SessionID, next int, t kevlard.Token) {
	r.say("n1", protocol.Step{Session: id, Fence: kevlard.Fence{Epoch: 1, Term: 1}, Next: next, Sampled: true, Token: t})
}

func logged(id kevlard.SessionID, version uint64, through int) protocol.Logged {
	return protocol.Logged{Entries: []protocol.LoggedEntry{{Session: id, Epoch: 1, Version: version, Through: through}}}
}

// TestRecordBeforeTheFirstToken: nothing is shown before enough witnesses have the
// record, and then it is.
func TestRecordBeforeTheFirstToken(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3", "n4")
	r.begin("s")
	records := sent[protocol.Record](r.out)
	if len(records) != 3 {
		t.Fatalf("records to %v, want three", records)
	}
	who := make([]kevlard.NodeID, 0, 3)
	for n, rec := range records {
		who = append(who, n)
		if rec[0].Owner != (protocol.Life{Node: "o", Boot: "o.1"}) || len(rec[0].Witnesses.Now) != 3 || string(rec[0].Envelope) != "e" {
			t.Errorf("record %+v", rec[0])
		}
	}
	slices.Sort(who)
	r.accept()
	r.token("s", 2, 7)
	if e := effectsOf[Emit](r.out); len(e) != 0 {
		t.Fatalf("shown before the record is acknowledged: %v", e)
	}
	r.say(who[0], logged("s", 1, 0))
	if e := effectsOf[Emit](r.out); len(e) != 0 {
		t.Fatalf("shown when one of three has the record: %v", e)
	}
	r.say(who[1], logged("s", 1, 0))
	if e := effectsOf[Emit](r.out); len(e) != 1 || e[0].Token != 7 || e[0].Index != 0 {
		t.Fatalf("emitted %v when two have the record", e)
	}
	r.token("s", 3, 8)
	if e := effectsOf[Emit](r.out); len(e) != 1 || len(sent[protocol.Log](r.out)) != 0 {
		t.Fatalf("emitted %v, logs %v: a token waits for no round trip", e, sent[protocol.Log](r.out))
	}
	out := r.sleep(60*time.Millisecond, "n1", "n2", "n3", "n4")
	logs := sent[protocol.Log](out)
	if len(logs) != 3 {
		t.Fatalf("logs to %v", logs)
	}
	for n, l := range logs {
		if len(l) != 1 || len(l[0].Entries) != 1 || !slices.Equal(l[0].Entries[0].Tokens, []kevlard.Token{7, 8}) {
			t.Errorf("log to %s: %+v", n, l)
		}
	}
}

// TestNoWitnesses: in a ring of two sessions run as ever, and have no witnesses.
func TestNoWitnesses(t *testing.T) {
	r := newRig(t, nil, "n1:0-2")
	r.begin("s")
	if n := sent[protocol.Record](r.out); len(n) != 0 {
		t.Fatalf("records %v", n)
	}
	r.accept()
	r.token("s", 2, 7)
	if e := effectsOf[Emit](r.out); len(e) != 1 {
		t.Fatalf("emitted %v", e)
	}
	if s := r.m.Snapshot(r.now).Sessions; len(s) != 1 || len(s[0].Witnesses) != 0 {
		t.Errorf("sessions %+v", s)
	}
}

// TestSilentWitnesses: they do not answer; the session goes on.
func TestSilentWitnesses(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.begin("s")
	r.accept()
	r.token("s", 2, 7)
	out := r.sleep(1600*time.Millisecond, "n1", "n2", "n3")
	if e := effectsOf[Emit](out); len(e) != 1 || len(reports(out, "unguarded")) != 1 {
		t.Fatalf("emitted %v, reports %v", e, effectsOf[Report](out))
	}
}

// TestSuperseded: an owner that hears of a newer epoch shows nothing more.
func TestSuperseded(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.begin("s")
	r.accept()
	r.say("n2", logged("s", 1, 0))
	r.say("n2", protocol.Logged{Entries: []protocol.LoggedEntry{{Session: "s", Epoch: 1, Newer: 2, Refusal: protocol.WitnessPromised}}})
	f := effectsOf[Finish](r.out)
	if len(f) != 1 || f[0].Err == nil || f[0].Err.Code != "session_busy" {
		t.Fatalf("finish %+v", f)
	}
	r.token("s", 2, 7)
	if e := effectsOf[Emit](r.out); len(e) != 0 {
		t.Errorf("emitted %v after that", e)
	}
}

// TestWitnessIsReplaced: one that died is, by the old and the new together.
func TestWitnessIsReplaced(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3", "n4")
	r.begin("s")
	first := sent[protocol.Record](r.out)
	r.accept()
	var lost kevlard.NodeID
	for n := range first {
		r.say(n, logged("s", 1, 0))
		if n != "n1" {
			lost = n
		}
	}
	r.node(lost).State = topology.Dead
	r.step(PeerDown{Node: lost, Cause: "reset"})
	r.see()
	alive := slices.DeleteFunc([]kevlard.NodeID{"n1", "n2", "n3", "n4"}, func(n kevlard.NodeID) bool { return n == lost })
	joint := sent[protocol.Record](r.sleep(3100*time.Millisecond, alive...))
	if len(joint) < 3 {
		t.Fatalf("records to %v after %s died", joint, lost)
	}
	for n := range joint {
		w := joint[n][0].Witnesses
		if w.Version != 2 || len(w.Before) != 3 || slices.Contains(w.Now, protocol.Life{Node: lost, Boot: kevlard.BootID(lost + ".1")}) {
			t.Fatalf("witnesses %+v", w)
		}
		if n != lost {
			r.say(n, logged("s", 2, 0))
		}
		if last := sent[protocol.Record](r.out); len(last) > 0 && last[n] != nil {
			if w := last[n][0].Witnesses; w.Version != 3 || len(w.Before) != 0 {
				t.Errorf("witnesses in the end %+v", w)
			}
			return
		}
	}
	t.Error("the old witnesses were never let go")
}

// TestTakeOver: the candidate finds the record, wins two promises and owns the session;
// its prepare has the new epoch and the tokens of the log.
func TestTakeOver(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3", "n4")
	r.step(TakeOver{Session: "s", Number: 9, Accepted: true})
	if n := sent[protocol.Locate](r.out); len(n) != 5 {
		t.Fatalf("asked %v", n)
	}
	w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "n3", Boot: "n3.1"}}}
	rec := protocol.Record{
		Session: "s", Epoch: 1, Owner: protocol.Life{Node: "n9", Boot: "n9.1"}, Witnesses: w, Model: model.ID,
		Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, Class: "c", Envelope: []byte("e"),
	}
	r.say("n1", protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: rec.Owner, Witnesses: w})
	votes := sent[protocol.Vote](r.out)
	if len(votes) != 3 || votes["n2"][0].Epoch != 2 {
		t.Fatalf("votes %+v", votes)
	}
	short, long := rec, rec
	short.Tokens, long.Tokens = []kevlard.Token{7}, []kevlard.Token{7, 8}
	r.say("n1", protocol.Promise{Session: "s", Epoch: 2, Record: &short})
	r.say("n3", protocol.Promise{Session: "s", Epoch: 2, Record: &long})
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Number != 9 || got[0].Err != nil || got[0].Owner != "" {
		t.Fatalf("taken over %+v", got)
	}
	if got := sent[protocol.Record](r.out); len(got) != 3 || got["n2"][0].Epoch != 2 || len(got["n2"][0].Tokens) != 2 {
		t.Fatalf("records %+v", got)
	}
	r.step(Resume{Session: "s"})
	to, p := prepares(r.out, "s")
	if len(to) != 1 || p.Fence != (kevlard.Fence{Epoch: 2, Term: 1}) || !slices.Equal(p.Tokens, []kevlard.Token{1, 2, 7, 8}) {
		t.Fatalf("prepare %+v", p)
	}
	for _, n := range []kevlard.NodeID{"n1", "n2"} {
		r.say(n, protocol.Logged{Entries: []protocol.LoggedEntry{{Session: "s", Epoch: 2, Version: 1, Through: 2}}})
	}
	if e := effectsOf[Emit](r.out); len(e) != 2 || e[1].Token != 8 {
		t.Errorf("emitted %v", e)
	}
	if got := r.m.Snapshot(r.now).Counters.TakeOvers; got != 1 {
		t.Errorf("%d takeovers are counted", got)
	}
}

// TestTakeOverFromOneWhoKnows: the owner in the record lives and has said that it owns
// the session no longer. The witnesses are told, else they would wait for it for ever.
func TestTakeOverFromOneWhoKnows(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.step(TakeOver{Session: "s", Accepted: true})
	w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "o", Boot: "o.1"}}}
	owner := protocol.Life{Node: "n3", Boot: "n3.1"}
	r.say("n3", protocol.Located{Session: "s"})
	r.say("n2", protocol.Located{Session: "s"})
	r.say("o", protocol.Located{Session: "s"})
	r.say("n1", protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: owner, Witnesses: w})
	if votes := sent[protocol.Vote](r.out); len(votes) == 0 || votes["n1"][0].Disowned != owner {
		t.Errorf("votes %+v, want them to say that %v owns it no longer", votes, owner)
	}
}

// TestTakeOverLearnsWhoWon: another candidate is faster. The one that lost asks it, instead
// of the witnesses again and again, whose promises would only end the winner's epoch. If the
// winner has given up, the witnesses are told.
func TestTakeOverLearnsWhoWon(t *testing.T) {
	winner := protocol.Life{Node: "n4", Boot: "n4.1"}
	lost := func(t *testing.T) *rig {
		r := newRig(t, nil, "n1:0-2", "n2", "n3", "n4")
		r.step(TakeOver{Session: "s", Accepted: true})
		w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "n3", Boot: "n3.1"}}}
		at := protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: protocol.Life{Node: "n9", Boot: "n9.1"}, Witnesses: w}
		r.say("n1", at)
		r.say("n2", protocol.Located{Session: "s"})
		r.say("n3", protocol.Located{Session: "s"})
		r.say("o", protocol.Located{Session: "s"})
		r.say("n4", protocol.Located{Session: "s"}) // not yet
		r.say("n1", protocol.Promise{Session: "s", Epoch: 2, Refusal: protocol.WitnessPromised, Newer: 2, Owner: winner})
		if to := sent[protocol.Locate](r.out); len(to) != 1 || len(to["n4"]) != 1 {
			t.Fatalf("asked %v, want n4", to)
		}
		r.say("n2", protocol.Promise{Session: "s", Epoch: 2, Refusal: protocol.WitnessOwner, Owner: winner})
		if to := sent[protocol.Locate](r.out); len(to) != 0 {
			t.Fatalf("asked %v again", to)
		}
		r.say("n3", protocol.Promise{Session: "s", Epoch: 2, Record: &protocol.Record{Session: "s", Epoch: 1, Owner: at.Owner, Witnesses: w}})
		return r
	}
	r := lost(t)
	r.say("n4", protocol.Located{Session: "s", Owned: true, Epoch: 2})
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Owner != "n4" {
		t.Errorf("taken over %+v, want n4 to be followed", got)
	}
	r = lost(t)
	r.say("n4", protocol.Located{Session: "s"})
	r.now = r.m.bids["s"].at
	r.step(Wake{})
	if votes := sent[protocol.Vote](r.out); len(votes) != 3 || votes["n2"][0].Epoch != 3 || votes["n2"][0].Disowned != winner {
		t.Errorf("votes %+v, want them to say that %v owns it no longer", votes, winner)
	}
}

// TestTakeOverIsRefused: nobody knows the session, too few nodes answer, or the owner
// lives.
func TestTakeOverIsRefused(t *testing.T) {
	w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n8", Boot: "n8.1"}, {Node: "n9", Boot: "n9.1"}}}
	at := protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: protocol.Life{Node: "n7", Boot: "n7.1"}, Witnesses: w}
	refused := func(r *rig, out []Effect, code string) {
		r.Helper()
		if got := effectsOf[TakenOver](out); len(got) != 1 || got[0].Err == nil || got[0].Err.Code != code {
			r.Errorf("taken over %+v, want %s", got, code)
		}
	}
	r := newRig(t, nil, "n1:0-2")
	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("o", protocol.Located{Session: "s"})
	r.say("n1", protocol.Located{Session: "s"})
	refused(r, r.out, "session_not_found")

	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("n1", at)
	r.say("n1", protocol.Promise{Session: "s", Epoch: 2, Record: &protocol.Record{Session: "s", Epoch: 1, Owner: at.Owner, Witnesses: w}})
	out := r.sleep(6*time.Second, "n1")
	refused(r, out, "session_no_quorum")
	if n := len(sent[protocol.Vote](out)["n1"]); n < 2 || n > 60 {
		t.Errorf("%d further rounds", n)
	}

	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("n1", at)
	r.say("n1", protocol.Promise{Session: "s", Epoch: r.m.bids["s"].round.Epoch, Refusal: protocol.WitnessOwner})
	r.now = r.m.bids["s"].until
	r.step(Wake{})
	refused(r, r.out, "session_busy")

	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("n1", protocol.Located{Session: "s", Owned: true, Epoch: 1})
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Owner != "n1" {
		t.Errorf("taken over %+v, want the owner", got)
	}
}

// TestBestEffort: where another owner could go on with other tokens, none is shown before
// two of three witnesses have it.
func TestBestEffort(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.node("n1").Stages[0].Class = kevlard.BestEffort + "c"
	r.see()
	r.begin("s")
	r.accept()
	r.say("n2", logged("s", 1, 0))
	r.say("n3", logged("s", 1, 0))
	r.token("s", 2, 7)
	if e := effectsOf[Emit](r.out); len(e) != 0 {
		t.Fatalf("emitted %v before a witness has it", e)
	}
	if l := sent[protocol.Log](r.out); len(l) != 3 {
		t.Fatalf("logs to %v, want all at once", l)
	}
	r.token("s", 3, 8)
	if l := sent[protocol.Log](r.out); len(l) != 0 {
		t.Fatalf("logs to %v while one is under way", l)
	}
	r.say("n2", logged("s", 1, 1))
	if e := effectsOf[Emit](r.out); len(e) != 0 {
		t.Fatalf("emitted %v when one witness has it", e)
	}
	r.say("n3", logged("s", 1, 1))
	if e := effectsOf[Emit](r.out); len(e) != 1 || e[0].Token != 7 {
		t.Fatalf("emitted %v when two have one token", e)
	}
	for _, tok := range []kevlard.Token{9, 1, 2} {
		r.token("s", map[kevlard.Token]int{9: 4, 1: 5, 2: 6}[tok], tok)
	}
	if f := effectsOf[Finish](r.out); len(f) != 0 {
		t.Fatalf("ended with %v before all is shown", f)
	}
	r.say("n2", logged("s", 1, 5))
	r.say("n3", logged("s", 1, 5))
	if e, f := effectsOf[Emit](r.out), effectsOf[Finish](r.out); len(e) != 4 || len(f) != 1 || f[0].Reason != "length" {
		t.Errorf("emitted %v, finish %v", e, f)
	}
}

// TestCutOffDoesNotDeny: who is cut off from those that may know a session does not say
// that it is unknown, also when the ring has declared them dead.
func TestCutOffDoesNotDeny(t *testing.T) {
	for _, c := range []struct {
		name string
		ring []string
		dead []kevlard.NodeID
		left []kevlard.NodeID
		gone int // members of before this node's start
		code string
	}{
		{"all answer", []string{"n1", "n2", "n3"}, nil, nil, 0, "session_not_found"},
		{"one is dead: another would know", []string{"n1", "n2", "n3"}, []kevlard.NodeID{"n2"}, nil, 0, "session_not_found"},
		{"an owner and a witness may be dead", []string{"n1", "n2", "n3"}, []kevlard.NodeID{"n2", "n3"}, nil, 0, "session_no_quorum"},
		{"alone", []string{"n1", "n2", "n3"}, []kevlard.NodeID{"n1", "n2", "n3"}, nil, 0, "session_no_quorum"},
		{"no witnesses in a ring of two", []string{"n1"}, []kevlard.NodeID{"n1"}, nil, 0, "session_no_quorum"},
		{"who left has said so", []string{"n1", "n2", "n3"}, nil, []kevlard.NodeID{"n1", "n2", "n3"}, 0, "session_not_found"},
		{"started anew, and alone", nil, nil, nil, 7, "session_no_quorum"},
		{"dead, and not met again", []string{"n1", "n2"}, []kevlard.NodeID{"n2"}, nil, 1, "session_no_quorum"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil, c.ring...)
			for _, n := range c.dead {
				r.node(n).State = topology.Dead
				r.step(PeerDown{Node: n, Cause: "reset"})
			}
			for _, n := range c.left {
				r.node(n).State = topology.Left
				r.step(PeerDown{Node: n, Cause: "reset"})
			}
			r.view.Absent = c.gone
			r.see()
			r.step(TakeOver{Session: "s", Accepted: true})
			var out []Effect
			for _, e := range effectsOf[Send](r.out) {
				if _, ok := e.Message.(protocol.Locate); ok {
					r.say(e.To, protocol.Located{Session: "s"})
					out = append(out, r.out...)
				}
			}
			out = append(out, r.sleep(time.Second)...)
			if got := effectsOf[TakenOver](out); len(got) != 1 || got[0].Err == nil || got[0].Err.Code != c.code {
				t.Errorf("taken over %+v, want %s", got, c.code)
			}
		})
	}
}

// TestNothingIsTakenOverUnseen: a client that has not shown that a session is its own
// learns whether there is one, and moves nothing.
func TestNothingIsTakenOverUnseen(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "n3", Boot: "n3.1"}}}
	at := protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: protocol.Life{Node: "n9", Boot: "n9.1"}, Witnesses: w}
	r.step(TakeOver{Session: "s"})
	r.say("n1", at)
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || !got[0].Remembered || got[0].Err != nil || len(sent[protocol.Vote](r.out)) != 0 {
		t.Fatalf("effects %+v", r.out)
	}
	r.step(TakeOver{Session: "s", Number: 1})
	r.step(TakeOver{Session: "s", Number: 2, Accepted: true}) // another client, whose it is
	r.say("n1", at)
	if len(sent[protocol.Vote](r.out)) != 3 {
		t.Errorf("effects %+v", r.out)
	}
}

// TestOwnerWakesDuringATakeOver: an owner that could not be asked at the begin, and that
// the witnesses hear, is asked with each round.
func TestOwnerWakesDuringATakeOver(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	r.step(PeerDown{Node: "n3", Cause: "reset"})
	w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n1", Boot: "n1.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "o", Boot: "o.1"}}}
	r.step(TakeOver{Session: "s", Accepted: true})
	r.say("n1", protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: protocol.Life{Node: "n3", Boot: "n3.1"}, Witnesses: w})
	for _, n := range []kevlard.NodeID{"n1", "n2", "o"} {
		r.say(n, protocol.Promise{Session: "s", Epoch: 2, Refusal: protocol.WitnessOwner})
	}
	r.step(PeerUp{Node: "n3", Boot: "n3.1"})
	out := r.sleep(time.Second, "n1", "n2", "n3")
	if len(sent[protocol.Locate](out)["n3"]) == 0 {
		t.Fatal("the owner is connected, and is not asked")
	}
	r.say("n3", protocol.Located{Session: "s", Owned: true, Epoch: 1})
	if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Owner != "n3" {
		t.Errorf("taken over %+v, want the owner", got)
	}
}
