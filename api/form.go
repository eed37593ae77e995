package api

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/oklog/ulid/v2"
)

// form writes one answer down the way its endpoint does. All its events have one
// id and one time, whatever happens to the sessions meanwhile.
type form interface {
	// document is the whole answer: for each choice all of it, and how it ended.
	document(whole []piece, ends []ending, u usage) any
	// chunks are the events of one piece of choice k, perhaps none. The reason is nil
	// but for the last piece of the choice.
	chunks(k int, p piece, reason *string) []event
	// usage is the event after the last piece, for clients that want it.
	usage(u usage) any
}

// event is one event of a choice.
type event struct {
	body any
	// after says what the client has of the choice after it. Of an event without text
	// only the phase counts.
	after  phase
	noText bool
}

// usage counts tokens.
type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"` // found instead of computed
}

// usageOf counts each token once, however often failovers made it be computed, and
// each prompt once, however many answers it got. What was cached of a prompt was so for
// all its answers.
func (c *completion) usageOf(ends []ending) usage {
	var u usage
	for _, p := range c.prompts {
		u.PromptTokens += len(p.ids)
	}
	for k, end := range ends {
		u.CompletionTokens += end.tokens
		if k%c.n == 0 {
			least := end.cached
			for _, other := range ends[k : k+c.n] {
				least = min(least, other.cached)
			}
			u.PromptTokensDetails.CachedTokens += least
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// head is what all JSON of an answer begins with.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func newHead(c *completion, prefix, object string) head {
	if c.answer == "" {
		c.answer, c.created = ulid.Make().String(), time.Now().Unix()
	}
	return head{ID: prefix + c.answer, Object: object, Created: c.created, Model: c.model.Name}
}

// sentBegin says of which choices the begin was sent before.
func sentBegin(c *completion) []bool {
	out := make([]bool, len(c.choices))
	for k, at := range c.at.choices {
		out[k] = at.phase != fresh
	}
	return out
}

// reply is an answer, or an event of a streamed one.
type reply[Choice any] struct {
	head
	Choices []Choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"` // null in chunks before the one with usage
}

// raw is the JSON of the usage.
func (u usage) raw() json.RawMessage {
	body, err := json.Marshal(u)
	if err != nil {
		panic(fmt.Sprintf("api: %+v does not marshal: %v", u, err))
	}
	return body
}

// noUsage is the usage of chunks before the one that has it: clients that asked for
// it expect null, the others no field.
func noUsage(c *completion) json.RawMessage {
	if c.usage {
		return json.RawMessage("null")
	}
	return nil
}

// completionForm is the form of POST /v1/completions.
type completionForm struct {
	head
	c       *completion
	noUsage json.RawMessage
	begun   []bool // by choice: its echoed prompt was sent
}

type completionChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     *legacyLogprobs `json:"logprobs"` // null unless asked for
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []kevlard.Token `json:"token_ids,omitempty"` // with return_token_ids
}

func newCompletionForm(c *completion) *completionForm {
	return &completionForm{newHead(c, "cmpl-", "text_completion"), c, noUsage(c), sentBegin(c)}
}

func (f *completionForm) choice(k int, p piece, reason *string) completionChoice {
	out := completionChoice{Index: k, Text: p.text, FinishReason: reason}
	if !f.begun[k] {
		// An echoed prompt goes out once something follows it, so that an error before
		// the first token still has an HTTP status.
		f.begun[k] = true
		out.Text = f.c.choices[k].echo + out.Text
	}
	if f.c.tokenIDs {
		out.TokenIDs = p.tokens
	}
	if f.c.logprobs {
		out.Logprobs = newLegacyLogprobs(f.c.model.Tokenizer, p.logprobs)
	}
	return out
}

// document implements form.
func (f *completionForm) document(whole []piece, ends []ending, u usage) any {
	choices := make([]completionChoice, len(whole))
	for k, p := range whole {
		choices[k] = f.choice(k, p, &ends[k].reason)
	}
	return reply[completionChoice]{f.head, choices, u.raw()}
}

// chunks implements form.
func (f *completionForm) chunks(k int, p piece, reason *string) []event {
	choice := f.choice(k, p, reason)
	if choice.Text == "" && reason == nil && !f.c.tokenIDs {
		return nil
	}
	after := begun
	if reason != nil {
		after = ended
	}
	return []event{{body: reply[completionChoice]{f.head, []completionChoice{choice}, f.noUsage}, after: after}}
}

// usage implements form.
func (f *completionForm) usage(u usage) any {
	return reply[completionChoice]{f.head, []completionChoice{}, u.raw()}
}

// chatForm is the form of POST /v1/chat/completions.
type chatForm struct {
	head
	c       *completion
	noUsage json.RawMessage
	begun   []bool // by choice: the role was sent, which is done once
}

type chatChoice struct {
	Index        int             `json:"index"`
	Message      *chatAnswer     `json:"message,omitempty"` // of a whole answer
	Delta        *chatDelta      `json:"delta,omitempty"`   // of an event
	Logprobs     *chatLogprobs   `json:"logprobs"`          // null unless asked for
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []kevlard.Token `json:"token_ids,omitempty"` // with return_token_ids
}

type chatAnswer struct {
	Role    string    `json:"role"`
	Content string    `json:"content"`
	Refusal *struct{} `json:"refusal"` // always null
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

func newChatForm(c *completion) *chatForm {
	object := "chat.completion"
	if c.stream {
		object = "chat.completion.chunk"
	}
	return &chatForm{newHead(c, "chatcmpl-", object), c, noUsage(c), sentBegin(c)}
}

// choice is one with what the piece says of its tokens.
func (f *chatForm) choice(k int, p piece) chatChoice {
	out := chatChoice{Index: k}
	if f.c.tokenIDs {
		out.TokenIDs = p.tokens
	}
	if f.c.logprobs {
		out.Logprobs = newChatLogprobs(f.c.model.Tokenizer, p.logprobs)
	}
	return out
}

// document implements form.
func (f *chatForm) document(whole []piece, ends []ending, u usage) any {
	choices := make([]chatChoice, len(whole))
	for k, p := range whole {
		choices[k] = f.choice(k, p)
		choices[k].Message = &chatAnswer{Role: roleAssistant, Content: p.text}
		choices[k].FinishReason = &ends[k].reason
	}
	return reply[chatChoice]{f.head, choices, u.raw()}
}

// chunks implements form. The role comes alone, then text, then the reason alone.
func (f *chatForm) chunks(k int, p piece, reason *string) []event {
	var out []event
	add := func(c chatChoice, after phase, noText bool) {
		out = append(out, event{reply[chatChoice]{f.head, []chatChoice{c}, f.noUsage}, after, noText})
	}
	if !f.begun[k] {
		f.begun[k] = true
		add(chatChoice{Index: k, Delta: &chatDelta{Role: roleAssistant, Content: new(string)}}, begun, true)
	}
	if p.text != "" || len(p.logprobs) > 0 || f.c.tokenIDs && len(p.tokens) > 0 {
		c := f.choice(k, p)
		c.Delta = &chatDelta{Content: &p.text}
		after := begun
		if reason != nil {
			after = told
		}
		add(c, after, false)
	}
	if reason != nil {
		add(chatChoice{Index: k, Delta: &chatDelta{}, FinishReason: reason}, ended, false)
	}
	return out
}

// usage implements form.
func (f *chatForm) usage(u usage) any {
	return reply[chatChoice]{f.head, []chatChoice{}, u.raw()}
}
