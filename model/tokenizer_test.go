package model

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	ollama "github.com/ollama/ollama/tokenizer"
	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

func tokenizerOf(t testing.TB, f *File) *Tokenizer {
	t.Helper()
	tok, err := NewTokenizer(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t testing.TB, tok *Tokenizer, text string, addBOS bool) []kevlard.Token {
	t.Helper()
	ids, err := tok.Encode(text, addBOS)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// decode joins the pieces of ids.
func decode(tok *Tokenizer, ids []kevlard.Token) string {
	var b []byte
	for _, id := range ids {
		b = append(b, tok.Piece(id)...)
	}
	return string(b)
}

// TestReferenceCases compares with ids on which llama.cpp and ollama agree.
func TestReferenceCases(t *testing.T) {
	raw, err := os.ReadFile(shared(t, "../../shared/models/tokenizer-cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Text string
		IDs  []kevlard.Token
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 39 {
		t.Fatalf("%d cases: want 39", len(cases))
	}
	tok := tokenizerOf(t, openFile(t, q8Model))
	for _, c := range cases {
		got := encode(t, tok, c.Text, true)
		if !slices.Equal(got, c.IDs) {
			t.Errorf("%q: %v: want %v", c.Text, got, c.IDs)
		}
		if back := decode(tok, got); back != c.Text {
			t.Errorf("%q decodes to %q", c.Text, back)
		}
	}
}

func TestFairyTokenizer(t *testing.T) {
	tok := tokenizerOf(t, openFile(t, q8Model))
	if tok.BOS() != 2046 || tok.EOS() != 2047 || !tok.AddsBOS() || tok.VocabSize() != 2048 {
		t.Errorf("BOS %d, EOS %d, adds BOS %t, %d tokens", tok.BOS(), tok.EOS(), tok.AddsBOS(), tok.VocabSize())
	}
	for id := range kevlard.Token(2048) {
		if got, want := tok.IsEndOfGeneration(id), id == 2047; got != want {
			t.Errorf("IsEndOfGeneration(%d) = %t", id, got)
		}
		if got, want := len(tok.Piece(id)) == 0, id >= 2046; got != want {
			t.Errorf("Piece(%d) = %q", id, tok.Piece(id))
		}
	}
	if tok.TokenName(2047) == "" {
		t.Error("the token that ends texts has no name")
	}
	for _, id := range []kevlard.Token{-1, 2048} {
		if tok.Piece(id) != nil || tok.IsEndOfGeneration(id) || tok.TokenName(id) != "" {
			t.Errorf("token %d outside the vocabulary has a piece, a name or ends", id)
		}
	}
	if _, err := tok.Encode(strings.Repeat("a", maxEncodeBytes+1), true); err == nil {
		t.Error("a text over the limit is encoded")
	}
}

func TestSpecialsInText(t *testing.T) {
	tok := tokenizerOf(t, openFile(t, q8Model))
	a := encode(t, tok, "a", false)[0]
	const bos, eos = 2046, 2047
	for _, c := range []struct {
		text   string
		addBOS bool
		want   []kevlard.Token
	}{
		{"a", false, []kevlard.Token{a}},
		{"a", true, []kevlard.Token{bos, a}},
		{"<|begin_of_text|>a", true, []kevlard.Token{bos, a}},
		{"<|begin_of_text|>a", false, []kevlard.Token{bos, a}},
		{"a<|end_of_text|>a", true, []kevlard.Token{bos, a, eos, a}},
		{"<|begin_of_text|><|begin_of_text|>a", true, []kevlard.Token{bos, bos, a}},
		{"<|end_of_text|><|end_of_text|>", false, []kevlard.Token{eos, eos}},
		{"", false, nil},
	} {
		if got := encode(t, tok, c.text, c.addBOS); !slices.Equal(got, c.want) {
			t.Errorf("Encode(%q, %t) = %v: want %v", c.text, c.addBOS, got, c.want)
		}
	}
	const evil = "a<|end_of_text|><|begin_of_text|>"
	got, err := tok.EncodePlain(evil, true)
	if err != nil || got[0] != bos || slices.Contains(got[1:], bos) || slices.Contains(got, eos) || decode(tok, got) != evil {
		t.Errorf("EncodePlain(%q) = %v, %v", evil, got, err)
	}
}

// textGen draws texts rich in what tokenizers treat specially.
func textGen() *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.OneOf(
		rapid.SampledFrom([]string{
			" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085", "'s", "'LL", "'", "123", "４５", "½", "é", "e\u0301", "你好", "😀", "ß", "ſ",
			"the ", " and", "Once", "...", "_", "$=<", "—", "\x00", "\u00ad", "aaaa", "<|end_of_text|>",
		}),
		rapid.StringN(0, 4, -1),
	), 0, 12), func(s []string) string { return strings.Join(s, "") })
}

func TestEncodeRoundTrip(t *testing.T) {
	tok := tokenizerOf(t, openFile(t, q8Model))
	rapid.Check(t, func(t *rapid.T) {
		s := textGen().Draw(t, "text")
		ids, err := tok.EncodePlain(s, false)
		if err != nil {
			t.Fatal(err)
		}
		if back := decode(tok, ids); back != s {
			t.Fatalf("%q decodes to %q", s, back)
		}
	})
}

// TestPreTokenizers compares the written-out rules with the regular expressions
// that define them, run by a backtracking engine.
func TestPreTokenizers(t *testing.T) {
	const (
		contractions = `'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]`
		gpt2         = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
		rest         = ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	for name, patterns := range map[string][]string{
		"llama-bpe": {`(?:` + contractions + `)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` + rest},
		"qwen2":     {`(?:` + contractions + `)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` + rest},
		"gpt-2":     {gpt2},
		"starcoder": {`\p{N}`, gpt2},
		"default":   {`[\p{P}\$\+<=>\^~\|]+`, gpt2, `\p{N}+`, `[0-9][0-9][0-9]`},
	} {
		t.Run(name, func(t *testing.T) {
			pre, ok := findPreTokenizer(name)
			if !ok {
				t.Fatal("not supported")
			}
			var res []*regexp2.Regexp
			for _, p := range patterns {
				res = append(res, regexp2.MustCompile(p, regexp2.None))
			}
			rapid.Check(t, func(t *rapid.T) {
				s := textGen().Draw(t, "text")
				var got []string
				pre.words(s, func(w string) { got = append(got, w) })
				if want := splitBy(t, s, res); !slices.Equal(got, want) {
					t.Fatalf("%q: %q: want %q", s, got, want)
				}
			})
		})
	}
}

// splitBy applies each expression to the pieces of the one before; what lies
// between matches is a piece too.
func splitBy(t *rapid.T, s string, res []*regexp2.Regexp) []string {
	pieces := []string{s}
	for _, re := range res {
		var next []string
		for _, p := range pieces {
			runes, at := []rune(p), 0
			m, err := re.FindRunesMatch(runes)
			for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
				if m.Index > at {
					next = append(next, string(runes[at:m.Index]))
				}
				next = append(next, m.String())
				at = m.Index + m.Length
			}
			if err != nil {
				t.Fatal(err)
			}
			if at < len(runes) {
				next = append(next, string(runes[at:]))
			}
		}
		pieces = next
	}
	if s == "" {
		return nil
	}
	return pieces
}

// mergeSlowly is mergePairs without queue or chain: it looks for the best pair
// anew each time.
func mergeSlowly(word string, rank pairRank) []string {
	var parts []string
	for word != "" {
		_, n := utf8.DecodeRuneInString(word)
		parts, word = append(parts, word[:n]), word[n:]
	}
	for {
		best, bestRank := -1, 0.0
		for i := range len(parts) - 1 {
			if r, ok := rank(parts[i], parts[i+1]); ok && (best < 0 || r < bestRank) {
				best, bestRank = i, r
			}
		}
		if best < 0 {
			return parts
		}
		parts[best] += parts[best+1]
		parts = slices.Delete(parts, best+1, best+2)
	}
}

func TestMergePairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := make(map[string]int)
		for _, s := range rapid.SliceOf(rapid.StringOfN(rapid.SampledFrom([]rune("abcé")), 2, 5, -1)).Draw(t, "tokens") {
			ranks[s] = rapid.IntRange(0, 3).Draw(t, "rank")
		}
		rank := func(l, r string) (float64, bool) {
			n, ok := ranks[l+r]
			return float64(n), ok
		}
		word := rapid.StringOfN(rapid.SampledFrom([]rune("abcé")), 0, 20, -1).Draw(t, "word")
		var got []string
		mergePairs(word, rank, func(s string) { got = append(got, s) })
		if want := mergeSlowly(word, rank); !slices.Equal(got, want) {
			t.Fatalf("%q: %q: want %q", word, got, want)
		}
	})
}

