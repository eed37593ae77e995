package model

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// preTokenizer cuts text into words before byte-pair encoding. Published
// vocabularies define theirs by regular expressions with look-ahead, which the
// standard library does not have; these are the same rules written out.
type preTokenizer struct {
	names []string // values of tokenizer.ggml.pre
	// cuts are applied one after another, each to the pieces of the one before.
	// A cut returns the length in bytes of the first piece of a non-empty text.
	cuts []func(text string) int
	// wholeWords takes a word that is a token as it is, without merging.
	wholeWords bool
	addBOS     bool // unless tokenizer.ggml.add_bos_token says otherwise
}

func preTokenizers() []preTokenizer {
	llama3 := func(s string) int { return cutWord(s, 3) }
	qwen2 := func(s string) int { return cutWord(s, 1) }
	return []preTokenizer{
		{
			names: []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
			cuts:  []func(string) int{llama3}, wholeWords: true, addBOS: true,
		},
		{names: []string{"smaug-bpe", "dbrx", "chatglm-bpe"}, cuts: []func(string) int{llama3}},
		{names: []string{"qwen2", "deepseek-r1-qwen", "stablelm2", "kormo"}, cuts: []func(string) int{qwen2}},
		{names: []string{"gpt-2", "phi-2", "gigachat", "mpt", "olmo", "a.x-4.0", "mellum"}, cuts: []func(string) int{cutGPT2}},
		{
			names: []string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"},
			cuts:  []func(string) int{cutEachNumber, cutGPT2},
		},
		{names: []string{"default"}, cuts: []func(string) int{cutPunctuation, cutGPT2, cutNumbers, cutTriples}},
	}
}

func findPreTokenizer(name string) (preTokenizer, bool) {
	for _, p := range preTokenizers() {
		if slices.Contains(p.names, name) {
			return p, true
		}
	}
	return preTokenizer{}, false
}

func preTokenizerNames() []string {
	var out []string
	for _, p := range preTokenizers() {
		out = append(out, p.names...)
	}
	slices.Sort(out)
	return out
}

// words calls emit with the words of text; joined they are text.
func (p preTokenizer) words(text string, emit func(string)) {
	cutAll(text, p.cuts, emit)
}

func cutAll(text string, cuts []func(string) int, emit func(string)) {
	if len(cuts) == 0 {
		emit(text)
		return
	}
	for text != "" {
		n := cuts[0](text)
		cutAll(text[:n], cuts[1:], emit)
		text = text[n:]
	}
}

// cutWord is the rule of Llama 3 (with up to 3 digits) and Qwen 2 (1 digit):
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
//	 ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func cutWord(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case unicode.IsLetter(r):
		return run(s, 0, unicode.IsLetter)
	case unicode.IsNumber(r):
		for range digits - 1 {
			r, w := utf8.DecodeRuneInString(s[n:])
			if w == 0 || !unicode.IsNumber(r) {
				break
			}
			n += w
		}
		return n
	case r != '\r' && r != '\n':
		if end := run(s, n, unicode.IsLetter); end > n {
			return end
		}
	}
	if n := symbols(s); n > 0 {
		return run(s, n, isNewline)
	}
	space := run(s, 0, unicode.IsSpace)
	for i := space; i > 0; i-- {
		if s[i-1] == '\r' || s[i-1] == '\n' {
			return i
		}
	}
	return cutSpace(s, space)
}

// cutGPT2 is the rule of GPT-2:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func cutGPT2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := run(s, start, unicode.IsLetter); end > start {
		return end
	}
	if end := run(s, start, unicode.IsNumber); end > start {
		return end
	}
	if n := symbols(s); n > 0 {
		return n
	}
	return cutSpace(s, run(s, 0, unicode.IsSpace))
}

// cutSpace returns the piece of a run of space that ends at end: all of it at the
// end of the text, else all but the last character, which belongs to the word
// that follows, unless it is the only one.
func cutSpace(s string, end int) int {
	if end == len(s) {
		return end
	}
	_, last := utf8.DecodeLastRuneInString(s[:end])
	if end > last {
		return end - last
	}
	return end
}

// contraction returns the length of an English ending such as 'll, or 0.
func contraction(s string, anyCase bool) int {
	if s[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if c := s[i]; anyCase && c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return s[i]
	}
	switch a, b := lower(1), lower(2); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	default:
		return 0
	}
}

// symbols returns the length of ` ?[^\s\p{L}\p{N}]+` at the start of s, or 0.
func symbols(s string) int {
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := run(s, start, isSymbol); end > start {
		return end
	}
	return 0
}

func isSymbol(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}

func isNewline(r rune) bool { return r == '\r' || r == '\n' }

// run returns the end of the longest run of characters in class from start.
func run(s string, start int, class func(rune) bool) int {
	for start < len(s) {
		r, n := utf8.DecodeRuneInString(s[start:])
		if !class(r) {
			break
		}
		start += n
	}
	return start
}

// runOrRest returns the run of characters in class at the start of s or, if there
// is none, the run of all others.
func runOrRest(s string, class func(rune) bool) int {
	if n := run(s, 0, class); n > 0 {
		return n
	}
	return run(s, 0, func(r rune) bool { return !class(r) })
}

// cutPunctuation is [\p{P}\$\+<=>\^~\|]+ and what lies between.
func cutPunctuation(s string) int {
	return runOrRest(s, func(r rune) bool {
		switch r {
		case '$', '+', '<', '=', '>', '^', '~', '|':
			return true
		}
		return unicode.IsPunct(r)
	})
}

// cutNumbers is \p{N}+ and what lies between.
func cutNumbers(s string) int { return runOrRest(s, unicode.IsNumber) }

// cutEachNumber is \p{N} and what lies between.
func cutEachNumber(s string) int {
	if r, n := utf8.DecodeRuneInString(s); unicode.IsNumber(r) {
		return n
	}
	return runOrRest(s, unicode.IsNumber)
}

// cutTriples is [0-9][0-9][0-9] and what lies between.
func cutTriples(s string) int {
	digits := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			digits = 0
			continue
		}
		if digits++; digits == 3 {
			if i == 2 {
				return 3
			}
			return i - 2
		}
	}
	return len(s)
}
