package protocol

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// record returns one with every field set.
func record() Record {
	return Record{
		Session: "s", Epoch: 2, Owner: Life{"o", "o.1"},
		Witnesses: Witnesses{Version: 3, Now: []Life{{"a", "a.1"}, {"b", "b.1"}, {"c", "c.1"}}, Before: []Life{{"a", "a.1"}, {"d", "d.1"}}},
		Model:     kevlard.Digest{1}, Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, Sampling: kevlard.Sampling{Temperature: 0.5, Seed: 7},
		EOG: []kevlard.Token{9}, MinTokens: 1, Salt: "t", Class: "c", Route: kevlard.Route{{Node: "a", Layers: kevlard.Layers{Lo: 0, Hi: 2}}},
		Envelope: []byte("e"), Tokens: []kevlard.Token{4, 5}, Logprobs: []kevlard.Logprobs{{Chosen: -1}},
	}
}

func drawLife(t *rapid.T) Life {
	return Life{drawID[kevlard.NodeID](t, "node"), drawID[kevlard.BootID](t, "boot")}
}

func drawWitness(t *rapid.T) Message {
	id, epoch := drawID[kevlard.SessionID](t, "session"), rapid.Uint64Range(1, math.MaxUint64).Draw(t, "epoch")
	n := rapid.IntRange(1, 1000).Draw(t, "n")
	r := record()
	r.Session, r.Epoch, r.Owner = id, epoch, drawLife(t)
	r.Witnesses.Now = rapid.SliceOfN(rapid.Custom(drawLife), 1, MaxWitnesses).Draw(t, "now")
	r.Prompt, r.Tokens, r.MaxTokens = drawTokens(t, 50), drawTokens(t, 50), 100
	r.Logprobs = nil
	for range rapid.IntRange(0, len(r.Tokens)).Draw(t, "logprobs") {
		r.Logprobs = append(r.Logprobs, *drawLogprobs(t))
	}
	r.Envelope = rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "envelope")
	switch kind(rapid.IntRange(int(kindRecord), int(kindKeep)).Draw(t, "kind")) {
	case kindRecord:
		return r
	case kindLog:
		return Log{[]LogEntry{{Session: id, Epoch: epoch, From: n, Tokens: r.Tokens}, {Session: "x", Epoch: 1, Tokens: []kevlard.Token{1}, Logprobs: []kevlard.Logprobs{{Chosen: -1}}}}}
	case kindLogged:
		return Logged{[]LoggedEntry{{Session: id, Epoch: epoch, Version: 3, Through: n}, {Session: "x", Epoch: 1, Newer: epoch, Refusal: WitnessPromised}}}
	case kindLocate:
		return Locate{id}
	case kindLocated:
		return Located{Session: id, Recorded: true, Epoch: epoch, Owner: r.Owner, Witnesses: r.Witnesses, At: epoch}
	case kindVote:
		v := Vote{Session: id, Epoch: epoch}
		if rapid.Bool().Draw(t, "disowned") {
			v.Disowned = r.Owner
		}
		return v
	case kindPromise:
		if rapid.Bool().Draw(t, "refused") {
			return Promise{Session: id, Epoch: epoch, Refusal: WitnessOwner, Owner: r.Owner}
		}
		return Promise{Session: id, Epoch: epoch, Record: &r}
	case kindKeep:
		return Keep{[]kevlard.SessionID{id, "x"}}
	default:
		return Forget{id, epoch, rapid.Bool().Draw(t, "ended")}
	}
}

func TestWitnessMessagesRoundTrip(t *testing.T) {
	c := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		m := drawWitness(t)
		b, err := c.EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.DecodeMessage(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

func TestWitnessMessagesThatAreRefused(t *testing.T) {
	c := NewCodec()
	for _, tc := range []struct {
		name string
		say  string // what the error must name
		m    func(Record) Message
	}{
		{"epoch 0", "epoch", func(r Record) Message { r.Epoch = 0; return r }},
		{"no owner", "node", func(r Record) Message { r.Owner = Life{}; return r }},
		{"no witnesses", "witnesses", func(r Record) Message { r.Witnesses.Now = nil; return r }},
		{"too many witnesses", "witnesses", func(r Record) Message { r.Witnesses.Before = make([]Life, MaxWitnesses+1); return r }},
		{"no prompt", "prompt", func(r Record) Message { r.Prompt = nil; return r }},
		{"more tokens than asked for", "tokens", func(r Record) Message { r.Tokens = make([]kevlard.Token, 6); return r }},
		{"more logprobs than tokens", "logprobs", func(r Record) Message { r.Logprobs = make([]kevlard.Logprobs, 3); return r }},
		{"a large envelope", "envelope", func(r Record) Message { r.Envelope = make([]byte, MaxEnvelope+1); return r }},
		{"a temperature of -1", "temperature", func(r Record) Message { r.Sampling.Temperature = -1; return r }},
		{"keeping nothing", "sessions", func(Record) Message { return Keep{} }},
		{"an empty log", "entries", func(Record) Message { return Log{} }},
		{"a log without tokens", "tokens", func(Record) Message { return Log{[]LogEntry{{Session: "s", Epoch: 1}}} }},
		{"a log with fewer logprobs", "logprobs", func(Record) Message {
			return Log{[]LogEntry{{Session: "s", Epoch: 1, Tokens: []kevlard.Token{1, 2}, Logprobs: make([]kevlard.Logprobs, 1)}}}
		}},
		{"a promise of nothing", "exclude", func(Record) Message { return Promise{Session: "s", Epoch: 1} }},
		{"a promise of another session", "another", func(r Record) Message { return Promise{Session: "t", Epoch: 1, Record: &r} }},
		{"a place without witnesses", "witnesses", func(r Record) Message {
			return Located{Session: "s", Recorded: true, Epoch: 1, Owner: r.Owner}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := c.EncodeMessage(tc.m(record()))
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.DecodeMessage(b)
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("error %v, want one that names %q", err, tc.say)
			}
		})
	}
}
