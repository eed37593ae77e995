package model

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// checkDecoder pushes pieces of bytes and compares with the decoding of the whole.
func checkDecoder(t interface{ Fatalf(string, ...any) }, pieces [][]byte) {
	var d Decoder
	var got strings.Builder
	var all []byte
	for _, p := range pieces {
		all = append(all, p...)
		s := d.push(p)
		if !utf8.ValidString(s) {
			t.Fatalf("push(%q) = %q is not valid", p, s)
		}
		got.WriteString(s)
		// All that is certain has been emitted: what is held can still become a
		// character, and is part of one only.
		if len(d.held) > 3 || len(d.held) > 0 && utf8.FullRune(d.held) {
			t.Fatalf("after %q, %q is held", all, d.held)
		}
	}
	got.WriteString(d.Flush())
	if s := d.Flush(); s != "" {
		t.Fatalf("second Flush = %q", s)
	}
	if want := string([]rune(string(all))); got.String() != want {
		t.Fatalf("%q: %q: want %q", all, got.String(), want)
	}
}

func TestDecoderBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pieces [][]byte
		for _, s := range rapid.SliceOf(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\xe2\x82", "\xac", "\xf0\x9f", "\x98", "\x80", "\xff", "\xc0\x80", "\xed\xa0\x80", ""}))).Draw(t, "pieces") {
			pieces = append(pieces, []byte(s))
		}
		checkDecoder(t, pieces)
	})
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte("Once 😀 upon"), uint8(1))
	f.Add([]byte("\xf0\x9f\x98"), uint8(2))
	f.Add([]byte("a\xffb\xe2\x82"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		var pieces [][]byte
		for len(b) > 0 {
			n := min(len(b), int(step%5)+1)
			pieces, b = append(pieces, b[:n]), b[n:]
		}
		checkDecoder(t, pieces)
	})
}

func TestDecoderStreamsCharacters(t *testing.T) {
	tok := tokenizerOf(t, openFile(t, q8Model))
	const text = "The 😀 said: 你好, naïve wolf."
	d := tok.NewDecoder()
	var parts []string
	for _, id := range encode(t, tok, text, true) {
		parts = append(parts, d.Push(id))
	}
	parts = append(parts, d.Flush())
	if got := strings.Join(parts, ""); got != text {
		t.Errorf("decoded %q: want %q", got, text)
	}
	if got := tok.NewDecoder().Push(kevlard.Token(-5)); got != "" {
		t.Errorf("a token outside the vocabulary decodes to %q", got)
	}
	// Half a character at the end of a text becomes visible when it ends.
	d = tok.NewDecoder()
	ids := encode(t, tok, "你", false)
	if s := d.Push(ids[0]); s != "" {
		t.Errorf("first byte of a character decodes to %q", s)
	}
	if s := d.Flush(); s != "\ufffd" {
		t.Errorf("Flush = %q", s)
	}
}
