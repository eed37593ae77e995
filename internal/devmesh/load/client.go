package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// maxEvent bounds one line of a stream; a longer one is an error of the stream.
const maxEvent = 1 << 20

// Request is a completion request. Pointers are left out when nil, so that the
// server's defaults apply.
type Request struct {
	Prompt      string  `json:"-"`
	PromptIDs   []int32 `json:"-"` // instead of Prompt
	Model       string  `json:"model"`
	MaxTokens   int     `json:"max_tokens"`
	Temperature float64 `json:"temperature"`
	TopK        int     `json:"top_k,omitempty"`
	TopP        float64 `json:"top_p,omitempty"`
	Seed        uint64  `json:"seed"`
	IgnoreEOS   bool    `json:"ignore_eos,omitempty"`
}

// Piece is one chunk of text and when it arrived.
type Piece struct {
	At   time.Time
	Text string
	IDs  []int32 // the tokens that it completes; may be more than one, and may have no text yet
}

// Result is what a client saw of one request.
type Result struct {
	Session      string // from X-Kevlard-Session
	Sent         time.Time
	Ended        time.Time
	Pieces       []Piece
	Finish       string // stop, length; "" when the stream ended otherwise
	Tokens       int    // usage.completion_tokens; 0 when the stream ended otherwise
	PromptTokens int    // usage.prompt_tokens; likewise
	Cached       int    // usage.prompt_tokens_details.cached_tokens; likewise
	Done         bool   // [DONE] was seen
	Err          error  // *APIError, or what broke the stream
}

// APIError is an error in OpenAI's envelope, before or within a stream.
type APIError struct {
	Status    int // HTTP status; 200 within a stream
	Code      string
	Message   string
	InStream  bool
	RetrySecs string // Retry-After
}

// Error implements error.
func (e *APIError) Error() string {
	return fmt.Sprintf("HTTP %d, %s: %s", e.Status, e.Code, e.Message)
}

// Text returns all text received.
func (r Result) Text() string {
	var b strings.Builder
	for _, p := range r.Pieces {
		b.WriteString(p.Text)
	}
	return b.String()
}

// IDs returns all tokens received.
func (r Result) IDs() []int32 {
	var ids []int32
	for _, p := range r.Pieces {
		ids = append(ids, p.IDs...)
	}
	return ids
}

// Same reports whether two clients received the same answer: token ids, text and
// reason to end.
func (r Result) Same(o Result) bool {
	return slices.Equal(r.IDs(), o.IDs()) && r.Text() == o.Text() && r.Finish == o.Finish && r.Tokens == o.Tokens
}

// FirstToken returns the time from sending to the first text; 0 without text.
func (r Result) FirstToken() time.Duration {
	if len(r.Pieces) == 0 {
		return 0
	}
	return r.Pieces[0].At.Sub(r.Sent)
}

// LongestGap returns the longest pause between two pieces of which the second came
// after from and not after to; 0 if there is none.
func (r Result) LongestGap(from, to time.Time) time.Duration {
	var gap time.Duration
	for i := 1; i < len(r.Pieces); i++ {
		if at := r.Pieces[i].At; at.After(from) && !at.After(to) {
			gap = max(gap, at.Sub(r.Pieces[i-1].At))
		}
	}
	return gap
}

// Gaps returns the pauses between the pieces, in order.
func (r Result) Gaps() []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(r.Pieces); i++ {
		gaps = append(gaps, r.Pieces[i].At.Sub(r.Pieces[i-1].At))
	}
	return gaps
}

// Client streams completions from one node.
type Client struct {
	base string
	http *http.Client
}

// NewClient returns a client of the node whose API is at base, such as
// http://127.0.0.19:18080.
func NewClient(base string) *Client {
	return &Client{base: base, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// CloseIdle closes the connections that no stream uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// chunk is one event of a stream.
type chunk struct {
	Choices []struct {
		Text     string  `json:"text"`
		TokenIDs []int32 `json:"token_ids"`
		Finish   *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *wireError `json:"error"`
}

type wireError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    any    `json:"code"`
}

func (e *wireError) api(resp *http.Response, inStream bool) *APIError {
	code := e.Type
	if e.Code != nil {
		code = fmt.Sprint(e.Code)
	}
	return &APIError{Status: resp.StatusCode, Code: code, Message: e.Message, InStream: inStream, RetrySecs: resp.Header.Get("Retry-After")}
}

// Stream sends one streaming request and returns when it has ended, one way or
// another. It hands every piece to each (if not nil) as it comes, after the
// session is known; cancelling ctx closes the connection.
func (c *Client) Stream(ctx context.Context, r Request, each func(session string, p Piece)) Result {
	res := Result{Sent: time.Now()}
	res.Err = c.stream(ctx, r, &res, each)
	res.Ended = time.Now()
	return res
}

func (c *Client) stream(ctx context.Context, r Request, res *Result, each func(string, Piece)) error {
	body, err := encode(r)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	defer resp.Body.Close()
	res.Session = resp.Header.Get("X-Kevlard-Session")
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		if err != nil {
			return fmt.Errorf("read error answer: %w", err)
		}
		var e struct{ Error *wireError }
		if json.Unmarshal(text, &e) != nil || e.Error == nil {
			return fmt.Errorf("HTTP %d without OpenAI's error envelope: %.200s", resp.StatusCode, text)
		}
		return e.Error.api(resp, false)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue // a comment, an id, or the blank line between events
		}
		if string(data) == "[DONE]" {
			res.Done = true
			continue
		}
		var ev chunk
		if err := json.Unmarshal(data, &ev); err != nil {
			return fmt.Errorf("decode event %.200q: %w", data, err)
		}
		if ev.Error != nil {
			return ev.Error.api(resp, true)
		}
		res.take(ev, each)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	if !res.Done {
		return errors.New("the stream ended without [DONE] and without an error event")
	}
	return nil
}

func (res *Result) take(ev chunk, each func(string, Piece)) {
	if ev.Usage != nil {
		res.Tokens, res.PromptTokens, res.Cached = ev.Usage.CompletionTokens, ev.Usage.PromptTokens, ev.Usage.Details.Cached
	}
	for _, choice := range ev.Choices {
		if choice.Finish != nil {
			res.Finish = *choice.Finish
		}
		if choice.Text == "" && len(choice.TokenIDs) == 0 {
			continue
		}
		p := Piece{At: time.Now(), Text: choice.Text, IDs: choice.TokenIDs}
		res.Pieces = append(res.Pieces, p)
		if each != nil {
			each(res.Session, p)
		}
	}
}

func encode(r Request) ([]byte, error) {
	var prompt any = r.Prompt
	if r.PromptIDs != nil {
		prompt = r.PromptIDs
	}
	body, err := json.Marshal(struct {
		Request
		Prompt  any            `json:"prompt"`
		Stream  bool           `json:"stream"`
		Options map[string]any `json:"stream_options"`
		IDs     bool           `json:"return_token_ids"`
	}{r, prompt, true, map[string]any{"include_usage": true}, true})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return body, nil
}

// Models returns the ids of the models that the node offers.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/models", nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask for models: %w", err)
	}
	defer resp.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxEvent)).Decode(&list); err != nil {
		return nil, fmt.Errorf("decode list of models: %w", err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}
