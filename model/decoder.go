package model

import (
	"strings"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
)

// Decoder turns a stream of tokens into text without ever emitting part of a
// character. Two decoders given the same tokens emit the same text at the same
// tokens, so a stream can be rebuilt from its token log.
type Decoder struct {
	t *Tokenizer
	// held is the beginning of a character whose other bytes are still to come;
	// at most 3 bytes remain in it after a Push.
	held []byte
}

// NewDecoder returns a decoder at the start of a text. A space before the first
// word, which SentencePiece models emit, is kept: the text continues a prompt.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Push adds a token and returns the text that is now certain, which is valid
// UTF-8 and may be empty. A byte that cannot be part of a character becomes
// U+FFFD as soon as that is clear.
func (d *Decoder) Push(id kevlard.Token) string {
	return d.push(d.t.Piece(id))
}

func (d *Decoder) push(b []byte) string {
	d.held = append(d.held, b...)
	var out strings.Builder
	at := 0
	for at < len(d.held) && utf8.FullRune(d.held[at:]) {
		// An invalid byte decodes to U+FFFD with width 1.
		r, n := utf8.DecodeRune(d.held[at:])
		out.WriteRune(r)
		at += n
	}
	d.held = d.held[:copy(d.held, d.held[at:])]
	return out.String()
}

// Flush returns what is still held, each byte as U+FFFD, at the end of a text.
func (d *Decoder) Flush() string {
	n := len(d.held)
	d.held = d.held[:0]
	return strings.Repeat(string(utf8.RuneError), n)
}
