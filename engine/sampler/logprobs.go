package sampler

import (
	"math"

	"github.com/kevlard/kevlard"
)

// Logprobs returns the log probabilities of the chosen token and of the top
// likeliest ones, best first: log-softmax of the logits as the model gave them. They
// are what Sample took, and Sample took them without an error. It lists fewer than
// top where fewer tokens are not excluded. Equal logits rank by token id.
//
// Sums run in the order of ids in float64, so that equal logits give equal bits.
func Logprobs(logits []float32, chosen kevlard.Token, top int) *kevlard.Logprobs {
	best := make([]candidate, 0, top+1)
	most := math.Inf(-1)
	for i, v := range logits {
		if math.IsInf(float64(v), -1) {
			continue
		}
		most = max(most, float64(v))
		c := candidate{token: kevlard.Token(i), logit: v}
		if n := len(best); n == top && (n == 0 || !before(c, best[n-1])) {
			continue
		}
		best = insert(best, c)
		best = best[:min(len(best), top)]
	}
	total := 0.0
	for _, v := range logits {
		total += math.Exp(float64(v) - most)
	}
	// The logarithm is small beside a large logit: it must be subtracted last.
	value := func(v float32) float32 {
		return float32(max(-math.MaxFloat32, min(0, float64(v)-most-math.Log(total))))
	}
	out := &kevlard.Logprobs{Chosen: value(logits[chosen])}
	for _, c := range best {
		out.Top = append(out.Top, kevlard.TokenLogprob{Token: c.token, Logprob: value(c.logit)})
	}
	return out
}

// insert puts c into its place in list, which is in order.
func insert(list []candidate, c candidate) []candidate {
	list = append(list, c)
	for i := len(list) - 1; i > 0 && before(list[i], list[i-1]); i-- {
		list[i], list[i-1] = list[i-1], list[i]
	}
	return list
}
