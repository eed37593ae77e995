package session

import (
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// takenOver is a session of two prompt tokens with a log, taken over and resumed.
func takenOver(log ...kevlard.Token) *Machine {
	r := protocol.Record{
		Session: "s", Epoch: 2, Prompt: []kevlard.Token{1, 2}, MaxTokens: 9, Class: "c", Envelope: []byte{1}, Tokens: log,
	}
	m, _ := TakenOver(r, protocol.Life{Node: "o", Boot: "o.1"}, protocol.Life{Node: "p", Boot: "p.1"}, Timing{}, 0)
	return m
}

// TestTakenOverKeepsItsClass: the last owner may have shown tokens that are not in the
// log, so that the route must generate them alike, even if the log is empty.
func TestTakenOverKeepsItsClass(t *testing.T) {
	if c := takenOver().Class(); c != "c" {
		t.Errorf("with an empty log: class %q, want c", c)
	}
	if c := newSession(2).Class(); c != "" {
		t.Errorf("a new session: class %q, want any", c)
	}
}

// TestWhatWasFoundIsOfThePrompt: after a takeover more than the prompt may be found. With
// a log, what was found at first is in the record.
func TestWhatWasFoundIsOfThePrompt(t *testing.T) {
	for _, c := range []struct {
		log  []kevlard.Token
		have int
		said int // -1: nothing
	}{{nil, 4, 1}, {[]kevlard.Token{3, 4, 5}, 4, -1}} {
		m := takenOver(c.log...)
		m.Resume(0, nil)
		now := kevlard.Instant(0)
		m.Hurry(now)
		m.SetRoute(now, kevlard.Route{{Node: "n1", Layers: kevlard.Layers{Lo: 0, Hi: 4}}}, "c", nil, nil, nil)
		said := -1
		for _, e := range m.Prepared(now, "n1", protocol.Prepared{Session: "s", Fence: m.Fence(), Have: c.have}, nil) {
			if r, ok := e.(Reused); ok {
				said = r.Positions
			}
		}
		if said != c.said {
			t.Errorf("log %v: %d positions are said to be found, want %d", c.log, said, c.said)
		}
	}
}

// TestOlderAnswersSupersede: whatever prepare it answers, a stage that knows a newer
// epoch ends the session here.
func TestOlderAnswersSupersede(t *testing.T) {
	m := newSession(5)
	prepared(t, m, 0)
	if m.State() != Prefill {
		t.Fatal(m.State())
	}
	m.Prepared(1, "n1", protocol.Prepared{Session: "s", Fence: kevlard.Fence{Epoch: 1}, Refusal: protocol.RefusedStale, Epoch: 7}, nil)
	if m.State() != Done {
		t.Errorf("%s after a word of epoch 7", m.State())
	}
}
