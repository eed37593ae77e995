package witness

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

func owned(id kevlard.SessionID, epoch uint64, owner protocol.Life, tokens ...kevlard.Token) protocol.Record {
	return protocol.Record{
		Session: id, Epoch: epoch, Owner: owner, Prompt: []kevlard.Token{1}, MaxTokens: 100, Tokens: tokens,
		Witnesses: protocol.Witnesses{Version: 1, Now: []protocol.Life{life(0, 0), life(1, 0), life(2, 0)}},
	}
}

func nobody(protocol.Life) bool { return false }

// storeOf returns a store with the record of session s.
func storeOf(t *testing.T, owner protocol.Life) *Store {
	t.Helper()
	s := NewStore(life(0, 0), Limits{})
	if e := s.Take(1, owner, owned("s", 1, owner)); e.Refusal != "" {
		t.Fatalf("a record: %+v", e)
	}
	return s
}

// TestStore checks what a node does around its votes: lives, leases, room.
func TestStore(t *testing.T) {
	o, x := actorLife(0), actorLife(1)
	s := NewStore(life(0, 0), Limits{Records: 2, Lease: time.Minute, Ended: time.Second})
	if e := s.Take(1, x, owned("s", 1, o)); e.Refusal != protocol.WitnessUnknown {
		t.Errorf("a record that its owner did not send: %+v", e)
	}
	if e := NewStore(life(0, 1), Limits{}).Take(1, o, owned("s", 1, o)); e.Refusal != protocol.WitnessUnknown {
		t.Errorf("a record for the life before: %+v", e)
	}
	if e := s.Take(1, o, owned("s", 1, o)); e.Refusal != "" || e.Version != 1 {
		t.Fatalf("a record: %+v", e)
	}
	if e := s.Append(1, o, protocol.LogEntry{Session: "s", Epoch: 1, From: 1, Tokens: []kevlard.Token{5}}); e.Through != 0 {
		t.Errorf("a gap: %+v", e)
	}
	if e := s.Append(1, o, protocol.LogEntry{Session: "s", Epoch: 1, Tokens: []kevlard.Token{4, 5}}); e.Through != 2 {
		t.Errorf("a log: %+v", e)
	}
	if e := s.Append(1, o, protocol.LogEntry{Session: "s", Epoch: 1, From: 1, Tokens: []kevlard.Token{5, 6}}); e.Through != 3 {
		t.Errorf("a log that overlaps: %+v", e)
	}
	if p := s.Promise(1, x, protocol.Vote{Session: "s", Epoch: 2}, func(l protocol.Life) bool { return l == o }); p.Refusal != protocol.WitnessOwner || p.Owner != o {
		t.Errorf("a promise while the owner is heard of: %+v", p)
	}
	if p := storeOf(t, o).Promise(1, x, protocol.Vote{Session: "s", Epoch: 2, Disowned: o}, func(protocol.Life) bool { return true }); p.Record == nil {
		t.Errorf("a promise when the owner is heard of and has said that it is none: %+v", p)
	}
	p := s.Promise(1, x, protocol.Vote{Session: "s", Epoch: 2}, nobody)
	if p.Record == nil || len(p.Record.Tokens) != 3 || p.Record.Tokens[2] != 6 {
		t.Fatalf("a promise: %+v", p)
	}
	if e := s.Append(1, o, protocol.LogEntry{Session: "s", Epoch: 1, From: 3, Tokens: []kevlard.Token{7}}); e.Newer != 2 {
		t.Errorf("a log of the old owner: %+v", e)
	}
	if e := s.Renew(1, o, []kevlard.SessionID{"s"}); len(e) != 1 || e[0].Newer != 2 {
		t.Errorf("a renewal by the old owner: %+v", e)
	}
	if l := s.Locate("s"); !l.Recorded || l.Epoch != 2 || l.At != 1 || l.Owner != o {
		t.Errorf("located %+v", l)
	}
	s.Forget(1, o, protocol.Forget{Session: "s", Epoch: 1})
	if n, _ := s.Len(); n != 1 {
		t.Error("an old owner's word ended the session")
	}

	// The lease.
	s.Expire(kevlard.Instant(time.Minute + 10*time.Second))
	if n, bytes := s.Len(); n != 0 || bytes != 0 {
		t.Errorf("%d records of %d bytes after the lease", n, bytes)
	}
	now := kevlard.Instant(2 * time.Minute)
	if e := s.Take(now, o, owned("s", 1, o, 4, 5, 6)); e.Newer != 2 {
		t.Errorf("a promise was forgotten with the record: %+v", e)
	}
	if e := s.Take(now, x, owned("s", 2, x, 4, 5, 6)); e.Refusal != "" {
		t.Errorf("the new owner's record: %+v", e)
	}

	// Room.
	if e := s.Take(now, o, owned("t", 1, o)); e.Refusal != "" {
		t.Errorf("the second: %+v", e)
	}
	if e := s.Take(now, o, owned("u", 1, o)); e.Refusal != protocol.WitnessFull {
		t.Errorf("the third: %+v", e)
	}
	s.Forget(now, o, protocol.Forget{Session: "t", Epoch: 1, Ended: true})
	if e := s.Take(now, o, owned("u", 1, o)); e.Refusal != "" {
		t.Errorf("the third, after one has ended: %+v", e)
	}
	if e := s.Take(now, o, owned("t", 1, o)); e.Refusal != protocol.WitnessFull {
		t.Errorf("one that was forgotten: %+v", e)
	}
}

// TestForgottenLog: a record that lacks what was acknowledged does not come back.
func TestForgottenLog(t *testing.T) {
	o := actorLife(0)
	s := NewStore(life(0, 0), Limits{})
	s.Take(1, o, owned("s", 1, o, 4, 5))
	s.Forget(1, o, protocol.Forget{Session: "s", Epoch: 1})
	if e := s.Take(2, o, owned("s", 1, o, 4)); e.Refusal != protocol.WitnessUnknown {
		t.Errorf("a shorter record: %+v", e)
	}
	if e := s.Take(2, o, owned("s", 1, o, 4, 5)); e.Refusal != "" {
		t.Errorf("the same: %+v", e)
	}
}

// TestFitting: the last log probabilities that fit.
func TestFitting(t *testing.T) {
	l := make([]kevlard.Logprobs, 20000)
	for i := range l {
		l[i].Chosen = -float32(i)
	}
	got := Fitting(l)
	if len(got) == 0 || len(got) == len(l) || got[len(got)-1].Chosen != -19999 {
		t.Errorf("%d of %d", len(got), len(l))
	}
	if got := Fitting(l[:3]); len(got) != 3 {
		t.Errorf("%d of 3", len(got))
	}
}

// TestForgottenInOrder: which of the sessions that are forgotten at once are remembered by
// their epochs is the same in each run.
func TestForgottenInOrder(t *testing.T) {
	o := actorLife(0)
	for range 20 {
		s := NewStore(life(0, 0), Limits{Tombs: 3, Lease: time.Minute})
		for i := range 12 {
			id := kevlard.SessionID([]byte{'a' + byte(i)})
			if e := s.Take(kevlard.Instant(1+i/4), o, owned(id, 1, o, 7)); e.Refusal != "" {
				t.Fatalf("%+v", e)
			}
		}
		s.Expire(kevlard.Instant(time.Hour))
		for id := range s.tombs {
			if id < "j" {
				t.Fatalf("%s is remembered, want the last three", id)
			}
		}
	}
}
