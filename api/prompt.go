package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// completionBody is the body of POST /v1/completions.
type completionBody struct {
	fields
	Prompt json.RawMessage `json:"prompt"`
	Echo   bool            `json:"echo"`

	// Known, and refused where they would change the answer.
	BestOf   *int            `json:"best_of"`
	Logprobs json.RawMessage `json:"logprobs"`
	Suffix   *string         `json:"suffix"`
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
	if err := c.prompt(b.Prompt); err != nil {
		return nil, err
	}
	return c, c.lengths(&b.fields, "prompt", defaultMaxTokens)
}

// form implements requestBody.
func (b *completionBody) form(c *completion) form { return newCompletionForm(c) }

// refuse names the first field whose effect we do not have.
func (b *completionBody) refuse() *Error {
	switch {
	case b.BestOf != nil && *b.BestOf != 1:
		return unsupported("best_of", "best_of is %d: only 1 is supported", *b.BestOf)
	case !isOneOf(b.Logprobs, "false"):
		return unsupported("logprobs", "logprobs are not supported yet: leave the field out")
	case b.Suffix != nil && *b.Suffix != "":
		return unsupported("suffix", "suffix is not supported: leave the field out")
	}
	return nil
}

// prompt turns the prompt into token ids.
func (c *completion) prompt(raw json.RawMessage) *Error {
	text, ids, err := parsePrompt(raw)
	if err != nil {
		return err
	}
	if ids == nil {
		encoded, encErr := c.model.Tokenizer.Encode(text)
		if encErr != nil {
			return badField("prompt", "the prompt cannot be tokenized: %v", encErr)
		}
		ids = encoded
	} else if c.echo {
		text = decodeAll(c.model.Tokenizer, ids)
	}
	for _, t := range ids {
		if t < 0 || int(t) >= c.model.Vocab {
			return badField("prompt", "token id %d is not in the vocabulary of %s: want 0 to %d", t, c.model.Name, c.model.Vocab-1)
		}
	}
	if len(ids) == 0 {
		return badField("prompt", "the prompt is empty")
	}
	c.gen.Prompt = ids
	if c.echo {
		c.echoText = text
	}
	return nil
}

// parsePrompt accepts a string, token ids, or an array of one of these.
func parsePrompt(raw json.RawMessage) (text string, ids []kevlard.Token, _ *Error) {
	if isNull(raw) {
		return "", nil, badField("prompt", "prompt is missing")
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	// encoding/json takes null for 0 inside an array of numbers.
	if !bytes.Contains(raw, []byte("null")) && json.Unmarshal(raw, &ids) == nil {
		if len(ids) == 0 {
			return "", nil, badField("prompt", "the prompt is empty")
		}
		return "", ids, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return "", nil, badField("prompt", "prompt must be a string, an array of one string, or an array of token ids")
	}
	nested := func(m json.RawMessage) bool { return len(m) > 0 && (m[0] == '"' || m[0] == '[') }
	if !slices.ContainsFunc(list, func(m json.RawMessage) bool { return !nested(m) }) {
		if len(list) > 1 {
			return "", nil, badField("prompt", "prompt has %d entries: only one prompt a request is supported yet", len(list))
		}
		if json.Unmarshal(list[0], &text) == nil {
			return text, nil, nil
		}
		if !bytes.Contains(list[0], []byte("null")) && json.Unmarshal(list[0], &ids) == nil && len(ids) > 0 {
			return "", ids, nil
		}
	}
	return "", nil, badField("prompt", "prompt must be a string, an array of one string, or an array of token ids")
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
