package protocol

import (
	"reflect"
	"testing"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// TestFollowMessages: what nodes say of a client that came back arrives as it was sent.
func TestFollowMessages(t *testing.T) {
	c := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		id, number := drawID[kevlard.SessionID](t, "session"), rapid.Uint64Range(1, 1<<40).Draw(t, "number")
		from := rapid.IntRange(0, MaxTokens).Draw(t, "from")
		yes := rapid.Bool().Draw(t, "yes")
		var m Message
		switch rapid.IntRange(0, 3).Draw(t, "which") {
		case 0:
			m = Follow{id, number, from}
		case 1:
			m = Unfollow{id, number, yes}
		case 2:
			f := Followed{Session: id, Number: number, From: from, Tokens: drawTokens(t, 50), More: yes}
			if rapid.Bool().Draw(t, "logprobs") {
				for range f.Tokens {
					f.Logprobs = append(f.Logprobs, *drawLogprobs(t))
				}
			}
			m = f
		case 3:
			m = Followed{Session: id, Number: number, From: from, Done: true, Reason: "error", Code: "no_route", Status: 503, Message: "gone"}
		}
		b, err := c.EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.DecodeMessage(b); err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v arrives as %+v, %v", m, got, err)
		}
	})
}

// TestFollowBounds: what is over a bound is refused as a whole.
func TestFollowBounds(t *testing.T) {
	c := NewCodec()
	for name, m := range map[string]Message{
		"no session":        Follow{Number: 1},
		"no number":         Follow{Session: "s"},
		"from":              Follow{Session: "s", Number: 1, From: -1},
		"tokens":            Followed{Session: "s", Number: 1, Tokens: make([]kevlard.Token, MaxFollowed+1)},
		"logprobs":          Followed{Session: "s", Number: 1, Tokens: make([]kevlard.Token, 2), Logprobs: make([]kevlard.Logprobs, 1)},
		"text":              Followed{Session: "s", Number: 1, Done: true, Message: string(make([]byte, maxFollowedText+1))},
		"status":            Followed{Session: "s", Number: 1, Done: true, Status: 1000},
		"unfollow's number": Unfollow{Session: "s"},
	} {
		b, err := c.EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.DecodeMessage(b); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}
