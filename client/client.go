// Package client reads streamed answers of kevlard's HTTP API and goes on at another
// node when a connection breaks, so that the death of the node that it is connected to
// is a pause: no text is lost, none comes twice. It needs the standard library only, and
// is small enough to be copied.
//
// The same can be had without it: see docs/resume.md.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Client sends requests to one of several nodes. Its fields may be changed before the
// first request.
type Client struct {
	// Bases are the URLs of nodes, such as http://10.0.0.11:8080, in the order in which
	// they are tried. At least one; two or more, or a balancer in front of several, to
	// live through the death of a node.
	Bases []string
	// Key is the API key, if one is needed.
	Key string
	// HTTP makes the requests. It must have no timeout for whole answers.
	HTTP *http.Client
	// Patience is how long it is tried to go on when nothing new arrives: then Stream
	// fails with the last error. It is less than the time for which nodes keep an answer
	// ([api] resume_window, 60 s). Default 45 s.
	Patience time.Duration
}

// New returns a client of the nodes at the given URLs.
func New(bases ...string) *Client {
	return &Client{Bases: bases, HTTP: &http.Client{}, Patience: 45 * time.Second}
}

// The pauses between tries, doubling from the first to the last.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// maxError is the most bytes that are read of an answer that is an error.
const maxError = 64 << 10

// Error is an error in the API's envelope.
type Error struct {
	Status  int    `json:"-"` // of the HTTP answer; 0 of an event
	Message string `json:"message"`
	Code    string `json:"code"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Code + ": " + e.Message
}

// passing reports whether another try, there or elsewhere, may help. What one node does
// not know, a model or a session, another may.
func (e *Error) passing() bool {
	switch e.Status {
	case http.StatusNotFound, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return true
	}
	switch e.Code {
	case "session_busy", "session_no_quorum", "session_not_found", "model_not_found":
		return true
	case "node_stopping", "draining", "no_route", "owner_lost", "capacity", "session_paused":
		return true // these also come as events
	}
	return false
}

// Stream posts body, whose stream field must be true, to path (/v1/completions or
// /v1/chat/completions) and hands the data of each event to each, in order and once,
// without the [DONE] that ends a whole answer. When a connection breaks before that it
// goes on at the next node. It returns nil after a whole answer, each's error, the cause
// of ctx's end, an *Error if the request is refused (with 404: by each node in turn), and
// after Patience without anything new the last error.
func (c *Client) Stream(ctx context.Context, path string, body any, each func(data json.RawMessage) error) error {
	if len(c.Bases) == 0 {
		return errors.New("no node to ask: Bases is empty")
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	s := &stream{client: c, path: path, payload: payload, each: each}
	unknown := 0 // nodes in a row that did not know the session, or the model
	for try, since := 0, time.Now(); ; try++ {
		fresh, err := s.read(ctx, c.Bases[try%len(c.Bases)])
		if err == nil {
			return nil
		}
		if fresh {
			since, try = time.Now(), try%len(c.Bases)
			s.pause = 0
		}
		var refused *Error
		unknown++
		if !errors.As(err, &refused) || refused.Status != http.StatusNotFound && refused.Code != "session_not_found" {
			unknown = 0
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errStop):
			return s.stopped
		case refused != nil && !refused.passing(), unknown > len(c.Bases):
			return err
		case time.Since(since) > c.patience():
			return fmt.Errorf("nothing new for %v: %w", c.patience(), err)
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

func (c *Client) patience() time.Duration {
	if c.Patience > 0 {
		return c.Patience
	}
	return 45 * time.Second
}

// stream is one answer over all its connections.
type stream struct {
	client  *Client
	path    string
	payload []byte
	each    func(json.RawMessage) error
	last    string // id of the last event that each has seen
	pause   time.Duration
	stopped error // each's
}

// errStop says that each wants no more.
var errStop = errors.New("stopped")

// errBroken says that an answer ended before its end.
var errBroken = errors.New("the connection broke before the end of the answer")

// wait pauses before another try.
func (s *stream) wait(ctx context.Context) error {
	s.pause = min(max(2*s.pause, firstPause), lastPause)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.pause):
		return nil
	}
}

// read asks one node and reads what it sends. fresh says that there was something new.
func (s *stream) read(ctx context.Context, base string) (fresh bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A node that is frozen neither answers nor closes: nodes send something every five
	// seconds, and answer a request within a few.
	silent := time.AfterFunc(maxSilence, cancel)
	defer silent.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(base, "/")+s.path, bytes.NewReader(s.payload))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.client.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.client.Key)
	}
	if s.last != "" {
		req.Header.Set("Last-Event-ID", s.last)
	}
	resp, err := s.client.HTTP.Do(req)
	if err != nil {
		return false, fmt.Errorf("ask %s: %w", base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, refusal(resp)
	}
	events := newReader(resp.Body)
	for {
		ev, err := events.next()
		if err != nil {
			return fresh, fmt.Errorf("read from %s: %w: %w", base, errBroken, err)
		}
		silent.Reset(maxSilence)
		switch {
		case ev.data == "":
			continue // a comment
		case ev.data == "[DONE]":
			return true, nil
		}
		if bad := failed(ev.data); bad != nil {
			return fresh, bad
		}
		if s.stopped = s.each(json.RawMessage(ev.data)); s.stopped != nil {
			return true, errStop
		}
		fresh = true
		if ev.id != "" {
			s.last = ev.id
		}
	}
}

// maxSilence is how long a node may send nothing.
const maxSilence = 12 * time.Second

// refusal reads an answer that is an error.
func refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var e struct{ Error *Error }
	if err != nil || json.Unmarshal(text, &e) != nil || e.Error == nil {
		return &Error{Status: resp.StatusCode, Message: fmt.Sprintf("%s: %.200q", resp.Status, text)}
	}
	e.Error.Status = resp.StatusCode
	return e.Error
}

// failed returns the error that an event is, if it is one.
func failed(data string) error {
	var e struct{ Error *Error }
	if !strings.Contains(data, `"error"`) || json.Unmarshal([]byte(data), &e) != nil || e.Error == nil {
		return nil
	}
	return e.Error
}
