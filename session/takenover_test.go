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

// TestWhatWasFoundIsOfThePrompt: after a takeover more than the prompt may be found.
func TestWhatWasFoundIsOfThePrompt(t *testing.T) {
	m := takenOver(3, 4, 5)
	m.Resume(0, nil)
	now := kevlard.Instant(0)
	m.Hurry(now)
	m.SetRoute(now, kevlard.Route{{Node: "n1", Layers: kevlard.Layers{Lo: 0, Hi: 4}}}, "c", nil, nil, nil)
	for _, e := range m.Prepared(now, "n1", protocol.Prepared{Session: "s", Fence: m.Fence(), Have: 4}, nil) {
		if r, ok := e.(Reused); ok {
			if r.Positions != 2 {
				t.Errorf("%d positions were found, want the 2 of the prompt", r.Positions)
			}
			return
		}
	}
	t.Error("nothing is said of what was found")
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