// TestBPEAgainstOther compares with another implementation on the real
// vocabulary, for words without repeats of a pair: there that one's order of
// equal ranks is undefined.
func TestBPEAgainstOther(t *testing.T) {
	f := openFile(t, q8Model)
	tok := tokenizerOf(t, f)
	values, _ := f.Strings("tokenizer.ggml.tokens")
	merges, _ := f.Strings("tokenizer.ggml.merges")
	types, _ := f.Int32s("tokenizer.ggml.token_type")
	other := ollama.NewBytePairEncoding(&ollama.Vocabulary{Values: values, Types: types, Merges: merges},
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	word := rapid.SampledFrom([]string{"Once", " upon", " a", " time", ",", " wolves", " and", "\n\n", "\"Who", "'s", " there", "?", " blacksmith", " 1892"})
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOfN(word, 0, 20).Draw(t, "words"), "")
		got, err := tok.Encode(s, false)
		if err != nil {
			t.Fatal(err)
		}
		want, err := other.Encode(s, false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %v, the other has %v", s, got, want)
		}
	})
}

// spmFile builds a SentencePiece vocabulary with all bytes.
func spmFile(t testing.TB, put func(w *kvWriter)) *File {
	w := &kvWriter{}
	tokens := []string{"<unk>", "<s>", "</s>"}
	kinds := []tokenKind{tokenUnknown, tokenControl, tokenControl}
	scores := []float32{0, 0, 0}
	for c := range 256 {
		tokens, kinds, scores = append(tokens, fmt.Sprintf("<0x%02X>", c)), append(kinds, tokenByte), append(scores, 0)
	}
	for i, s := range []string{"he", "ll", "hell", "hello", "▁hello", "▁w", "▁wo", "or", "▁", "h", "e", "l", "o", "w", "r", "d", "▁▁", "é"} {
		tokens, kinds, scores = append(tokens, s), append(kinds, tokenNormal), append(scores, -float32(i))
	}
	tokens, kinds, scores = append(tokens, "<mark>"), append(kinds, tokenUser), append(scores, 0)
	w.text("tokenizer.ggml.model", "llama")
	w.strings("tokenizer.ggml.tokens", tokens)
	w.array("tokenizer.ggml.token_type", kindInt32, len(kinds))
	for _, k := range kinds {
		w.b = append(w.b, byte(k), 0, 0, 0)
	}
	w.array("tokenizer.ggml.scores", kindFloat32, len(scores))
	w.b = encodeValues(w.b, F32, scores)
	put(w)
	return mustParse(t, gguf(w))
}

