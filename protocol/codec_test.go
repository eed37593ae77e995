package protocol

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

func drawID[S ~string](t *rapid.T, what string) S {
	return S(rapid.StringMatching(`[a-z0-9.]{1,20}`).Draw(t, what))
}

func drawFence(t *rapid.T) kevlard.Fence {
	return kevlard.Fence{Epoch: rapid.Uint64Range(1, math.MaxUint64).Draw(t, "epoch"), Term: rapid.Uint64Range(1, math.MaxUint64).Draw(t, "term")}
}

func drawTokens(t *rapid.T, most int) []kevlard.Token {
	return rapid.SliceOfN(rapid.Int32(), 1, most).Draw(t, "tokens")
}

func drawLogprobs(t *rapid.T) *kevlard.Logprobs {
	value := rapid.Float32Range(-math.MaxFloat32, 0)
	l := &kevlard.Logprobs{Chosen: value.Draw(t, "logprob")}
	for range rapid.IntRange(0, kevlard.MaxTopLogprobs).Draw(t, "top") {
		l.Top = append(l.Top, kevlard.TokenLogprob{Token: rapid.Int32Range(0, math.MaxInt32).Draw(t, "token"), Logprob: value.Draw(t, "logprob")})
	}
	return l
}

func drawMessage(t *rapid.T) Message {
	id, f := drawID[kevlard.SessionID](t, "session"), drawFence(t)
	lo := rapid.IntRange(0, 1000).Draw(t, "lo")
	pos := rapid.IntRange(1, MaxTokens).Draw(t, "pos")
	yes := rapid.Bool().Draw(t, "yes")
	switch kind(rapid.IntRange(int(kindPrepare), int(kindRenew)).Draw(t, "kind")) {
	case kindPrepare:
		p := Prepare{
			Session: id, Fence: f, OwnerBoot: drawID[kevlard.BootID](t, "boot"), Last: yes, Tokens: drawTokens(t, 200),
			Stage:    kevlard.StageKey{Model: kevlard.Digest{1, 2}, Layers: kevlard.Layers{Lo: lo, Hi: lo + 1}},
			Sampling: kevlard.Sampling{Temperature: rapid.Float32Range(0, 100).Draw(t, "temperature"), TopK: 4, Seed: rapid.Uint64().Draw(t, "seed")},
			Credit:   rapid.IntRange(1, 1000).Draw(t, "credit"), Solo: yes, Recovery: !yes,
		}
		p.Positions = rapid.IntRange(len(p.Tokens), MaxTokens).Draw(t, "positions")
		if !p.Last {
			p.Next = drawID[kevlard.NodeID](t, "next")
		}
		return p
	case kindPrepared:
		return Prepared{Session: id, Fence: f, Lo: lo, Have: pos, Refusal: RefusedCapacity, Detail: "full"}
	case kindClose:
		return Close{Session: id, Fence: f, Lo: lo}
	case kindRefused:
		return Refused{Session: id, Fence: f, Lo: lo, Pos: pos, Reason: RefusedGap}
	case kindStep:
		s := Step{Session: id, Fence: f, Next: pos, Sampled: yes, Token: rapid.Int32().Draw(t, "token")}
		if rapid.Bool().Draw(t, "logprobs") {
			s.Logprobs = drawLogprobs(t)
		}
		return s
	case kindProbe:
		return Probe{Session: id, Fence: f, Lo: lo, Round: 3}
	case kindProbed:
		return Probed{Session: id, Fence: f, Lo: lo, Round: 3, Known: yes, Received: pos, Done: pos - 1, Stalled: !yes}
	case kindPing:
		return Ping{Seq: rapid.Uint64().Draw(t, "seq"), Sessions: lo, Free: pos, Record: rapid.Uint64().Draw(t, "record")}
	case kindPong:
		return Pong{Seq: rapid.Uint64().Draw(t, "seq"), Sessions: lo, Free: pos}
	case kindLost:
		return Lost{Session: id, Fence: f, Lo: lo, Cause: "engine-exit", Suspect: yes}
	default:
		return Renew{Sessions: []kevlard.SessionID{id, "x"}}
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	c := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
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

func drawItem(t *rapid.T) Item {
	it := Item{
		Session: drawID[kevlard.SessionID](t, "session"), Fence: drawFence(t), Pos: rapid.IntRange(0, 1000).Draw(t, "pos"),
		Tokens: drawTokens(t, 30), Start: rapid.Bool().Draw(t, "start"), Sample: rapid.Bool().Draw(t, "sample"),
	}
	if it.Lo = rapid.IntRange(0, 3).Draw(t, "lo"); it.Lo > 0 {
		it.Width = rapid.IntRange(1, 64).Draw(t, "width")
		it.Rows = rapid.SliceOfN(rapid.Byte(), it.Width*len(it.Tokens), it.Width*len(it.Tokens)).Draw(t, "rows")
	}
	return it
}

func TestFramesRoundTrip(t *testing.T) {
	c := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		f := Frame{}
		for range rapid.IntRange(1, 5).Draw(t, "items") {
			f.Items = append(f.Items, drawItem(t))
		}
		header, pieces, err := c.EncodeFrame(f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.DecodeFrame(header, bytes.Join(pieces, nil))
		if err != nil || !reflect.DeepEqual(got, f) {
			t.Fatalf("%+v became %+v, %v", f, got, err)
		}
	})
}

// TestSplit checks that the halves of an item are the item.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		it := drawItem(t)
		if len(it.Tokens) < 2 {
			return
		}
		a, b := it.Split(rapid.IntRange(1, len(it.Tokens)-1).Draw(t, "at"))
		both := it
		both.Tokens = append(append([]kevlard.Token{}, a.Tokens...), b.Tokens...)
		if it.Rows != nil {
			both.Rows = append(append([]byte{}, a.Rows...), b.Rows...)
		}
		if !reflect.DeepEqual(both, it) || a.Pos != it.Pos || a.End() != b.Pos || b.End() != it.End() {
			t.Fatalf("%+v is not %+v and %+v", it, a, b)
		}
		if a.Start != it.Start || b.Start || a.Sample || b.Sample != it.Sample {
			t.Fatalf("flags of %+v and %+v", a, b)
		}
	})
}

