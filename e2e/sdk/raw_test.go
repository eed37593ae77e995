package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// wireChunk is the JSON of one event, by the letter: fields that may be missing are
// pointers or raw.
type wireChunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices *[]struct {
		Index  int64           `json:"index"`
		Text   string          `json:"text"`
		Finish json.RawMessage `json:"finish_reason"`
		Delta  struct {
			Role    *string `json:"role"`
			Content string  `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
	Error *wireError      `json:"error"`
}

type wireError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// raw is what the byte-by-byte client got.
type raw struct {
	answer
	comments int
	done     bool
	failed   *wireError // the error event that ended the stream
	roles    map[int64]bool
}

// watcher is told, after each byte, the length of the first choice's text and the
// number of comments.
type watcher func(text, comments int)

// askRaw streams the row's answer over the socket, byte by byte, and then checks that
// the connection still serves.
func askRaw(ctx context.Context, s *socket, r row, watch watcher) (*raw, error) {
	body := map[string]any{"stream": true}
	for k, v := range r.Body {
		body[k] = v
	}
	if r.Usage {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	path := map[string]string{"chat": "/v1/chat/completions", "completion": "/v1/completions"}[r.Endpoint]
	if err := s.send(http.MethodPost, path, string(text)); err != nil {
		return nil, err
	}
	status, header, err := s.head()
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") || header.Get("Transfer-Encoding") != "chunked" || header.Get("Content-Length") != "" {
		return nil, fmt.Errorf("HTTP %d, header %v", status, header)
	}
	out := &raw{roles: map[int64]bool{}}
	if err := out.read(s, r, watch); err != nil {
		return out, err
	}
	return out, again(s)
}

// read takes the events to the end of the body.
func (a *raw) read(s *socket, r row, watch watcher) error {
	var p parser
	for {
		b, err := s.chunked()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		data, dispatched, err := p.push(b)
		if err != nil {
			return err
		}
		if dispatched {
			if err := a.event(data, r); err != nil {
				return fmt.Errorf("event %s: %w", data, err)
			}
		}
		a.comments = p.comments
		if watch != nil {
			watch(len(a.at(0).text), a.comments)
		}
	}
	if !a.done && a.failed == nil {
		return errors.New("the stream ends without [DONE] and without an error")
	}
	return p.end()
}

func (a *raw) event(data string, r row) error {
	if a.done || a.failed != nil {
		return errors.New("it comes after the end")
	}
	if data == "[DONE]" {
		a.done = true
		return nil
	}
	var c wireChunk
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return err
	}
	if c.Error != nil {
		a.failed = c.Error
		return nil
	}
	object := map[string]string{"chat": "chat.completion.chunk", "completion": "text_completion"}[r.Endpoint]
	if c.Object != object || c.Choices == nil {
		return fmt.Errorf("object is %q (want %q), choices must be there", c.Object, object)
	}
	if err := a.begin(c.ID, c.Model, c.Created); err != nil {
		return err
	}
	if err := a.takeUsage(c, r); err != nil {
		return err
	}
	for _, ch := range *c.Choices {
		if r.Endpoint == "chat" && (ch.Delta.Role != nil) == a.roles[ch.Index] {
			return errors.New("the first delta of a choice, and no other, has the role")
		}
		a.roles[ch.Index] = true
		if err := a.grow(ch.Index, ch.Text+ch.Delta.Content); err != nil {
			return err
		}
		if string(ch.Finish) == "null" {
			continue
		}
		if err := json.Unmarshal(ch.Finish, &a.at(ch.Index).finish); err != nil || a.at(ch.Index).finish == "" {
			return fmt.Errorf("finish_reason is %q: want null or a reason", ch.Finish)
		}
	}
	return nil
}

func (a *raw) takeUsage(c wireChunk, r row) error {
	switch {
	case a.usage != nil:
		return errors.New("it comes after the usage")
	case !r.Usage && c.Usage != nil:
		return errors.New("usage was not asked for")
	case r.Usage && len(*c.Choices) > 0 && string(c.Usage) != "null":
		return errors.New("usage must be null in a chunk with choices")
	case len(*c.Choices) > 0:
		return nil
	}
	var u struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	}
	if err := json.Unmarshal(c.Usage, &u); err != nil {
		return fmt.Errorf("neither choices nor usage: %w", err)
	}
	a.usage = &usage{u.Prompt, u.Completion, u.Total}
	return nil
}

// again uses the connection for one more request: a body that was not read to its
// very end would be in the way.
func again(s *socket) error {
	if err := s.send(http.MethodGet, "/v1/models", ""); err != nil {
		return err
	}
	status, header, err := s.head()
	if err != nil {
		return fmt.Errorf("a second request on the connection: %w", err)
	}
	body, err := s.sized(header)
	if err != nil || status != http.StatusOK || !json.Valid(body) {
		return fmt.Errorf("a second request on the connection: HTTP %d, %q, %w", status, body, err)
	}
	return nil
}