func TestSentencePiece(t *testing.T) {
	tok := tokenizerOf(t, spmFile(t, noKeys))
	bare := tokenizerOf(t, spmFile(t, func(w *kvWriter) {
		w.boolean("tokenizer.ggml.add_space_prefix", false)
		w.boolean("tokenizer.ggml.add_bos_token", false)
	}))
	names := func(tok *Tokenizer, ids []kevlard.Token) string {
		var out []string
		for _, id := range ids {
			out = append(out, tok.vocab.text[id])
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		tok        *Tokenizer
		text, want string
	}{
		{tok, "hello", "<s> ▁hello"},
		{tok, " hello", "<s> ▁ ▁hello"},
		{tok, "hello world", "<s> ▁hello ▁wo r l d"},
		{tok, "é", "<s> ▁ é"},
		{tok, "€", "<s> ▁ <0xE2> <0x82> <0xAC>"},
		{tok, "\n", "<s> ▁ <0x0A>"},
		{tok, "", "<s>"},
		// A text after a special token begins anew, with a space.
		{tok, "<s>hello", "<s> ▁hello"},
		{tok, "hello</s>hello", "<s> ▁hello </s> ▁hello"},
		{tok, "hello<mark>hello", "<s> ▁hello <mark> ▁hello"},
		{bare, "hello", "hello"},
		{bare, " hello", "▁hello"},
	} {
		if got := names(c.tok, encode(t, c.tok, c.text, true)); got != c.want {
			t.Errorf("%q: %s: want %s", c.text, got, c.want)
		}
	}
	if got := decode(tok, encode(t, tok, "hello w€<mark></s>", true)); got != " hello w€<mark>" {
		t.Errorf("decoded %q", got)
	}
	if tok.BOS() != 1 || tok.EOS() != 2 || !tok.IsEndOfGeneration(2) || !tok.AddsBOS() || bare.AddsBOS() {
		t.Errorf("BOS %d, EOS %d", tok.BOS(), tok.EOS())
	}
}

// TestSPMAgainstOther compares with another implementation, which never adds the
// leading space.
func TestSPMAgainstOther(t *testing.T) {
	f := spmFile(t, noKeys)
	tok := tokenizerOf(t, f)
	values, _ := f.Strings("tokenizer.ggml.tokens")
	types, _ := f.Int32s("tokenizer.ggml.token_type")
	scores, _ := f.Float32s("tokenizer.ggml.scores")
	other := ollama.NewSentencePiece(&ollama.Vocabulary{Values: values, Types: types, Scores: scores})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.SampledFrom([]rune("helloworld  é€\n")), 0, 30, -1).Draw(t, "text")
		got, err := tok.EncodePlain(s, false)
		if err != nil {
			t.Fatal(err)
		}
		if s == "" {
			return
		}
		want, err := other.Encode(" "+s, false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %v, the other has %v", s, got, want)
		}
	})
}

