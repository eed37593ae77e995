package kevlard

import (
	"fmt"
	"math"
)

// MaxTopLogprobs is the most alternatives that a request may ask for; Sampling.Check
// refuses more. It bounds what travels to the owner with every token.
const MaxTopLogprobs = 20

// Sampled is a token that a last stage chose.
type Sampled struct {
	Token    Token     `cbor:"1,keyasint"`
	Logprobs *Logprobs `cbor:"2,keyasint,omitempty"` // where Sampling.Logprobs asks for it, else nil
}

// Logprobs says how likely the model found a token that was chosen, and what else.
// The values are natural logarithms of the model's own distribution: log-softmax of
// the logits as they left the model, before bias, penalties, bans, temperature and
// cuts. So they do not depend on how the choice was made, and a token may be chosen
// that is not among the best. All are finite and at most 0.
type Logprobs struct {
	Chosen float32        `cbor:"1,keyasint"`
	Top    []TokenLogprob `cbor:"2,keyasint,omitempty"` // the likeliest tokens, best first
}

// TokenLogprob is a token and its log probability.
type TokenLogprob struct {
	Token   Token   `cbor:"1,keyasint"`
	Logprob float32 `cbor:"2,keyasint"`
}

// Check refuses what no stage computes.
func (l *Logprobs) Check() error {
	if len(l.Top) > MaxTopLogprobs {
		return fmt.Errorf("top_logprobs has %d entries, want at most %d", len(l.Top), MaxTopLogprobs)
	}
	ok := func(v float32) bool { return v <= 0 && v >= -math.MaxFloat32 } // NaN is not
	if !ok(l.Chosen) {
		return fmt.Errorf("logprob is %v, want a number of at most 0", l.Chosen)
	}
	for _, t := range l.Top {
		if t.Token < 0 || !ok(t.Logprob) {
			return fmt.Errorf("top_logprobs has %v for token %d, want a number of at most 0 for a token of 0 or more", t.Logprob, t.Token)
		}
	}
	return nil
}

// Tokens returns the tokens of s.
func Tokens(s []Sampled) []Token {
	out := make([]Token, len(s))
	for i, x := range s {
		out[i] = x.Token
	}
	return out
}
