// Package sampler chooses a token from logits. The choice is a pure function of
// (logits, history, kevlard.Sampling, position): randomness is one number from a
// counter-based generator keyed by the seed and the position, so any node that
// has the same logits and tokens chooses the same token, in whatever order
// positions are sampled, and a failover changes nothing.
//
// The order is: bias, then the repetition penalty, then frequency and presence,
// then bans; then temperature, then top-k, then top-p (of the mass that top-k
// left), then min-p (relative to the best token), then one draw. Equal logits
// rank by token id. Sums run in a fixed order and every product is rounded before
// it is added, so that no compiler may fuse them.
package sampler

import (
	"fmt"
	"math"
	"slices"

	"github.com/kevlard/kevlard"
)

// candidate is a token still in the running; weight is exp((logit-max)/T), once
// computed.
type candidate struct {
	token  kevlard.Token
	logit  float32
	weight float64
}

// before orders candidates from best to worst; no two are equal.
func before(a, b candidate) bool {
	return a.logit > b.logit || a.logit == b.logit && a.token < b.token
}

// Sampler keeps the working memory between calls. The zero value is ready; one
// goroutine may use it at a time.
type Sampler struct {
	cands, kept []candidate
	adjusted    []float32
	tallies     []tally // all zero between calls
	seen        []kevlard.Token
}

// Sample is Sampler.Sample with fresh working memory.
func Sample(logits []float32, history []kevlard.Token, s kevlard.Sampling, pos int) (kevlard.Token, error) {
	return new(Sampler).Sample(logits, history, s, pos)
}

// Sample returns the token for position pos (the position that the new token
// will have). history is the session's tokens before it; Recent of them is enough.
// Minus infinity excludes a token. It is an error when a logit is NaN or plus
// infinity, when none is finite or all that are are banned, or when s is out of
// range.
func (m *Sampler) Sample(logits []float32, history []kevlard.Token, s kevlard.Sampling, pos int) (kevlard.Token, error) {
	if err := s.Check(); err != nil {
		return 0, err
	}
	best, err := argmax(logits)
	if err != nil {
		return 0, err
	}
	if adjusted := m.adjust(logits, history, s, pos); adjusted != nil {
		logits = adjusted
		if best, err = argmax(logits); err != nil {
			return 0, fmt.Errorf("with bans: %w", err)
		}
	}
	if s.Temperature == 0 || s.TopK == 1 {
		return kevlard.Token(best), nil
	}
	cands := m.finite(logits)
	ordered := s.TopK > 0 && s.TopK < len(cands)
	if ordered { // before the exponentials, which are what costs
		cands = m.best(cands, s.TopK)
	}
	weigh(cands, logits[best], float64(s.Temperature))
	if s.TopP > 0 && s.TopP < 1 {
		cands = m.nucleus(cands, ordered, float64(s.TopP)*sum(cands))
	}
	if s.MinP > 0 {
		// The best candidate's weight is exactly 1.
		kept := cands[:0]
		for _, c := range cands {
			if c.weight >= float64(s.MinP) {
				kept = append(kept, c)
			}
		}
		cands = kept
	}
	return draw(cands, Uniform(s.Seed, uint64(pos))), nil
}

// argmax returns the index of the greatest logit, the lowest on a tie.
func argmax(logits []float32) (int, error) {
	best := -1
	for i, v := range logits {
		if v != v || v > math.MaxFloat32 {
			return 0, fmt.Errorf("logit %d of %d is %v", i, len(logits), v)
		}
		if v >= -math.MaxFloat32 && (best < 0 || v > logits[best]) {
			best = i
		}
	}
	if best < 0 {
		return 0, fmt.Errorf("none of %d logits is finite", len(logits))
	}
	return best, nil
}

// finite lists the tokens whose logit is finite, in order of their ids.
func (m *Sampler) finite(logits []float32) []candidate {
	m.cands = slices.Grow(m.cands[:0], len(logits))
	for i, v := range logits {
		if v >= -math.MaxFloat32 {
			m.cands = append(m.cands, candidate{token: kevlard.Token(i), logit: v})
		}
	}
	return m.cands
}

// weigh computes the weights.
func weigh(cands []candidate, best float32, temperature float64) {
	for i := range cands {
		cands[i].weight = math.Exp((float64(cands[i].logit) - float64(best)) / temperature)
	}
}

// best returns the k best of more than k candidates, in order. The k so far are a
// heap with the worst at its root, which most of the others do not beat.
func (m *Sampler) best(cands []candidate, k int) []candidate {
	kept := append(m.kept[:0], cands[:k]...)
	worse := func(a, b candidate) bool { return before(b, a) }
	heapify(kept, worse)
	for _, c := range cands[k:] {
		if before(c, kept[0]) {
			kept[0] = c
			sift(kept, 0, worse)
		}
	}
	slices.SortFunc(kept, func(a, b candidate) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	m.kept = kept
	return kept
}

// nucleus returns the best candidates in order, up to the one with which their
// weights reach limit. Unordered ones are taken from a heap, since few are needed.
func (m *Sampler) nucleus(cands []candidate, ordered bool, limit float64) []candidate {
	mass := 0.0
	if ordered {
		for i, c := range cands {
			if mass += c.weight; mass >= limit {
				return cands[:i+1]
			}
		}
		return cands
	}
	heapify(cands, before)
	kept := m.kept[:0]
	for len(cands) > 0 && mass < limit {
		kept, mass = append(kept, cands[0]), mass+cands[0].weight
		cands[0] = cands[len(cands)-1]
		cands = cands[:len(cands)-1]
		sift(cands, 0, before)
	}
	m.kept = kept
	return kept
}

func sum(cands []candidate) float64 {
	total := 0.0
	for _, c := range cands {
		total += c.weight
	}
	return total
}

// heapify orders h as a heap, with the first element at the root.
func heapify(h []candidate, first func(a, b candidate) bool) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sift(h, i, first)
	}
}

// sift restores the heap below i.
func sift(h []candidate, i int, first func(a, b candidate) bool) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && first(h[c+1], h[c]) {
			c++
		}
		if !first(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// draw picks by the uniform number u in [0,1).
func draw(cands []candidate, u float64) kevlard.Token {
	target, mass := u*sum(cands), 0.0
	for _, c := range cands {
		mass += c.weight
		if target < mass {
			return c.token
		}
	}
	return cands[len(cands)-1].token // u*sum was rounded up to the sum
}
