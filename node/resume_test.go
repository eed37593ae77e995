package node

import (
	"slices"
	"testing"

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
