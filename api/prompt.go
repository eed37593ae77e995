package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kevlard/kevlard"
)

// completionBody is the body of POST /v1/completions.
type completionBody struct {
	fields
	Prompt   json.RawMessage `json:"prompt"`
	Echo     bool            `json:"echo"`
	Logprobs json.RawMessage `json:"logprobs"`

	// Known, and refused where they would change the answer.
	BestOf *int    `json:"best_of"`
	Suffix *string `json:"suffix"`
}

// defaultMaxTokens is OpenAI's default for completions.
const defaultMaxTokens = 16

// check implements requestBody.
func (b *completionBody) check(models []Model) (*completion, *Error) {
	if err := b.refuse(); err != nil {
		return nil, err
	}
	c, err := b.fields.check(models)
	if err != nil {
		return nil, err
	}
	c.echo = b.Echo
	if err := c.parseLegacyLogprobs(b.Logprobs); err != nil {
		return nil, err
	}
	if err := c.readPrompts(b.Prompt); err != nil {
		return nil, err
	}
	return c, c.lengths(&b.fields, "prompt", defaultMaxTokens)
}

// form implements requestBody.
func (b *completionBody) form(c *completion) form { return newCompletionForm(c) }

// refuse names the first field whose effect we do not have.
func (b *completionBody) refuse() *Error {
	n := 1
	if b.N != nil {
		n = *b.N
	}
	switch {
	case b.BestOf != nil && *b.BestOf != n:
		return unsupported("best_of", "best_of is %d: only n, which is %d, is supported", *b.BestOf, n)
	case b.Suffix != nil && *b.Suffix != "":
		return unsupported("suffix", "suffix is not supported: leave the field out")
	}
	return nil
}

// readPrompts turns the prompts into token ids.
func (c *completion) readPrompts(raw json.RawMessage) *Error {
	list, err := splitPrompts(raw)
	if err != nil {
		return err
	}
	for i, one := range list {
		p, err := c.readPrompt(numbered("prompt", i, len(list)), one)
		if err != nil {
			return err
		}
		c.prompts = append(c.prompts, p)
	}
	return nil
}

// numbered names one of n prompts in an error; the only one has no number.
func numbered(field string, i, n int) string {
	if n == 1 {
		return field
	}
	return fmt.Sprintf("%s[%d]", field, i)
}

// wrongPrompt is the error of a prompt of another shape.
func wrongPrompt() *Error {
	return badField("prompt", "prompt must be a string, an array of token ids, or an array of up to %d of either", maxChoices)
}

// splitPrompts accepts a string, token ids, or an array of these, and returns the
// JSON of each prompt.
func splitPrompts(raw json.RawMessage) ([]json.RawMessage, *Error) {
	if isNull(raw) {
		return nil, badField("prompt", "prompt is missing")
	}
	var list []json.RawMessage
	if raw[0] == '"' {
		return []json.RawMessage{raw}, nil
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil, wrongPrompt()
	}
	if len(list) == 0 || list[0][0] != '"' && list[0][0] != '[' {
		return []json.RawMessage{raw}, nil // token ids
	}
	if len(list) > maxChoices {
		return nil, badField("prompt", "prompt has %d entries: want at most %d", len(list), maxChoices)
	}
	return list, nil
}

// readPrompt reads a string or token ids.
func (c *completion) readPrompt(field string, raw json.RawMessage) (prompt, *Error) {
	var p prompt
	if raw[0] == '"' {
		if json.Unmarshal(raw, &p.text) != nil {
			return p, wrongPrompt()
		}
		var err error
		if p.ids, err = c.model.Tokenizer.Encode(p.text); err != nil {
			return p, badField(field, "the prompt cannot be tokenized: %v", err)
		}
	} else {
		// encoding/json takes null for 0 inside an array of numbers.
		if bytes.Contains(raw, []byte("null")) || json.Unmarshal(raw, &p.ids) != nil {
			return p, wrongPrompt()
		}
		if c.echo {
			p.text = decodeAll(c.model.Tokenizer, p.ids)
		}
	}
	for _, t := range p.ids {
		if t < 0 || int(t) >= c.model.Vocab {
			return p, badField(field, "token id %d is not in the vocabulary of %s: want 0 to %d", t, c.model.Name, c.model.Vocab-1)
		}
	}
	if len(p.ids) == 0 {
		return p, badField(field, "the prompt is empty")
	}
	if !c.echo {
		p.text = ""
	}
	return p, nil
}

func decodeAll(t Tokenizer, ids []kevlard.Token) string {
	var b strings.Builder
	d := t.NewDecoder()
	for _, id := range ids {
		b.WriteString(d.Push(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}
