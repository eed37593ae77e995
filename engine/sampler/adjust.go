package sampler

import (
	"math"
	"slices"

	"github.com/kevlard/kevlard"
)

// Window is how many of a session's latest tokens the penalties look at. It bounds
// what travels to an engine with every sampled token; older ones are forgotten.
const Window = 8192

// Recent returns the part of a history that sampling with s depends on: its last
// Window tokens, or none.
func Recent(history []kevlard.Token, s kevlard.Sampling) []kevlard.Token {
	if !s.Penalizes() {
		return nil
	}
	return history[max(0, len(history)-Window):]
}

// tally counts a token in the history.
type tally struct {
	all       int // anywhere
	generated int // from Sampling.Prompt on
}

// adjust returns the logits with bias, penalties and bans applied, in this order:
// nil if there is nothing to apply, else a copy in working memory. The last token
// of history stands at position pos-1.
func (m *Sampler) adjust(logits []float32, history []kevlard.Token, s kevlard.Sampling, pos int) []float32 {
	history = Recent(history, s)
	banned := len(s.Ban) > 0 && pos < s.BanUntil
	if len(history) == 0 && len(s.Bias) == 0 && !banned {
		return nil
	}
	m.adjusted = append(m.adjusted[:0], logits...)
	out := m.adjusted
	for _, b := range s.Bias {
		if int(b.Token) < len(out) {
			out[b.Token] = moved(out[b.Token], out[b.Token]+b.Bias)
		}
	}
	m.penalize(out, history, s, pos)
	if banned {
		for _, t := range s.Ban {
			if int(t) < len(out) {
				out[t] = float32(math.Inf(-1))
			}
		}
	}
	return out
}

// penalize changes the logits of tokens in history. No token's result depends on
// another's, so their order does not matter; every product is rounded before it is
// subtracted.
func (m *Sampler) penalize(out []float32, history []kevlard.Token, s kevlard.Sampling, pos int) {
	if len(history) == 0 {
		return
	}
	if len(m.tallies) < len(out) {
		m.tallies = make([]tally, len(out))
	}
	m.seen = slices.Grow(m.seen[:0], len(history))
	first := pos - len(history) // the position of history[0]
	for i, t := range history {
		if t < 0 || int(t) >= len(out) {
			continue
		}
		c := &m.tallies[t]
		if c.all++; c.all == 1 {
			m.seen = append(m.seen, t)
		}
		if first+i >= s.Prompt {
			c.generated++
		}
	}
	for _, t := range m.seen {
		c := m.tallies[t]
		m.tallies[t] = tally{}
		v := out[t]
		if s.Repetition != 0 {
			if v > 0 {
				v /= s.Repetition
			} else {
				v *= s.Repetition
			}
		}
		if c.generated > 0 {
			v -= float32(s.Frequency * float32(c.generated))
			v -= s.Presence
		}
		out[t] = moved(out[t], v)
	}
}

// moved is where a logit ends: minus infinity excludes a token and stays, and
// nothing else becomes infinite.
func moved(from, to float32) float32 {
	if from < -math.MaxFloat32 {
		return from
	}
	return max(-math.MaxFloat32, min(math.MaxFloat32, to))
}