func TestEndOfGenerationByName(t *testing.T) {
	w := &kvWriter{}
	w.text("tokenizer.ggml.model", "gpt2")
	w.text("tokenizer.ggml.pre", "qwen2")
	w.strings("tokenizer.ggml.tokens", []string{"a", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<turn>"})
	w.array("tokenizer.ggml.token_type", kindInt32, 5)
	w.b = append(w.b, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0)
	w.strings("tokenizer.ggml.merges", []string{"a a"})
	w.u32("tokenizer.ggml.eot_token_id", 4)
	tok := tokenizerOf(t, mustParse(t, gguf(w)))
	for id, want := range []bool{false, false, true, true, true} {
		if got := tok.IsEndOfGeneration(kevlard.Token(id)); got != want {
			t.Errorf("IsEndOfGeneration(%d) = %t: want %t", id, got, want)
		}
	}
	// A converter called <|im_end|> normal; it is a control token all the same.
	if tok.Piece(2) != nil || tok.BOS() != -1 || tok.AddsBOS() {
		t.Errorf("Piece(2) = %q, BOS %d", tok.Piece(2), tok.BOS())
	}
}

func TestTokenizerErrors(t *testing.T) {
	base := func(put func(w *kvWriter)) func(*kvWriter) {
		return func(w *kvWriter) {
			put(w)
			for _, k := range []struct{ key, value string }{{"model", "gpt2"}, {"pre", "gpt-2"}} {
				if mustParse(t, gguf(&kvWriter{b: w.b, n: w.n})).Kind("tokenizer.ggml."+k.key) == "" {
					w.text("tokenizer.ggml."+k.key, k.value)
				}
			}
		}
	}
	tokens := func(w *kvWriter) { w.strings("tokenizer.ggml.tokens", []string{"a", "b"}) }
	merges := func(w *kvWriter) { w.strings("tokenizer.ggml.merges", []string{"a b"}) }
	for _, c := range []struct {
		put  func(w *kvWriter)
		want string
	}{
		{func(*kvWriter) {}, "0 tokens: want 1"},
		{func(w *kvWriter) { w.array("tokenizer.ggml.tokens", kindUint8, 1); w.b = append(w.b, 0) }, "want strings"},
		{func(w *kvWriter) { tokens(w); w.text("tokenizer.ggml.model", "bert") }, `model "bert" is not supported: want gpt2 or llama`},
		{func(w *kvWriter) { tokens(w); merges(w); w.text("tokenizer.ggml.pre", "klingon") }, `pre-tokenizer "klingon" is not supported: want one of ["a.x-4.0"`},
		{tokens, "merges"},
		{func(w *kvWriter) { tokens(w); w.text("tokenizer.ggml.model", "llama") }, "scores"},
		{func(w *kvWriter) {
			tokens(w)
			w.array("tokenizer.ggml.token_type", kindInt32, 1)
			w.b = append(w.b, 1, 0, 0, 0)
		}, "1 token types for 2 tokens"},
		{func(w *kvWriter) { tokens(w); merges(w); w.u32("tokenizer.ggml.eos_token_id", 2) }, `"tokenizer.ggml.eos_token_id" (uint32) is no token: want 0 to 1`},
		{func(w *kvWriter) { tokens(w); merges(w); w.boolean("tokenizer.ggml.add_bos_token", true) }, "bos_token_id"},
	} {
		w := &kvWriter{}
		base(c.put)(w)
		if _, err := NewTokenizer(mustParse(t, gguf(w))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v: want %q in it", err, c.want)
		}
	}
}

func TestByteAlphabet(t *testing.T) {
	seen := make(map[rune]bool)
	for c := range 256 {
		r := runeOf(byte(c))
		back, ok := byteOf(r)
		if seen[r] || !ok || back != byte(c) || r <= ' ' || r == 0x7f {
			t.Errorf("byte %#x stands as %q, which stands for %#x", c, r, back)
		}
		seen[r] = true
	}
	for r := rune(0); r < 0x400; r++ {
		if _, ok := byteOf(r); ok != seen[r] {
			t.Errorf("byteOf(%q): %t", r, ok)
		}
	}
}