func TestMessagesThatAreRefused(t *testing.T) {
	c := NewCodec()
	good := Prepare{
		Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, OwnerBoot: "b", Last: true, Tokens: []kevlard.Token{1}, Positions: 1, Credit: 1,
		Stage: kevlard.StageKey{Layers: kevlard.Layers{Lo: 0, Hi: 1}},
	}
	for _, tc := range []struct {
		name string
		say  string // what the error must name
		m    func(Prepare) Message
	}{
		{"no session", "session", func(p Prepare) Message { p.Session = ""; return p }},
		{"a long session", "session", func(p Prepare) Message { p.Session = kevlard.SessionID(strings.Repeat("x", MaxID+1)); return p }},
		{"term 0", "fence", func(p Prepare) Message { p.Fence.Term = 0; return p }},
		{"no boot", "owner boot", func(p Prepare) Message { p.OwnerBoot = ""; return p }},
		{"no tokens", "tokens", func(p Prepare) Message { p.Tokens = nil; return p }},
		{"fewer positions than tokens", "positions", func(p Prepare) Message { p.Positions = 0; return p }},
		{"no credit", "credit", func(p Prepare) Message { p.Credit = 0; return p }},
		{"an empty range", "hi", func(p Prepare) Message { p.Stage.Layers.Hi = 0; return p }},
		{"a negative layer", "lo", func(p Prepare) Message { p.Stage.Layers.Lo = -1; return p }},
		{"last with a next", "next", func(p Prepare) Message { p.Next = "n"; return p }},
		{"a temperature that is no number", "temperature", func(p Prepare) Message { p.Sampling.Temperature = float32(math.NaN()); return p }},
		{"a top_p that is no number", "top_p", func(p Prepare) Message { p.Sampling.TopP = float32(math.NaN()); return p }},
		{"a min_p over 1", "min_p", func(p Prepare) Message { p.Sampling.MinP = 1.5; return p }},
		{"a negative temperature", "temperature", func(p Prepare) Message { p.Sampling.Temperature = -1; return p }},
		{"a step to position 0", "next", func(p Prepare) Message { return Step{Session: "s", Fence: p.Fence} }},
		{"too many top_logprobs", "top_logprobs", func(p Prepare) Message {
			return Step{Session: "s", Fence: p.Fence, Next: 1, Logprobs: &kevlard.Logprobs{Top: make([]kevlard.TokenLogprob, kevlard.MaxTopLogprobs+1)}}
		}},
		{"a logprob that is no number", "logprob", func(p Prepare) Message {
			return Step{Session: "s", Fence: p.Fence, Next: 1, Logprobs: &kevlard.Logprobs{Chosen: float32(math.NaN())}}
		}},
		{"a logprob over 0", "logprob", func(p Prepare) Message {
			return Step{Session: "s", Fence: p.Fence, Next: 1, Logprobs: &kevlard.Logprobs{Top: []kevlard.TokenLogprob{{Token: 1, Logprob: 0.1}}}}
		}},
		{"top_logprobs of no token", "token -1", func(p Prepare) Message {
			return Step{Session: "s", Fence: p.Fence, Next: 1, Logprobs: &kevlard.Logprobs{Top: []kevlard.TokenLogprob{{Token: -1}}}}
		}},
		{"asking for too many top_logprobs", "top_logprobs", func(p Prepare) Message {
			p.Sampling.Logprobs, p.Sampling.TopLogprobs = true, kevlard.MaxTopLogprobs+1
			return p
		}},
		{"top_logprobs without logprobs", "top_logprobs", func(p Prepare) Message { p.Sampling.TopLogprobs = 1; return p }},
		{"negative have", "have", func(p Prepare) Message { return Prepared{Session: "s", Fence: p.Fence, Have: -1} }},
		{"a renewal of nothing", "sessions", func(Prepare) Message { return Renew{} }},
		{"a renewal of too many", "sessions", func(Prepare) Message { return Renew{Sessions: make([]kevlard.SessionID, MaxRenew+1)} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := c.EncodeMessage(tc.m(good))
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.DecodeMessage(b)
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("error %v, want one that names %q", err, tc.say)
			}
		})
	}
	if b, err := c.EncodeMessage(good); err != nil {
		t.Fatal(err)
	} else if _, err := c.DecodeMessage(b); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestBytesThatAreRefused(t *testing.T) {
	c := NewCodec()
	step, err := c.EncodeMessage(Step{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Next: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"nothing": {}, "an unknown kind": {200, 0xa0}, "kind 0": {0, 0xa0}, "a cut message": step[:len(step)-1],
		"bytes after it": append(bytes.Clone(step), 0), "not a map": {byte(kindStep), 0x01},
		"an indefinite map": {byte(kindPing), 0xbf, 0xff}, "too long": make([]byte, MaxMessage+1),
	} {
		if m, err := c.DecodeMessage(b); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// TestUnknownKeysAreIgnored is the compatibility rule: fields can be added.
func TestUnknownKeysAreIgnored(t *testing.T) {
	c := NewCodec()
	type later struct {
		Seq      uint64 `cbor:"1,keyasint"`
		Sessions int    `cbor:"2,keyasint"`
		New      string `cbor:"77,keyasint"`
	}
	body, err := c.enc.Marshal(later{5, 6, "x"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.DecodeMessage(append([]byte{byte(kindPing)}, body...)); err != nil || m != (Ping{Seq: 5, Sessions: 6}) {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestUnknownKeysOfAllMessages adds fields of a later build to all kinds of messages, and to
// the items of frames: they are read as without.
func TestUnknownKeysOfAllMessages(t *testing.T) {
	c := NewCodec()
	later := func(t *rapid.T, body []byte) []byte {
		var m map[int64]cbor.RawMessage
		if err := cbor.Unmarshal(body, &m); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(t, "fields") {
			v := rapid.SampledFrom([]any{1, -1, "x", []byte{1}, []int{1, 2}, map[string]any{"a": []int{1}}, nil, true, 1.5}).Draw(t, "value")
			raw, err := c.enc.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			m[rapid.Int64Range(200, 1<<40).Draw(t, "key")] = raw
		}
		out, err := c.enc.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		want := drawMessage(t)
		if rapid.Bool().Draw(t, "witness") {
			want = drawWitness(t)
		}
		b, err := c.EncodeMessage(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.DecodeMessage(append(b[:1:1], later(t, b[1:])...))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	})
}

// TestUnknownKindsAreRefused: a kind of a later build is an error of format, whatever
// follows, and nothing worse.
func TestUnknownKindsAreRefused(t *testing.T) {
	c := NewCodec()
	known := 0
	for k := range 256 {
		_, err := c.DecodeMessage([]byte{byte(k), 0xa0})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("kind %d: %v", k, err)
		}
		if err == nil || !strings.Contains(err.Error(), "unknown kind") {
			known++
		}
	}
	if known < 30 || known > 60 {
		t.Errorf("%d kinds are known", known)
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	c := NewCodec()
	good := Item{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 2, Tokens: []kevlard.Token{1, 2}, Width: 4, Rows: make([]byte, 8)}
	for _, tc := range []struct {
		name  string
		items func(Item) []Item
		body  int
	}{
		{"no items", func(Item) []Item { return nil }, 0},
		{"too many items", func(it Item) []Item {
			it.Lo, it.Width, it.Rows = 0, 0, nil
			return slicesRepeat(it, MaxItems+1)
		}, 0},
		{"no tokens", func(it Item) []Item { it.Tokens = nil; return []Item{it} }, 0},
		{"a negative position", func(it Item) []Item { it.Pos = -1; return []Item{it} }, 8},
		{"a first stage with rows", func(it Item) []Item { it.Lo = 0; return []Item{it} }, 8},
		{"a later stage without rows", func(it Item) []Item { it.Width = 0; return []Item{it} }, 0},
		{"fewer rows than tokens", func(it Item) []Item { return []Item{it} }, 7},
		{"rows that are nobody's", func(it Item) []Item { return []Item{it} }, 9},
		{"too wide", func(it Item) []Item { it.Width = MaxWidth + 1; return []Item{it} }, 8},
		{"a body over the bound", func(it Item) []Item { return []Item{it} }, MaxBody + 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			header, err := c.enc.Marshal(Frame{Items: tc.items(good)})
			if err != nil {
				t.Fatal(err)
			}
			if f, err := c.DecodeFrame(header, make([]byte, tc.body)); !errors.Is(err, ErrFormat) {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
}

func slicesRepeat(it Item, n int) []Item {
	out := make([]Item, n)
	for i := range out {
		out[i] = it
	}
	return out
}

// TestSendersRespectTheBounds checks that what no receiver would take is not
// encoded.
func TestSendersRespectTheBounds(t *testing.T) {
	c := NewCodec()
	if _, err := c.EncodeMessage(Prepare{Session: "s", Tokens: make([]kevlard.Token, 2*MaxMessage)}); err == nil {
		t.Error("a message over the bound is sent")
	}
	f := Frame{Items: []Item{{Session: kevlard.SessionID(strings.Repeat("s", MaxHeader))}}}
	if _, _, err := c.EncodeFrame(f); err == nil {
		t.Error("a header over the bound is sent")
	}
	// The longest session fits.
	p := Prepare{Session: "s", Tokens: make([]kevlard.Token, MaxTokens)}
	for i := range p.Tokens {
		p.Tokens[i] = math.MaxInt32
	}
	if _, err := c.EncodeMessage(p); err != nil {
		t.Errorf("a prepare of MaxTokens tokens: %v", err)
	}
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// TestDecodersAllocateInProportion feeds headers that promise much: what is
// allocated must stay near what was sent.
func TestDecodersAllocateInProportion(t *testing.T) {
	c := NewCodec()
	empties := append([]byte{0xa1, 0x01, 0x99, 0xff, 0xf0}, bytes.Repeat([]byte{0xa0}, 0xfff0)...) // 65520 empty items
	promise := []byte{0xa1, 0x01, 0x9b, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff}
	for name, header := range map[string][]byte{"empty items": empties, "a promise": promise} {
		var err error
		if n := allocated(func() { _, err = c.DecodeFrame(header, nil) }); n > 1<<20 || !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %d bytes for a header of %d, %v", name, n, len(header), err)
		}
	}
	message := append([]byte{byte(kindRenew)}, promise...)
	var err error
	if n := allocated(func() { _, err = c.DecodeMessage(message) }); n > 1<<20 || !errors.Is(err, ErrFormat) {
		t.Errorf("a renewal: %d bytes, %v", n, err)
	}
}

func FuzzDecodeMessage(f *testing.F) {
	c := NewCodec()
	fence := kevlard.Fence{Epoch: 1, Term: 2}
	for _, m := range []Message{
		Prepare{Session: "s", Fence: fence, OwnerBoot: "b", Last: true, Tokens: []kevlard.Token{1, 2}, Positions: 9, Credit: 3, Stage: kevlard.StageKey{Layers: kevlard.Layers{Hi: 2}}},
		Prepared{Session: "s", Fence: fence, Have: 3},
		Close{Session: "s", Fence: fence},
		Refused{Session: "s", Fence: fence, Reason: RefusedGap},
		Step{Session: "s", Fence: fence, Next: 3, Sampled: true, Token: 5},
		Probe{Session: "s", Fence: fence, Round: 1},
		Probed{Session: "s", Fence: fence, Known: true},
		Ping{Seq: 1},
		Pong{Seq: 1},
		Lost{Session: "s", Fence: fence, Cause: "lease"},
		Renew{Sessions: []kevlard.SessionID{"s"}},
		record(),
		Log{Entries: []LogEntry{{Session: "s", Epoch: 2, From: 1, Tokens: []kevlard.Token{7}}}},
		Logged{Entries: []LoggedEntry{{Session: "s", Epoch: 2, Version: 1, Through: 3, Newer: 4, Refusal: WitnessPromised}}},
		Locate{Session: "s"},
		Located{Session: "s", Recorded: true, Epoch: 2, Owner: record().Owner, Witnesses: record().Witnesses, At: 1},
		Vote{Session: "s", Epoch: 2},
		Promise{Session: "s", Epoch: 2, Record: new(record())},
		Forget{Session: "s", Epoch: 2, Ended: true},
		Keep{Sessions: []kevlard.SessionID{"s"}},
	} {
		b, err := c.EncodeMessage(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := c.DecodeMessage(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v is not ErrFormat", err)
			}
			return
		}
		again, err := c.EncodeMessage(m)
		if err != nil {
			t.Fatalf("%+v was decoded and cannot be encoded: %v", m, err)
		}
		if n, err := c.DecodeMessage(again); err != nil || !reflect.DeepEqual(n, m) {
			t.Fatalf("%+v became %+v, %v", m, n, err)
		}
	})
}

func FuzzDecodeFrame(f *testing.F) {
	c := NewCodec()
	items := []Item{
		{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Tokens: []kevlard.Token{1, 2}, Start: true},
		{Session: "t", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 3, Tokens: []kevlard.Token{1}, Width: 4, Rows: []byte{1, 2, 3, 4}, Sample: true},
	}
	for _, fr := range []Frame{{Items: items}, {Items: items[:1]}, {Items: items[1:]}} {
		header, pieces, err := c.EncodeFrame(fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(header, bytes.Join(pieces, nil))
	}
	f.Fuzz(func(t *testing.T, header, body []byte) {
		fr, err := c.DecodeFrame(header, body)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v is not ErrFormat", err)
			}
			return
		}
		again, pieces, err := c.EncodeFrame(fr)
		if err != nil {
			return // an odd encoding may have been shorter than ours
		}
		if g, err := c.DecodeFrame(again, bytes.Join(pieces, nil)); err != nil || !reflect.DeepEqual(g, fr) {
			t.Fatalf("%+v became %+v, %v", fr, g, err)
		}
	})
}
