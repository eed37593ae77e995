package daemon_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
)

// envelope marks sessions that can be resumed.
var envelope = []byte("e")

func accepts(e []byte) error {
	if !slices.Equal(e, envelope) {
		return errors.New("another envelope")
	}
	return nil
}

// cutOff begins a job and leaves it after some tokens.
func cutOff(t *testing.T, m *member, j job, after int) (id kevlard.SessionID, had []kevlard.Token) {
	t.Helper()
	ctx, gone := context.WithCancel(t.Context())
	s, err := m.Generate(ctx, j.name, j.req)
	if err != nil {
		t.Fatal(err)
	}
	for len(had) < after {
		u, err := s.Next(t.Context())
		if err != nil || u.Done {
			t.Fatalf("ended after %d tokens: %+v, %v", len(had), u, err)
		}
		had = append(had, u.Tokens...)
	}
	gone()
	for {
		u, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if had = append(had, u.Tokens...); u.Done {
			if u.Reason != "paused" || u.Err != nil {
				t.Fatalf("a client that goes ends its stream with %+v", u)
			}
			return s.ID(), had
		}
	}
}

// owned is what m says of its session.
func owned(t *testing.T, m *member, id kevlard.SessionID) (state string) {
	t.Helper()
	for _, s := range m.Sessions(t.Context(), false).Sessions {
		if s.ID == string(id) {
			return s.State
		}
	}
	return ""
}

func code(err error) string {
	if f, ok := errors.AsType[*kevlard.Failure](err); ok {
		return f.Code
	}
	return ""
}

// TestResume lets clients go and come back, at the owner and at another node, also after
// the end: each gets the whole answer.
func TestResume(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	other := r.start("gate2")
	r.ready()
	for i, at := range []*member{gateway, other, other} {
		j := newJob(i, 150)
		j.req.Envelope = envelope
		id, had := cutOff(t, gateway, j, 5+10*i)
		r.until("the session is paused", func() bool { return owned(t, gateway, id) == "paused" })
		for range 2 { // the second time when it has ended
			s, err := at.Resume(t.Context(), id, accepts, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s.ID() != id {
				t.Errorf("session %s goes on as %s", id, s.ID())
			}
			got := read(t.Context(), s, nil)
			exact(t, j, got)
			if !slices.Equal(got.tokens[:min(len(had), len(got.tokens))], had) {
				t.Errorf("%s: what was shown is not the begin of the answer", id)
			}
		}
	}
	r.idle()
}

// TestResumeRefusals: a session that is not there, one that is not the client's, and one
// that has a client.
func TestResumeRefusals(t *testing.T) {
	r, gateway := spared(t)
	other := r.start("gate2")
	r.ready()
	if _, err := other.Resume(t.Context(), "nobody.knows", accepts, nil); code(err) != "session_not_found" {
		t.Errorf("unknown: %v", err)
	}
	j := newJob(1, 900)
	j.req.Envelope = envelope
	broken := make(chan struct{})
	alive := func() bool {
		select {
		case <-broken:
			return false
		default:
			return true
		}
	}
	s, err := gateway.GenerateAs(t.Context(), daemon.Mint(j.name), j.name, j.req, alive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("not mine")
	if _, err := other.Resume(t.Context(), s.ID(), func([]byte) error { return mine }, nil); !errors.Is(err, mine) {
		t.Errorf("not accepted: %v", err)
	}
	for _, m := range []*member{gateway, other} {
		if _, err := m.Resume(t.Context(), s.ID(), accepts, nil); code(err) != "session_busy" {
			t.Errorf("its client is there: %v", err)
		}
	}
	close(broken)
	again, err := other.Resume(t.Context(), s.ID(), accepts, nil)
	if err != nil {
		t.Fatalf("its client's connection is broken: %v", err)
	}
	if u, err := again.Next(t.Context()); err != nil || len(u.Tokens) == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	for u, err := s.Next(t.Context()); ; u, err = s.Next(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Done {
			if u.Reason != "paused" {
				t.Errorf("the broken client's stream ends with %+v", u)
			}
			break
		}
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	r.idle()
}

// TestFollowerDies: the node that a client came back to dies; the owner keeps the session
// for the next one. When the owner dies, the node that the client is connected to takes
// the session over, and the client notices nothing.
func TestFollowerDies(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	follower, other := r.start("gate2"), r.start("gate3")
	r.ready()
	j := newJob(2, 900)
	j.req.Envelope = envelope
	id, _ := cutOff(t, gateway, j, 5)
	s, err := follower.Resume(t.Context(), id, accepts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.kill(follower)
	r.until("the session is paused", func() bool { return owned(t, gateway, id) == "paused" })
	if s, err = other.Resume(t.Context(), id, accepts, nil); err != nil {
		t.Fatal(err)
	}
	u, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.kill(gateway)
	got := read(t.Context(), s, nil)
	got.tokens, got.logprobs = append(u.Tokens, got.tokens...), append(u.Logprobs, got.logprobs...)
	if f := got.end.Err; f != nil && f.Code == "session_no_quorum" {
		// A slow machine hears too late from those that vote; then the client comes again.
		r.until("those that vote answer in time", func() bool {
			s, err = other.Resume(t.Context(), id, accepts, nil)
			return code(err) != "session_no_quorum"
		})
		if err != nil {
			t.Fatal(err)
		}
		got = read(t.Context(), s, nil)
	}
	exact(t, j, got)
	if n := r.sum("kevlard_takeovers_total"); n != 1 {
		t.Errorf("%v takeovers are counted, want 1", n)
	}
}

// TestResumeWindow: its time passes, and the session is forgotten.
func TestResumeWindow(t *testing.T) {
	r := newRing(t)
	r.timing.Resume = 50 * time.Millisecond
	m := r.start("solo", span(0, 8))
	r.ready()
	j := newJob(1, 900)
	j.req.Envelope = envelope
	id, _ := cutOff(t, m, j, 5)
	notNow := errors.New("not now")
	r.until("the session is forgotten", func() bool { // to ask does not renew it
		_, err := m.Resume(t.Context(), id, func([]byte) error { return notNow }, nil)
		if !errors.Is(err, notNow) && code(err) != "session_not_found" {
			t.Fatal(err)
		}
		return !errors.Is(err, notNow)
	})
}

// TestOwnerIsSlowToAnswer: the owner lives, but does not say in time what it has, since it
// waits for a sign of its client. Nobody is told that the session is unknown.
func TestOwnerIsSlowToAnswer(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	other := r.start("gate2")
	r.ready()
	j := newJob(1, 900)
	j.req.Envelope = envelope
	asked := t.Context()
	s, err := gateway.GenerateAs(t.Context(), daemon.Mint(j.name), j.name, j.req, func() bool { <-asked.Done(); return true })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	// On a slow machine it also hears too late from those that would vote.
	if _, err := other.Resume(t.Context(), s.ID(), accepts, nil); code(err) != "owner_lost" && code(err) != "session_no_quorum" {
		t.Errorf("its owner does not answer: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
