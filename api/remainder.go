package api

import "github.com/kevlard/kevlard"

// remainder leaves out of a choice, which is made again from its first token, what the client
// has.
type remainder struct {
	from position
	at   position // what has passed, but for its phase
}

// add takes a token with the text and the logprobs that it releases, and appends to p
// what is new of it.
func (c *remainder) add(p *piece, t kevlard.Token, text string, logprobs []entry) error {
	c.at.tokens++
	if c.at.tokens > c.from.tokens && c.from.phase < told {
		p.tokens = append(p.tokens, t)
		c.rest(p, text, logprobs)
		return nil
	}
	c.at.bytes += len(text)
	p.upto = c.at
	if c.from.phase == begun && c.at.tokens == c.from.tokens && c.at.bytes != c.from.bytes {
		return errMismatch()
	}
	return nil
}

// rest appends text without a token of its own, but for the bytes that the client has.
func (c *remainder) rest(p *piece, text string, logprobs []entry) {
	had := min(max(c.from.bytes-c.at.bytes, 0), len(text))
	c.at.bytes += len(text)
	p.upto = c.at
	if c.from.phase < told {
		p.text += text[had:]
		p.logprobs = append(p.logprobs, logprobs...)
	}
}

// reached fails if the session has ended before the position.
func (c *remainder) reached() error {
	if c.at.tokens < c.from.tokens || c.from.phase >= told && c.at.bytes != c.from.bytes {
		return errMismatch()
	}
	return nil
}
