package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/oklog/ulid/v2"
)

// sessionHeader names the session, in requests and answers.
const sessionHeader = "X-Kevlard-Session"

// completionAnswer is the JSON of an answer and of a chunk of a streamed one.
type completionAnswer struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   json.RawMessage    `json:"usage,omitempty"` // null in chunks before the one with usage
}

type completionChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     *struct{}       `json:"logprobs"` // always null: not built yet
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []kevlard.Token `json:"token_ids,omitempty"` // with return_token_ids
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// errStopping ends requests that outlive the shutdown.
var errStopping = newError(http.StatusServiceUnavailable, "node_stopping", "this node is stopping: send the request to another node")

// completions answers POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	if !allow(w, r, http.MethodPost) {
		return
	}
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	default:
		writeError(w, newError(http.StatusTooManyRequests, "overloaded", "%d requests are running on this node, which is its limit: try again", cap(s.inFlight)))
		return
	}
	var body completionBody
	if err := readBody(w, r, maxBody, &body); err != nil {
		writeError(w, err)
		return
	}
	if body.Session == "" {
		body.Session = r.Header.Get(sessionHeader)
	}
	c, bad := body.check(s.gen.Models())
	if bad != nil {
		writeError(w, bad)
		return
	}
	stream, err := s.gen.Generate(r.Context(), c.gen)
	if err != nil {
		writeError(w, asError(err))
		return
	}
	w.Header().Set(sessionHeader, string(cmp.Or(c.gen.Session, stream.ID())))
	answer := completionAnswer{
		ID: "cmpl-" + ulid.Make().String(), Object: "text_completion", Created: time.Now().Unix(), Model: c.model.Name,
	}
	if c.stream {
		s.streamed(w, r.Context(), c, stream, answer)
	} else {
		s.collected(w, r.Context(), c, stream, answer)
	}
}

// collected answers with one document.
func (s *Server) collected(w http.ResponseWriter, ctx context.Context, c *completion, stream Stream, answer completionAnswer) {
	choice := completionChoice{Text: c.echoText}
	add := func(p piece) error {
		choice.Text += p.text
		if c.tokenIDs {
			choice.TokenIDs = append(choice.TokenIDs, p.tokens...)
		}
		return nil
	}
	end, err := c.run(ctx, stream, add)
	if err != nil {
		s.logEnd(ctx, c, stream, end, err)
		if e := clientError(ctx, err); e != nil {
			writeError(w, e)
		}
		return
	}
	_ = add(end.last)
	choice.FinishReason = &end.reason
	answer.Choices = []completionChoice{choice}
	answer.Usage = c.usageOf(end)
	s.logEnd(ctx, c, stream, end, nil)
	writeJSON(w, http.StatusOK, answer)
}

// streamed answers with server-sent events.
func (s *Server) streamed(w http.ResponseWriter, ctx context.Context, c *completion, stream Stream, answer completionAnswer) {
	events := newSSE(w)
	if c.usage {
		answer.Usage = json.RawMessage("null")
	}
	chunk := func(p piece, reason *string) error {
		choice := completionChoice{Text: p.text, FinishReason: reason}
		if c.tokenIDs {
			choice.TokenIDs = p.tokens
		}
		answer.Choices = []completionChoice{choice}
		return events.data(answer)
	}
	echoed := !c.echo
	emit := func(p piece) error {
		if !echoed {
			// The prompt goes out once something follows it, so that an error before
			// the first token still has an HTTP status.
			echoed = true
			p.text = c.echoText + p.text
		}
		if p.text == "" && !c.tokenIDs {
			return nil
		}
		return chunk(p, nil)
	}
	end, err := c.run(ctx, stream, emit)
	s.logEnd(ctx, c, stream, end, err)
	if err == nil {
		if !echoed {
			end.last.text = c.echoText + end.last.text
		}
		err = chunk(end.last, &end.reason)
		if err == nil && c.usage {
			answer.Choices, answer.Usage = []completionChoice{}, c.usageOf(end)
			err = events.data(answer)
		}
		if err == nil {
			_ = events.raw("[DONE]") // a failed write means that the client is gone
		}
		events.end()
		return
	}
	e := clientError(ctx, err)
	if e == nil {
		events.end()
		return
	}
	if begun := events.end(); !begun {
		writeError(w, e)
		return
	}
	// No finish_reason and no [DONE] follow: this is not an answer.
	_ = events.data(envelope{e})
}

// clientError is what the client is told, or nil if there is none any more.
func clientError(ctx context.Context, err error) *Error {
	if ctx.Err() == nil {
		return asError(err)
	}
	if errors.Is(context.Cause(ctx), errStopping) {
		return errStopping
	}
	return nil
}

func (c *completion) usageOf(end ending) json.RawMessage {
	u := usage{PromptTokens: len(c.gen.Prompt), CompletionTokens: end.tokens, TotalTokens: len(c.gen.Prompt) + end.tokens}
	body, err := json.Marshal(u)
	if err != nil {
		panic("api: usage does not marshal: " + err.Error())
	}
	return body
}

// logEnd logs how a request ended, and its failovers, which OpenAI's JSON has no
// place for.
func (s *Server) logEnd(ctx context.Context, c *completion, stream Stream, end ending, err error) {
	reason := end.reason
	if err != nil {
		reason = err.Error()
		if ctx.Err() != nil {
			reason = "client gone"
		}
	}
	s.cfg.Log.Debug("completion ended", "session", stream.ID(), "prompt", len(c.gen.Prompt), "tokens", end.tokens,
		"reason", reason, "failovers", len(end.failovers))
}

// readBody decodes a body of at most limit bytes, which must arrive in time.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, into any) *Error {
	rc := http.NewResponseController(w)
	// A writer without deadlines is a test's.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer rc.SetReadDeadline(time.Time{})
	return decodeBody(http.MaxBytesReader(w, r.Body, limit), into)
}

// allow refuses other methods than the one given.
func allow(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", method)
	writeError(w, newError(http.StatusMethodNotAllowed, "method_not_allowed", "%s %s: want %s", r.Method, r.URL.Path, method))
	return false
}
