package sdk

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// answer is what a client got, streamed or not.
type answer struct {
	id, model string
	created   int64
	choices   []choice
	usage     *usage // nil: none was sent
	sizes     []int  // lengths of the first choice's text after each chunk of it
}

type choice struct {
	text     string
	finish   string
	logprobs []string // the JSON of each token's entry
	tokens   []string // the tokens of these entries
	tops     []int    // the numbers of their alternatives
}

type usage struct{ prompt, completion, total int64 }

// at returns the choice of that index, which may be new.
func (a *answer) at(index int64) *choice {
	for int64(len(a.choices)) <= index {
		a.choices = append(a.choices, choice{})
	}
	return &a.choices[index]
}

// begin takes the fields that all chunks of one answer share.
func (a *answer) begin(id, model string, created int64) error {
	if a.id == "" {
		a.id, a.model, a.created = id, model, created
	}
	if id == "" || id != a.id || model != a.model || created != a.created || created == 0 {
		return fmt.Errorf("a chunk has id %q, model %q, created %d; the first had %q, %q, %d", id, model, created, a.id, a.model, a.created)
	}
	return nil
}

// grow adds the text of a chunk.
func (a *answer) grow(index int64, text string) error {
	c := a.at(index)
	if c.finish != "" {
		return fmt.Errorf("choice %d gets more text after its finish_reason: %q", index, text)
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("choice %d: %q is not UTF-8", index, text)
	}
	c.text += text
	if index == 0 && text != "" {
		a.sizes = append(a.sizes, len(c.text))
	}
	return nil
}

// check says what is wrong with an answer to the row, given the model's name.
func (a *answer) check(r row, model string, streamed bool) error {
	if a.model != model {
		return fmt.Errorf("model is %q, want %q", a.model, model)
	}
	if len(a.choices) != max(1, r.Choices) {
		return fmt.Errorf("%d choices, want %d", len(a.choices), max(1, r.Choices))
	}
	for i, c := range a.choices {
		if c.finish != r.Finish {
			return fmt.Errorf("choice %d: finish_reason %q, want %q", i, c.finish, r.Finish)
		}
		if i > 0 && c.text == a.choices[0].text {
			return fmt.Errorf("choice %d is the same as the first: %q", i, c.text)
		}
		if err := c.checkLogprobs(r); err != nil {
			return fmt.Errorf("choice %d: %w", i, err)
		}
	}
	switch u := a.usage; {
	case streamed && !r.Usage && u != nil:
		return fmt.Errorf("usage was sent and not asked for: %+v", *u)
	case streamed && !r.Usage:
		return nil
	case u == nil:
		return fmt.Errorf("no usage")
	case u.prompt < 1 || u.completion < 1 || u.total != u.prompt+u.completion:
		return fmt.Errorf("usage %+v does not add up", *u)
	case r.Tokens != 0 && u.completion != int64(r.Tokens):
		return fmt.Errorf("usage counts %d tokens of the answer, want %d", u.completion, r.Tokens)
	}
	return nil
}

func (c choice) checkLogprobs(r row) error {
	if r.Needs != "logprobs" {
		if len(c.logprobs) != 0 {
			return fmt.Errorf("logprobs were sent and not asked for: %s", c.logprobs[0])
		}
		return nil
	}
	if len(c.logprobs) != r.Tokens {
		return fmt.Errorf("logprobs of %d tokens, want %d", len(c.logprobs), r.Tokens)
	}
	for i, n := range c.tops {
		// Completions add the chosen token where it is none of the best.
		if n != r.Top && (r.Endpoint == "chat" || n != r.Top+1) {
			return fmt.Errorf("token %d has %d alternatives, want %d: %s", i, n, r.Top, c.logprobs[i])
		}
	}
	if text := strings.Join(c.tokens, ""); utf8.ValidString(text) && text != c.text {
		return fmt.Errorf("the tokens of the logprobs make %q, the text is %q", text, c.text)
	}
	return nil
}

// same says where an answer differs from the unbroken one. Its id is its own.
func (a *answer) same(want *answer) error {
	if a.id == want.id {
		return fmt.Errorf("two answers have the id %s", a.id)
	}
	if len(a.choices) != len(want.choices) {
		return fmt.Errorf("%d choices, unbroken %d", len(a.choices), len(want.choices))
	}
	for i, c := range a.choices {
		w := want.choices[i]
		switch {
		case c.text != w.text:
			return fmt.Errorf("choice %d is %q, unbroken %q", i, c.text, w.text)
		case c.finish != w.finish:
			return fmt.Errorf("choice %d: finish_reason %q, unbroken %q", i, c.finish, w.finish)
		case !slices.Equal(c.logprobs, w.logprobs):
			return fmt.Errorf("choice %d: logprobs %s, unbroken %s", i, c.logprobs, w.logprobs)
		}
	}
	if a.usage != nil && want.usage != nil && *a.usage != *want.usage {
		return fmt.Errorf("usage %+v, unbroken %+v", *a.usage, *want.usage)
	}
	return nil
}
