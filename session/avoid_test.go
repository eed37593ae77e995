package session

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// prepared routes m over n1 and n2 and has both stages answer.
func prepared(t *testing.T, m *Machine, now kevlard.Instant) []Effect {
	t.Helper()
	m.Hurry(now)
	if !m.WantsRoute(now) {
		t.Fatalf("at %v the session is %s and wants no route", now, m.State())
	}
	out := m.SetRoute(now, kevlard.Route{{Node: "n1", Layers: kevlard.Layers{Lo: 0, Hi: 2}}, {Node: "n2", Layers: kevlard.Layers{Lo: 2, Hi: 4}}}, "c", nil, nil, nil)
	for lo, n := range map[int]kevlard.NodeID{0: "n1", 2: "n2"} {
		out = m.Prepared(now, n, protocol.Prepared{Session: "s", Fence: m.Fence(), Lo: lo}, out)
	}
	return out
}

func newSession(prompt int) *Machine {
	return New("s", "o.1", Request{Prompt: make([]kevlard.Token, prompt), MaxTokens: 9}, Timing{}, 0)
}

// TestLinkRefusalBlamesTheEdge: the node that says that its link is down is
// fine; with another next hop it would be chosen again.
func TestLinkRefusalBlamesTheEdge(t *testing.T) {
	m := newSession(5)
	m.SetRoute(0, kevlard.Route{{Node: "n1", Layers: kevlard.Layers{Lo: 0, Hi: 2}}, {Node: "n2", Layers: kevlard.Layers{Lo: 2, Hi: 4}}}, "c", nil, nil, nil)
	m.Prepared(1, "n1", protocol.Prepared{Session: "s", Fence: m.Fence(), Lo: 0, Refusal: protocol.RefusedLink}, nil)
	var avoided []edge
	m.AvoidedEdges(2, func(from, to kevlard.NodeID) { avoided = append(avoided, edge{from, to}) })
	if m.State() != Routing || !slices.Equal(avoided, []edge{{"n1", "n2"}}) {
		t.Errorf("%s, avoided %v: want another route", m.State(), avoided)
	}
	if m.Avoids(2, "n1") || m.Avoids(2, "n2") {
		t.Error("a node is blamed for a link")
	}
}

// TestAWordRefutesSilence, and nothing else that a node was blamed for.
func TestAWordRefutesSilence(t *testing.T) {
	for _, c := range []struct {
		cause  string
		avoids bool
	}{{"silence", false}, {"dead", true}} {
		m := newSession(5)
		prepared(t, m, 0)
		m.Evidence(1, "n2", c.cause, nil)
		m.Heard("n1")
		if !m.Avoids(2, "n2") {
			t.Errorf("%s: the blamed node is asked again at once", c.cause)
		}
		m.Heard("n2")
		if m.Avoids(2, "n2") != c.avoids {
			t.Errorf("%s, then a word: avoided is %v, want %v", c.cause, m.Avoids(2, "n2"), c.avoids)
		}
	}
}

// TestRefusersAreAvoidedLongerThanThePause: otherwise the cheapest node, full as
// it is, would be asked each time and another never.
func TestRefusersAreAvoidedLongerThanThePause(t *testing.T) {
	m := newSession(5)
	now := kevlard.Instant(0)
	for try := range 12 {
		m.Hurry(now)
		m.SetRoute(now, kevlard.Route{{Node: "n1", Layers: kevlard.Layers{Lo: 0, Hi: 4}}}, "c", nil, nil, nil)
		m.Prepared(now, "n1", protocol.Prepared{Session: "s", Fence: m.Fence(), Lo: 0, Refusal: protocol.RefusedCapacity}, nil)
		if m.State() == Done {
			return
		}
		if !m.Avoids(m.Deadline(), "n1") {
			t.Fatalf("try %d: the refuser may be asked again at once", try)
		}
		now = m.Deadline()
	}
}

// TestHangingSessionEnds plays a request that freezes every engine it reaches at
// the same position. The replay before that position brings nothing new, so the
// session must not win time by it for ever.
func TestHangingSessionEnds(t *testing.T) {
	m := newSession(200)
	now := kevlard.Instant(0)
	for try := range 100 {
		prepared(t, m, now)
		if m.State() != Prefill {
			t.Fatalf("try %d: %s", try, m.State())
		}
		now = now.Add(50 * time.Millisecond)
		m.Step(now, "n2", protocol.Step{Session: "s", Fence: m.Fence(), Next: 64}, nil)
		now = now.Add(time.Second)
		out := m.Lost(now, "n1", protocol.Lost{Session: "s", Fence: m.Fence(), Lo: 0, Cause: "engine-stall"}, nil)
		if m.State() == Done {
			f, ok := out[len(out)-1].(Finish)
			if !ok || f.Err == nil || f.Err.Status != 503 {
				t.Errorf("it ends with %+v, want an honest error", out[len(out)-1])
			}
			return
		}
		now = m.Deadline()
	}
	t.Error("a hundred stages froze and the session lives")
}

func TestUnsent(t *testing.T) {
	m := newSession(5)
	prepared(t, m, 0)
	m.Unsent(1, false, nil)
	if m.State() != Routing || m.Avoids(2, "n1") || m.Avoids(2, "n2") {
		t.Errorf("full queue: %s, want another try and nobody blamed", m.State())
	}
	now := m.Deadline()
	prepared(t, m, now)
	out := m.Unsent(now, true, nil)
	if f, ok := out[len(out)-1].(Finish); !ok || f.Err == nil || f.Err.Status != 400 {
		t.Errorf("oversize: %+v, want 400", out)
	}
}
