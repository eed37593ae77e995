package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard"
)

// spm is SentencePiece's BPE: spaces are written as lowerBar, neighbouring
// characters are joined by the score of the token they make, and what is no
// token at the end is spelled in byte tokens.
type spm struct {
	vocab  *vocabulary
	prefix bool // a space before text that begins or follows a special token
	bytes  [256]kevlard.Token
}

// lowerBar stands for a space in vocabularies.
const lowerBar = "▁"

func (t *Tokenizer) initSPM(f *File) error {
	if t.vocab.scores == nil {
		return fmt.Errorf("key %q is missing or holds no float32", "tokenizer.ggml.scores")
	}
	s := &spm{vocab: &t.vocab, prefix: true}
	if b, ok := f.Bool("tokenizer.ggml.add_space_prefix"); ok {
		s.prefix = b
	}
	unknown := none
	for id, k := range t.vocab.kind {
		if k == tokenUnknown {
			unknown = kevlard.Token(id)
			break
		}
	}
	for c := range s.bytes {
		s.bytes[c] = unknown
		if id, ok := t.vocab.lookup(fmt.Sprintf("<0x%02X>", c)); ok {
			s.bytes[c] = id
		}
	}
	t.addBOS = true
	if t.VocabSize() > 2 {
		t.bos, t.eos = 1, 2 // as every SentencePiece model of the family has them
	}
	t.encode, t.piece = s.encode, s.piece
	return nil
}

func (s *spm) encode(out []kevlard.Token, text string, afterSpecial bool) []kevlard.Token {
	if s.prefix && afterSpecial {
		text = " " + text
	}
	var key []byte
	rank := func(left, right string) (float64, bool) {
		key = append(append(key[:0], left...), right...)
		id, ok := s.vocab.ids[string(key)]
		if !ok {
			return 0, false
		}
		return -float64(s.vocab.scores[id]), true
	}
	mergePairs(strings.ReplaceAll(text, " ", lowerBar), rank, func(piece string) {
		if id, ok := s.vocab.lookup(piece); ok {
			out = append(out, id)
			return
		}
		for i := range len(piece) {
			if id := s.bytes[piece[i]]; id != none {
				out = append(out, id)
			}
		}
	})
	return out
}

func (s *spm) piece(id kevlard.Token) []byte {
	text := s.vocab.text[id]
	switch s.vocab.kind[id] {
	case tokenNormal:
		return []byte(strings.ReplaceAll(text, lowerBar, " "))
	case tokenByte:
		hex, ok := strings.CutPrefix(text, "<0x")
		if !ok || len(hex) != 3 || hex[2] != '>' {
			return nil
		}
		c, err := strconv.ParseUint(hex[:2], 16, 8)
		if err != nil {
			return nil
		}
		return []byte{byte(c)}
	default:
		return nil
	}
}
