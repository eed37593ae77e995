package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// Tokenizer turns text into tokens and tokens into bytes, as llama.cpp does. It
// never changes after NewTokenizer and may be shared.
type Tokenizer struct {
	vocab  vocabulary
	encode func(out []kevlard.Token, text string, afterSpecial bool) []kevlard.Token
	piece  func(t kevlard.Token) []byte
	bos    kevlard.Token
	eos    kevlard.Token
	addBOS bool
	eog    map[kevlard.Token]bool
	// specials are found in text before anything else, longest first.
	specials []kevlard.Token
}

// vocabulary is the list of tokens and its inverse.
type vocabulary struct {
	text   []string
	kind   []tokenKind
	scores []float32
	ids    map[string]kevlard.Token
}

// tokenKind is GGUF's number of a token's type.
type tokenKind int32

const (
	tokenNormal  tokenKind = 1
	tokenUnknown tokenKind = 2
	tokenControl tokenKind = 3
	tokenUser    tokenKind = 4
	tokenByte    tokenKind = 6
)

// none is no token.
const none kevlard.Token = -1

// NewTokenizer builds the tokenizer that f describes. The models "gpt2"
// (byte-level BPE) and "llama" (SentencePiece) are supported.
func NewTokenizer(f *File) (*Tokenizer, error) {
	t, err := newTokenizer(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

func newTokenizer(f *File) (*Tokenizer, error) {
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{vocab: v, bos: none, eos: none, eog: make(map[kevlard.Token]bool)}
	switch kind, _ := f.String("tokenizer.ggml.model"); kind {
	case "gpt2":
		err = t.initBPE(f)
	case "llama":
		err = t.initSPM(f)
	default:
		err = fmt.Errorf("model %q is not supported: want gpt2 or llama", kind)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := f.Bool("tokenizer.ggml.add_bos_token"); ok {
		t.addBOS = b
	}
	if err := t.readSpecials(f); err != nil {
		return nil, err
	}
	return t, nil
}

func readVocabulary(f *File) (vocabulary, error) {
	var v vocabulary
	n := f.Len("tokenizer.ggml.tokens")
	if n < 1 || n > maxWidth {
		return v, fmt.Errorf("%d tokens: want 1 to %d", max(n, 0), maxWidth)
	}
	var err error
	if v.text, err = f.Strings("tokenizer.ggml.tokens"); err != nil {
		return v, err
	}
	if len(v.text) != n {
		return v, fmt.Errorf("key %q is an %s: want strings", "tokenizer.ggml.tokens", f.Kind("tokenizer.ggml.tokens"))
	}
	kinds, err := f.Int32s("tokenizer.ggml.token_type")
	if err != nil {
		return v, err
	}
	if kinds != nil && len(kinds) != n {
		return v, fmt.Errorf("%d token types for %d tokens", len(kinds), n)
	}
	if v.scores, err = f.Float32s("tokenizer.ggml.scores"); err != nil {
		return v, err
	}
	if v.scores != nil && len(v.scores) != n {
		return v, fmt.Errorf("%d scores for %d tokens", len(v.scores), n)
	}
	v.kind = make([]tokenKind, n)
	v.ids = make(map[string]kevlard.Token, n)
	for i, s := range v.text {
		v.kind[i] = tokenNormal
		if kinds != nil {
			v.kind[i] = tokenKind(kinds[i])
		}
		v.ids[s] = kevlard.Token(i)
	}
	return v, nil
}

func (v *vocabulary) lookup(s string) (kevlard.Token, bool) {
	t, ok := v.ids[s]
	return t, ok
}

// readSpecials finds the tokens that begin and end texts, by key and, as
// converters often leave the keys out, by what they are called.
func (t *Tokenizer) readSpecials(f *File) error {
	ends := []kevlard.Token{t.eos}
	for _, s := range []struct {
		key string
		set func(kevlard.Token)
	}{
		{"bos_token_id", func(id kevlard.Token) { t.bos = id }},
		{"eos_token_id", func(id kevlard.Token) { t.eos, ends[0] = id, id }},
		{"eot_token_id", func(id kevlard.Token) { ends = append(ends, id) }},
		{"eom_token_id", func(id kevlard.Token) { ends = append(ends, id) }},
	} {
		key := "tokenizer.ggml." + s.key
		if f.Kind(key) == "" {
			continue
		}
		id, ok := f.Uint(key)
		if !ok || id >= uint64(len(t.vocab.text)) {
			return fmt.Errorf("key %q (%s) is no token: want 0 to %d", key, f.Kind(key), len(t.vocab.text)-1)
		}
		s.set(kevlard.Token(id))
	}
	if t.addBOS && (t.bos < 0 || int(t.bos) >= len(t.vocab.text)) {
		return fmt.Errorf("texts shall begin with the BOS token but key %q is missing", "tokenizer.ggml.bos_token_id")
	}
	for _, name := range endNames() {
		if id, ok := t.vocab.lookup(name); ok {
			t.vocab.kind[id] = tokenControl
			ends = append(ends, id)
		}
	}
	for _, id := range ends {
		if id >= 0 {
			t.eog[id] = true
		}
	}
	for id, k := range t.vocab.kind {
		if t.vocab.text[id] != "" && (k == tokenControl || k == tokenUser || k == tokenUnknown) {
			t.specials = append(t.specials, kevlard.Token(id))
		}
	}
	slices.SortStableFunc(t.specials, func(a, b kevlard.Token) int {
		return len(t.vocab.text[b]) - len(t.vocab.text[a])
	})
	return nil
}

// endNames lists what tokens that end a turn or a text are called.
func endNames() []string {
	return []string{
		"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
		"<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
	}
}

// Encode returns the tokens of text. The names of special tokens in it, such as
// "<|eot_id|>", become those tokens: use it for text that a template has
// rendered and for raw completions. With addBOS, the tokens begin with BOS
// exactly once if the model wants one (tokenizer.ggml.add_bos_token), even if
// the text itself begins with it. EOS is never added.
func (t *Tokenizer) Encode(text string, addBOS bool) ([]kevlard.Token, error) {
	return t.encodeText(text, addBOS, true)
}

// EncodePlain is like Encode but reads the names of control tokens as the plain
// text they are: use it for untrusted text that must not end a turn.
func (t *Tokenizer) EncodePlain(text string, addBOS bool) ([]kevlard.Token, error) {
	return t.encodeText(text, addBOS, false)
}

func (t *Tokenizer) encodeText(text string, addBOS, parseSpecial bool) ([]kevlard.Token, error) {
	if len(text) > maxEncodeBytes {
		return nil, fmt.Errorf("tokenize: text of %d bytes is over the limit of %d", len(text), maxEncodeBytes)
	}
	var out []kevlard.Token
	if addBOS && t.addBOS {
		out = append(out, t.bos)
	}
	first, afterSpecial := true, true
	for _, p := range t.partition(text, parseSpecial) {
		if p.special == none {
			out = t.encode(out, p.text, afterSpecial)
		} else if !first || len(out) == 0 || p.special != t.bos {
			out = append(out, p.special)
		}
		first, afterSpecial = false, p.special != none
	}
	return out, nil
}

// fragment is a piece of text or, if special is not none, one token.
type fragment struct {
	text    string
	special kevlard.Token
}

// partition cuts text at the names of special tokens, the longest name first
// wherever it stands.
func (t *Tokenizer) partition(text string, parseSpecial bool) []fragment {
	if text == "" {
		return nil
	}
	parts := []fragment{{text, none}}
	for _, id := range t.specials {
		if !parseSpecial && t.vocab.kind[id] != tokenUser {
			continue
		}
		name := t.vocab.text[id]
		if !strings.Contains(text, name) {
			continue
		}
		var next []fragment
		for _, p := range parts {
			if p.special != none {
				next = append(next, p)
				continue
			}
			rest := p.text
			for {
				before, after, found := strings.Cut(rest, name)
				if before != "" {
					next = append(next, fragment{before, none})
				}
				if !found {
					break
				}
				next = append(next, fragment{"", id})
				rest = after
			}
		}
		parts = next
	}
	return parts
}

// BOS returns the token that begins texts, or -1.
func (t *Tokenizer) BOS() kevlard.Token { return t.bos }

// EOS returns the token that ends texts, or -1.
func (t *Tokenizer) EOS() kevlard.Token { return t.eos }

// AddsBOS reports whether the model wants texts to begin with BOS.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// VocabSize returns the number of tokens.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.text) }

// IsEndOfGeneration reports whether a model that produces id has finished: it is
// EOS, or ends a turn or message.
func (t *Tokenizer) IsEndOfGeneration(id kevlard.Token) bool { return t.eog[id] }

// TokenName returns what the vocabulary calls id, such as <|eot_id|>. Ids outside the
// vocabulary have no name.
func (t *Tokenizer) TokenName(id kevlard.Token) string {
	if id < 0 || int(id) >= len(t.vocab.text) {
		return ""
	}
	return t.vocab.text[id]
}

// Piece returns the bytes that id adds to a text, which may be part of a
// character. Control tokens, and ids outside the vocabulary, add none.
func (t *Tokenizer) Piece(id kevlard.Token) []byte {
	if id < 0 || int(id) >= len(t.vocab.text) {
		return nil
	}
	if t.vocab.kind[id] == tokenUser {
		return []byte(t.vocab.text[id])
	}
	return t.piece(id)
}
