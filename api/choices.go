package api

import "github.com/kevlard/kevlard"

// prompt is one prompt of a request.
type prompt struct {
	ids  []kevlard.Token
	text string // only with echo
}

// choice is one answer that a request wants, a session of its own. Of n choices of
// prompt i, choice j has the index i*n+j.
type choice struct {
	gen  GenRequest
	echo string // comes before the answer
}

// choose makes the choices of the prompts, which may generate limit tokens each.
//
// Choice j samples with seed+j, whatever the prompt: so each of n answers is the one
// that a request for a single answer gets with its seed. Greedy ones are all equal.
func (c *completion) choose(limit int) {
	for _, p := range c.prompts {
		for j := range c.n {
			g := c.gen
			g.Prompt, g.MaxTokens = p.ids, limit
			g.Sampling.Seed += uint64(j)
			c.choices = append(c.choices, choice{positioned(g), p.text})
		}
	}
}

// countChoices checks n, and how many answers it makes with the prompts.
func (c *completion) countChoices(n *int) *Error {
	c.n = 1
	if n != nil {
		c.n = *n
	}
	if c.n < 1 || c.n > maxN {
		return badField("n", "n is %d: want 1 to %d", c.n, maxN)
	}
	total := c.n * len(c.prompts)
	if total > maxChoices {
		return badField("n", "n is %d, for %d prompts: want at most %d answers in all", c.n, len(c.prompts), maxChoices)
	}
	if total > 1 && c.label != "" {
		return badField("session", "session names one answer, and the request is for %d: leave it out", total)
	}
	return nil
}
