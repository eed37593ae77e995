package model

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
)

// bpe is byte-level byte-pair encoding: text is cut into words, each byte of a
// word becomes a printable character, and pairs of symbols are joined by rank.
type bpe struct {
	vocab *vocabulary
	ranks map[string]int32 // "left right" -> order of the merge
	pre   preTokenizer
}

func (t *Tokenizer) initBPE(f *File) error {
	merges, err := f.Strings("tokenizer.ggml.merges")
	if err != nil {
		return err
	}
	if merges == nil {
		return fmt.Errorf("key %q is missing or holds no strings", "tokenizer.ggml.merges")
	}
	name, ok := f.String("tokenizer.ggml.pre")
	if !ok {
		name = "default"
	}
	pre, ok := findPreTokenizer(name)
	if !ok {
		return fmt.Errorf("pre-tokenizer %q is not supported: want one of %q", name, preTokenizerNames())
	}
	b := &bpe{vocab: &t.vocab, ranks: make(map[string]int32, len(merges)), pre: pre}
	for i, m := range merges {
		if _, dup := b.ranks[m]; !dup {
			b.ranks[m] = int32(i)
		}
	}
	t.addBOS = pre.addBOS
	t.encode, t.piece = b.encode, b.piece
	return nil
}

func (b *bpe) encode(out []kevlard.Token, text string, _ bool) []kevlard.Token {
	var key []byte
	rank := func(left, right string) (float64, bool) {
		key = append(append(append(key[:0], left...), ' '), right...)
		r, ok := b.ranks[string(key)]
		return float64(r), ok
	}
	emit := func(s string) {
		if id, ok := b.vocab.lookup(s); ok {
			out = append(out, id)
			return
		}
		// A join that has no token falls back to its characters.
		for _, r := range s {
			if id, ok := b.vocab.lookup(string(r)); ok {
				out = append(out, id)
			}
		}
	}
	b.pre.words(text, func(w string) {
		word := printable(w)
		if b.pre.wholeWords {
			if id, ok := b.vocab.lookup(word); ok {
				out = append(out, id)
				return
			}
		}
		mergePairs(word, rank, emit)
	})
	return out
}

func (b *bpe) piece(id kevlard.Token) []byte {
	if b.vocab.kind[id] != tokenNormal {
		return nil
	}
	text := b.vocab.text[id]
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if c, ok := byteOf(r); ok {
			out = append(out, c)
		} else {
			// The vocabulary is not purely byte-level: this character is itself.
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// printable writes each byte of s as the character that stands for it in
// byte-level vocabularies.
func printable(s string) string {
	var w strings.Builder
	w.Grow(2 * len(s))
	for i := range len(s) {
		w.WriteRune(runeOf(s[i]))
	}
	return w.String()
}

// runeOf returns the character that stands for c: printable Latin-1 characters
// stand for themselves, the others in order for U+0100 and up.
func runeOf(c byte) rune {
	switch {
	case c <= 0x20:
		return 0x100 + rune(c)
	case c >= 0x7f && c <= 0xa0:
		return 0x121 + rune(c) - 0x7f
	case c == 0xad:
		return 0x143
	default:
		return rune(c)
	}
}

// byteOf is the inverse of runeOf.
func byteOf(r rune) (byte, bool) {
	switch {
	case r >= 0x100 && r <= 0x120:
		return byte(r - 0x100), true
	case r > 0x120 && r <= 0x142:
		return byte(r - 0x121 + 0x7f), true
	case r == 0x143:
		return 0xad, true
	case r > 0x20 && r < 0x7f, r > 0xa0 && r <= 0xff && r != 0xad:
		return byte(r), true
	default:
		return 0, false
	}
}
