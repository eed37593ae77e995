package kevlard

import (
	"fmt"
	"math"
)

// Sampling says how the next token is chosen from the logits. The zero value is
// greedy. Sampling is a pure function of (logits, history, Sampling, position), so
// any stage that takes over chooses the same token; positions in it are absolute,
// counted from the session's first token, and do not move when it is replayed.
type Sampling struct {
	Temperature float32 `cbor:"1,keyasint" json:"temperature"`     // 0 is greedy
	TopK        int     `cbor:"2,keyasint,omitempty" json:"top_k"` // 0 keeps all
	TopP        float32 `cbor:"3,keyasint,omitempty" json:"top_p"` // 0 or 1 keeps all
	MinP        float32 `cbor:"4,keyasint,omitempty" json:"min_p"` // 0 keeps all
	Seed        uint64  `cbor:"5,keyasint" json:"seed"`

	// Repetition divides the positive logits of tokens seen before and multiplies
	// their negative ones; 0 or 1 does nothing.
	Repetition float32 `cbor:"6,keyasint,omitempty" json:"repetition_penalty,omitempty"`
	// Presence is subtracted from the logit of each token generated before, and
	// Frequency once for each time; 0 does nothing.
	Presence  float32 `cbor:"7,keyasint,omitempty" json:"presence_penalty,omitempty"`
	Frequency float32 `cbor:"8,keyasint,omitempty" json:"frequency_penalty,omitempty"`
	// Prompt is the position of the first generated token: what stands before it
	// counts for Repetition but not for Presence and Frequency.
	Prompt Pos `cbor:"9,keyasint,omitempty" json:"prompt,omitempty"`
	// Bias is added to the logits, before the penalties. Entries for one token add up.
	Bias []TokenBias `cbor:"10,keyasint,omitempty" json:"logit_bias,omitempty"`
	// Ban lists tokens that are not chosen for positions before BanUntil: with a
	// model's end tokens and the prompt's length plus min_tokens, an answer can't
	// end too early.
	Ban      []Token `cbor:"11,keyasint,omitempty" json:"ban,omitempty"`
	BanUntil Pos     `cbor:"12,keyasint,omitempty" json:"ban_until,omitempty"`

	// Logprobs asks for the log probability of each chosen token, and TopLogprobs for
	// those of the likeliest ones. They change nothing about the choice.
	Logprobs    bool `cbor:"13,keyasint,omitempty" json:"logprobs,omitempty"`
	TopLogprobs int  `cbor:"14,keyasint,omitempty" json:"top_logprobs,omitempty"` // 0 to MaxTopLogprobs; 0 without Logprobs
}

// TokenBias is what is added to the logit of one token.
type TokenBias struct {
	Token Token   `cbor:"1,keyasint" json:"token"`
	Bias  float32 `cbor:"2,keyasint" json:"bias"` // -100 to 100
}

// Bounds of Sampling, which travels with every prepare and every sampled row. A
// longer list is refused by Check.
const (
	MaxBias = 1024
	MaxBan  = 64
)

// Check refuses parameters outside their range, naming the field as the API does
// and the allowed values. Whether tokens are in the vocabulary is checked where
// that is known.
func (s Sampling) Check() error {
	within := func(v, lo, hi float32) bool { return v >= lo && v <= hi } // NaN is not
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("sampling: %s is %v: want %s", name, v, want)
	}
	switch {
	case !within(s.Temperature, 0, 100):
		return bad("temperature", s.Temperature, "0 (greedy) to 100")
	case s.TopK < 0 || s.TopK > math.MaxInt32:
		return bad("top_k", s.TopK, "0 (all) or more")
	case !within(s.TopP, 0, 1):
		return bad("top_p", s.TopP, "0 to 1")
	case !within(s.MinP, 0, 1):
		return bad("min_p", s.MinP, "0 to 1")
	case s.Repetition != 0 && !within(s.Repetition, 0.01, 100):
		return bad("repetition_penalty", s.Repetition, "0.01 to 100, or 0 for none")
	case !within(s.Presence, -2, 2):
		return bad("presence_penalty", s.Presence, "-2 to 2")
	case !within(s.Frequency, -2, 2):
		return bad("frequency_penalty", s.Frequency, "-2 to 2")
	case s.Prompt < 0 || s.Prompt > math.MaxInt32:
		return bad("prompt", s.Prompt, "a position, 0 or more")
	case len(s.Bias) > MaxBias:
		return bad("logit_bias", fmt.Sprintf("%d entries long", len(s.Bias)), fmt.Sprintf("at most %d", MaxBias))
	case len(s.Ban) > MaxBan:
		return bad("ban", fmt.Sprintf("%d tokens long", len(s.Ban)), fmt.Sprintf("at most %d", MaxBan))
	case s.BanUntil < 0 || s.BanUntil > math.MaxInt32:
		return bad("ban_until", s.BanUntil, "a position, 0 or more")
	case s.TopLogprobs < 0 || s.TopLogprobs > MaxTopLogprobs:
		return bad("top_logprobs", s.TopLogprobs, fmt.Sprintf("0 to %d", MaxTopLogprobs))
	case s.TopLogprobs > 0 && !s.Logprobs:
		return bad("top_logprobs", s.TopLogprobs, "0, as logprobs is false")
	}
	for _, b := range s.Bias {
		if b.Token < 0 {
			return bad("logit_bias", fmt.Sprintf("for token %d", b.Token), "tokens of 0 or more")
		}
		if !within(b.Bias, -100, 100) {
			return bad("logit_bias", fmt.Sprintf("%v for token %d", b.Bias, b.Token), "-100 to 100")
		}
	}
	for _, t := range s.Ban {
		if t < 0 {
			return bad("ban", fmt.Sprintf("for token %d", t), "tokens of 0 or more")
		}
	}
	return nil
}

// Penalizes reports whether the choice depends on the session's history.
func (s Sampling) Penalizes() bool {
	return s.Repetition != 0 && s.Repetition != 1 || s.Presence != 0 || s.Frequency != 0
}
