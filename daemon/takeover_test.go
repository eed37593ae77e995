package daemon_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
)

// TestTakeOver kills the owners of streams: clients that come back to another node get
// the whole answer, and what was shown before is its begin.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	other := r.start("gate2")
	r.ready()
	for i, owner := range []*member{gateway, other} {
		j := newJob(i, 400)
		j.req.Envelope = envelope
		s, err := owner.Generate(t.Context(), j.name, j.req)
		if err != nil {
			t.Fatal(err)
		}
		u, err := s.Next(t.Context())
		if err != nil || u.Done {
			t.Fatalf("%+v, %v", u, err)
		}
		had := u.Tokens
		r.kill(owner)
		at := r.start([]kevlard.NodeID{"gate3", "gate4"}[i])
		r.ready()
		again, err := at.Resume(t.Context(), s.ID(), accepts, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t.Context(), again, nil)
		exact(t, j, got)
		if !slices.Equal(got.tokens[:len(had)], had) {
			t.Errorf("%s: what was shown is not the begin of the answer", s.ID())
		}
		if n := scrape(t, at)["kevlard_ttft_seconds"]; n != 0 {
			t.Errorf("%v first tokens are counted where the answer only went on", n)
		}
	}
	if n := r.sum("kevlard_takeovers_total"); n != 2 {
		t.Errorf("%v takeovers are counted, want 2", n)
	}
	r.idle()
}

// TestRingOfTwo: sessions run, and say that they cannot be taken over.
func TestRingOfTwo(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 8))
	gateway := r.start("gate")
	r.ready()
	j := newJob(1, 900)
	j.req.Envelope = envelope
	id, _ := cutOff(t, gateway, j, 5)
	for _, s := range gateway.Sessions(t.Context(), false).Sessions {
		if s.ID == string(id) && len(s.Witnesses) > 0 {
			t.Errorf("witnesses %v in a ring of two", s.Witnesses)
		}
	}
	if p := gateway.Status().Problems; len(p) == 0 {
		t.Error("status has nothing to say of a ring of two")
	}
	r.kill(gateway)
	if _, err := m.Resume(t.Context(), id, accepts, nil); code(err) != "session_not_found" && code(err) != "session_no_quorum" {
		t.Errorf("resumed after its owner died: %v", err)
	}
}

// TestStrangerTakesNothingOver: who may not have a session can't move it either, also when
// its owner is dead.
func TestStrangerTakesNothingOver(t *testing.T) {
	t.Parallel()
	r, gateway := spared(t)
	other := r.start("gate2")
	r.ready()
	j := newJob(1, 400)
	j.req.Envelope = envelope
	id, _ := cutOff(t, gateway, j, 5)
	r.kill(gateway)
	mine := errors.New("not mine")
	if _, err := other.Resume(t.Context(), id, func([]byte) error { return mine }, nil); !errors.Is(err, mine) {
		t.Errorf("a stranger: %v", err)
	}
	if n := r.sum("kevlard_takeovers_total"); n != 0 {
		t.Errorf("%v takeovers are counted for a stranger", n)
	}
	s, err := other.Resume(t.Context(), id, accepts, nil)
	if err != nil {
		t.Fatal(err)
	}
	exact(t, j, read(t.Context(), s, nil))
	if n := r.sum("kevlard_takeovers_total"); n != 1 {
		t.Errorf("%v takeovers are counted, want 1", n)
	}
}
