package api

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/oklog/ulid/v2"
)

// form writes one answer down the way its endpoint does. All its events have one
// id and one time, whatever happens to the session meanwhile.
type form interface {
	// document is the whole answer.
	document(p piece, reason string, u usage) any
	// chunks are the events of one piece of a streamed answer, perhaps none. The
	// reason is nil but for the last piece.
	chunks(p piece, reason *string) []any
	// usage is the event after the last piece, for clients that want it.
	usage(u usage) any
}

// usage counts tokens.
type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"` // always 0: no stage keeps what it computed for other sessions
}

// usageOf counts each token once, however often failovers made it be computed.
func (c *completion) usageOf(end ending) usage {
	return usage{PromptTokens: len(c.gen.Prompt), CompletionTokens: end.tokens, TotalTokens: len(c.gen.Prompt) + end.tokens}
}

// head is what all JSON of an answer begins with.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func newHead(c *completion, prefix, object string) head {
	return head{ID: prefix + ulid.Make().String(), Object: object, Created: time.Now().Unix(), Model: c.model.Name}
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
	noUsage json.RawMessage
	lead    string // comes before the first piece
	ids     bool
}

type completionChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     *struct{}       `json:"logprobs"` // always null: not built yet
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []kevlard.Token `json:"token_ids,omitempty"` // with return_token_ids
}

func newCompletionForm(c *completion) *completionForm {
	return &completionForm{head: newHead(c, "cmpl-", "text_completion"), noUsage: noUsage(c), lead: c.echoText, ids: c.tokenIDs}
}

func (f *completionForm) choice(p piece, reason *string) []completionChoice {
	// An echoed prompt goes out once something follows it, so that an error before
	// the first token still has an HTTP status.
	choice := completionChoice{Text: f.lead + p.text, FinishReason: reason}
	f.lead = ""
	if f.ids {
		choice.TokenIDs = p.tokens
	}
	return []completionChoice{choice}
}

// document implements form.
func (f *completionForm) document(p piece, reason string, u usage) any {
	return reply[completionChoice]{f.head, f.choice(p, &reason), u.raw()}
}

// chunks implements form.
func (f *completionForm) chunks(p piece, reason *string) []any {
	choices := f.choice(p, reason)
	if choices[0].Text == "" && reason == nil && !f.ids {
		return nil
	}
	return []any{reply[completionChoice]{f.head, choices, f.noUsage}}
}

// usage implements form.
func (f *completionForm) usage(u usage) any {
	return reply[completionChoice]{f.head, []completionChoice{}, u.raw()}
}

// chatForm is the form of POST /v1/chat/completions.
type chatForm struct {
	head
	noUsage json.RawMessage
	ids     bool
	begun   bool // the role was sent, which is done once
}

type chatChoice struct {
	Index        int             `json:"index"`
	Message      *chatAnswer     `json:"message,omitempty"` // of a whole answer
	Delta        *chatDelta      `json:"delta,omitempty"`   // of an event
	Logprobs     *struct{}       `json:"logprobs"`          // always null: not built yet
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
	return &chatForm{head: newHead(c, "chatcmpl-", object), noUsage: noUsage(c), ids: c.tokenIDs}
}

// document implements form.
func (f *chatForm) document(p piece, reason string, u usage) any {
	choice := chatChoice{Message: &chatAnswer{Role: roleAssistant, Content: p.text}, FinishReason: &reason}
	if f.ids {
		choice.TokenIDs = p.tokens
	}
	return reply[chatChoice]{f.head, []chatChoice{choice}, u.raw()}
}

// chunks implements form. The role comes alone, then text, then the reason alone.
func (f *chatForm) chunks(p piece, reason *string) []any {
	var out []any
	event := func(c chatChoice) { out = append(out, reply[chatChoice]{f.head, []chatChoice{c}, f.noUsage}) }
	if !f.begun {
		f.begun = true
		event(chatChoice{Delta: &chatDelta{Role: roleAssistant, Content: new(string)}})
	}
	ids := f.ids && len(p.tokens) > 0
	if p.text != "" || ids {
		c := chatChoice{Delta: &chatDelta{Content: &p.text}}
		if ids {
			c.TokenIDs = p.tokens
		}
		event(c)
	}
	if reason != nil {
		event(chatChoice{Delta: &chatDelta{}, FinishReason: reason})
	}
	return out
}

// usage implements form.
func (f *chatForm) usage(u usage) any {
	return reply[chatChoice]{f.head, []chatChoice{}, u.raw()}
}
