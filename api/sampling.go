package api

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/kevlard/kevlard"
)

// sampling checks the sampling fields. A seed that the client did not choose is
// chosen here, so that the session can be replayed.
func (b *fields) sampling(vocab int) (kevlard.Sampling, *Error) {
	s := kevlard.Sampling{Temperature: defaultTemperature, Seed: rand.Uint64()}
	if b.Seed != nil {
		s.Seed = uint64(*b.Seed)
	}
	if t := b.Temperature; t != nil {
		if *t < 0 || *t > 2 {
			return s, badField("temperature", "temperature is %v: want 0 to 2", *t)
		}
		s.Temperature = float32(*t)
	}
	if p := b.TopP; p != nil {
		if *p <= 0 || *p > 1 {
			return s, badField("top_p", "top_p is %v: want more than 0 and at most 1", *p)
		}
		s.TopP = float32(*p)
	}
	if p := b.MinP; p != nil {
		if *p < 0 || *p > 1 {
			return s, badField("min_p", "min_p is %v: want 0 to 1", *p)
		}
		s.MinP = float32(*p)
	}
	if k := b.TopK; k != nil {
		if *k < -1 {
			return s, badField("top_k", "top_k is %d: want 1 or more, or 0 or -1 to keep all", *k)
		}
		s.TopK = min(max(*k, 0), vocab)
	}
	var err *Error
	if s.Presence, err = penalty("presence_penalty", b.PresencePenalty, -2, 2); err != nil {
		return s, err
	}
	if s.Frequency, err = penalty("frequency_penalty", b.FrequencyPenalty, -2, 2); err != nil {
		return s, err
	}
	if s.Repetition, err = penalty("repetition_penalty", b.RepetitionPenalty, 0.01, 100); err != nil {
		return s, err
	}
	s.Bias, err = parseBias(b.LogitBias, vocab)
	return s, err
}

// penalty checks a penalty; one that is missing is 0, which does nothing.
func penalty(field string, v *float64, lo, hi float64) (float32, *Error) {
	if v == nil {
		return 0, nil
	}
	if *v < lo || *v > hi {
		return 0, badField(field, "%s is %v: want %v to %v", field, *v, lo, hi)
	}
	return float32(*v), nil
}

// parseBias reads {"TOKEN ID": -100 to 100}, in the order of ids.
func parseBias(raw json.RawMessage, vocab int) ([]kevlard.TokenBias, *Error) {
	if isNull(raw) {
		return nil, nil
	}
	const field = "logit_bias"
	var entries map[string]*float64
	if json.Unmarshal(raw, &entries) != nil {
		return nil, badField(field, `logit_bias must be an object of token ids and numbers, as in {"50256": -100}`)
	}
	if len(entries) > kevlard.MaxBias {
		return nil, badField(field, "logit_bias has %d entries: at most %d", len(entries), kevlard.MaxBias)
	}
	var out []kevlard.TokenBias
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		bias := entries[id]
		n, err := strconv.ParseInt(id, 10, 32)
		if err != nil || n < 0 || int(n) >= vocab {
			return nil, badField(field, "logit_bias has %.40q, which is no token id: want 0 to %d", id, vocab-1)
		}
		if bias == nil || *bias < -100 || *bias > 100 {
			return nil, badField(field, "logit_bias of token %d must be a number from -100 to 100", n)
		}
		out = append(out, kevlard.TokenBias{Token: kevlard.Token(n), Bias: float32(*bias)})
	}
	slices.SortFunc(out, func(a, b kevlard.TokenBias) int { return cmp.Compare(a.Token, b.Token) })
	return out, nil
}

// positioned says from where on the sampling parameters act, as the prompt is
// known: a failover recomputes the prompt, and the answer must not change.
func positioned(g GenRequest) GenRequest {
	s := &g.Sampling
	if s.Penalizes() {
		s.Prompt = len(g.Prompt)
	}
	if g.MinTokens > 0 && !g.IgnoreEOG && len(g.EOG) <= kevlard.MaxBan {
		// An end that is never drawn, rather than one that is drawn and passed over.
		s.Ban, s.BanUntil = g.EOG, len(g.Prompt)+g.MinTokens
	}
	return g
}
