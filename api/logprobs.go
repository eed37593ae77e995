package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
)

// entry is one generated token with its log probabilities, which are the model's
// own: see kevlard.Logprobs.
type entry struct {
	token  kevlard.Token
	offset int // where its text begins in the answer, in characters
	kevlard.Logprobs

	begin int // the same in bytes
}

// entries holds back those of tokens whose text is held back, so that they go out
// with it, or are dropped with it when a stop string cuts it off. An entry goes with
// the first byte of its token's text. A token without text of its own (a part of a
// character, a control token) belongs to the text that follows.
type entries struct {
	waiting              []entry
	bytes, chars, passed int // of text: decoded, the same in characters, and gone out
}

// add appends a token that made the decoder yield text.
func (e *entries) add(t kevlard.Token, l kevlard.Logprobs, text string) {
	e.waiting = append(e.waiting, entry{token: t, offset: e.chars, Logprobs: l, begin: e.bytes})
	e.bytes += len(text)
	e.chars += utf8.RuneCountInString(text)
}

// release returns the entries that go with the next n bytes of text.
func (e *entries) release(n int) []entry {
	e.passed += n
	k := 0
	for k < len(e.waiting) && e.waiting[k].begin < e.passed {
		k++
	}
	out := e.waiting[:k:k]
	e.waiting = e.waiting[k:]
	return out
}

// flush returns what is left: the answer is over, and nothing of it was cut off.
func (e *entries) flush() []entry {
	out := e.waiting
	e.waiting = nil
	return out
}

// spelling is a token as text. Bytes that are no UTF-8 are written as \xe2, and a
// token that has none, such as one that ends a turn, by its name.
func spelling(t Tokenizer, token kevlard.Token) (text string, bytes []byte, valid bool) {
	b := t.Piece(token)
	if len(b) == 0 {
		return t.TokenName(token), nil, true
	}
	if utf8.Valid(b) {
		return string(b), b, true
	}
	var out strings.Builder
	for rest := b; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&out, `\x%02x`, rest[0])
		} else {
			out.Write(rest[:n])
		}
		rest = rest[n:]
	}
	return out.String(), b, false
}

// chatLogprobs is what a choice of a chat says of its tokens.
type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
	Refusal *struct{}     `json:"refusal"` // always null
}

type chatLogprob struct {
	tokenLogprob
	Top []tokenLogprob `json:"top_logprobs"`
}

type tokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // null for a token that adds no text
}

func newTokenLogprob(t Tokenizer, token kevlard.Token, logprob float32) tokenLogprob {
	text, raw, _ := spelling(t, token)
	out := tokenLogprob{Token: text, Logprob: logprob}
	for _, b := range raw {
		out.Bytes = append(out.Bytes, int(b))
	}
	return out
}

func newChatLogprobs(t Tokenizer, list []entry) *chatLogprobs {
	out := &chatLogprobs{Content: make([]chatLogprob, len(list))}
	for i, e := range list {
		out.Content[i] = chatLogprob{newTokenLogprob(t, e.token, e.Chosen), make([]tokenLogprob, len(e.Top))}
		for j, alt := range e.Top {
			out.Content[i].Top[j] = newTokenLogprob(t, alt.Token, alt.Logprob)
		}
	}
	return out
}

// legacyLogprobs is what a choice of a completion says of its tokens, in lists of
// equal length.
type legacyLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"` // the chosen token is always among them
	TextOffset    []int                `json:"text_offset"`  // in characters, from the begin of the choice's text
}

func newLegacyLogprobs(t Tokenizer, list []entry) *legacyLogprobs {
	n := len(list)
	out := &legacyLogprobs{make([]string, n), make([]float32, n), make([]map[string]float32, n), make([]int, n)}
	name := func(token kevlard.Token) string {
		text, _, valid := spelling(t, token)
		if !valid {
			return "bytes:" + text
		}
		return text
	}
	for i, e := range list {
		out.Tokens[i], out.TokenLogprobs[i], out.TextOffset[i] = name(e.token), e.Chosen, e.offset
		top := map[string]float32{}
		// From the least likely on: of tokens with equal text the likeliest stays.
		for j := len(e.Top) - 1; j >= 0; j-- {
			top[name(e.Top[j].Token)] = e.Top[j].Logprob
		}
		if v, ok := top[out.Tokens[i]]; !ok || v < e.Chosen {
			top[out.Tokens[i]] = e.Chosen
		}
		out.TopLogprobs[i] = top
	}
	return out
}

// maxLegacyLogprobs is the most alternatives of a completion's token, as OpenAI
// has it.
const maxLegacyLogprobs = 5

// parseLegacyLogprobs reads the logprobs of a completion: a number of alternatives.
func (c *completion) parseLegacyLogprobs(raw json.RawMessage) *Error {
	if isOneOf(raw, "false") {
		return nil
	}
	var n int
	if json.Unmarshal(raw, &n) != nil || n < 0 || n > maxLegacyLogprobs {
		return badField("logprobs", "logprobs must be a whole number from 0 to %d, the likeliest tokens to list besides the chosen one", maxLegacyLogprobs)
	}
	if c.echo {
		return badField("logprobs", "logprobs with echo: the prompt's logprobs are not computed: leave one of the two fields out")
	}
	c.askLogprobs(n)
	return nil
}

// parseChatLogprobs reads the fields of a chat.
func (c *completion) parseChatLogprobs(logprobs *bool, top *int) *Error {
	want := logprobs != nil && *logprobs
	n := 0
	if top != nil {
		n = *top
	}
	if n < 0 || n > kevlard.MaxTopLogprobs {
		return badField("top_logprobs", "top_logprobs is %d: want 0 to %d", n, kevlard.MaxTopLogprobs)
	}
	if n > 0 && !want {
		return badField("top_logprobs", "top_logprobs is %d, but logprobs is not true: set it, or leave both out", n)
	}
	if want {
		c.askLogprobs(n)
	}
	return nil
}

// askLogprobs asks for the log probability of each token and of the top likeliest.
func (c *completion) askLogprobs(top int) {
	c.logprobs = true
	c.gen.Sampling.Logprobs, c.gen.Sampling.TopLogprobs = true, top
}
