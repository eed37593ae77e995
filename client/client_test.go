package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/client"
)

// play is a node that answers the requests to it in turn.
type play struct {
	mu    sync.Mutex
	seen  []string // their Last-Event-ID
	turns []func(w http.ResponseWriter)
}

func (p *play) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Header.Get("Last-Event-ID"))
	turn := p.turns[0]
	if len(p.turns) > 1 {
		p.turns = p.turns[1:]
	}
	p.mu.Unlock()
	turn(w)
}

// sends writes events and closes.
func sends(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { fmt.Fprint(w, text) }
}

// refuses answers with an error.
func refuses(status int, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":"no","code":%q}}`, code)
	}
}

func run(t *testing.T, patience time.Duration, each func(string) error, nodes ...*play) error {
	t.Helper()
	c := client.New()
	c.Patience = patience
	for _, p := range nodes {
		s := httptest.NewServer(p)
		t.Cleanup(s.Close)
		c.Bases = append(c.Bases, s.URL)
	}
	return c.Stream(t.Context(), "/v1/completions", map[string]any{"stream": true}, func(data json.RawMessage) error { return each(string(data)) })
}

// TestGoesOn breaks a stream in every way that another try helps against.
func TestGoesOn(t *testing.T) {
	a := &play{turns: []func(http.ResponseWriter){
		sends("id: 1\ndata: \"a\"\n\n: keep-alive\n\nid: 2\ndata: \"b\"\n\nid: 3\ndata: \"ha"),
		sends("id: 3\ndata: \"c\"\n\nid: 3\ndata: {\"error\":{\"message\":\"stops\",\"code\":\"node_stopping\"}}\n\n"),
		refuses(503, "draining"),
		sends("id: 4\r\ndata: \"d\"\r\n\r\nid: 4\r\ndata: [DONE]\r\n\r\n"),
	}}
	b := &play{turns: []func(http.ResponseWriter){refuses(409, "session_busy"), refuses(404, "session_not_found"), refuses(502, "")}}
	var got []string
	err := run(t, time.Minute, func(s string) error { got = append(got, s); return nil }, a, b)
	if err != nil || strings.Join(got, "") != `"a""b""c""d"` {
		t.Errorf("got %q, %v", got, err)
	}
	if want := []string{"", "2", "3", "3"}; !slices.Equal(a.seen, want) {
		t.Errorf("the first node was asked to go on after %q, want %q", a.seen, want)
	}
}

// TestGivesUp: what no other try helps against, and what does not get better.
func TestGivesUp(t *testing.T) {
	stop := errors.New("enough")
	for name, c := range map[string]struct {
		turn     func(http.ResponseWriter)
		patience time.Duration
		code     string
		asks     int
	}{
		"a bad request":    {refuses(400, "context_length_exceeded"), time.Minute, "context_length_exceeded", 1},
		"unknown to all":   {refuses(404, "session_not_found"), time.Minute, "session_not_found", 2},
		"never any better": {refuses(503, "no_route"), time.Nanosecond, "no_route", 1},
		"an event":         {sends("data: {\"error\":{\"message\":\"bad\",\"code\":\"poisoned\"}}\n\n"), time.Minute, "poisoned", 1},
	} {
		p := &play{turns: []func(http.ResponseWriter){c.turn}}
		err := run(t, c.patience, func(string) error { return nil }, p)
		var e *client.Error
		if !errors.As(err, &e) || e.Code != c.code || len(p.seen) != c.asks {
			t.Errorf("%s: %v after %d requests, want %s after %d", name, err, len(p.seen), c.code, c.asks)
		}
	}
	// What one node does not know is asked of the others, and again of the first: behind one
	// URL there may be many.
	for _, code := range []string{"session_not_found", "model_not_found", ""} {
		a := &play{turns: []func(http.ResponseWriter){refuses(404, code)}}
		b := &play{turns: []func(http.ResponseWriter){refuses(404, code), sends("data: 1\n\ndata: [DONE]\n\n")}}
		if err := run(t, time.Minute, func(string) error { return nil }, a, b); err == nil || len(a.seen)+len(b.seen) != 3 {
			t.Errorf("404 %q of both: %v after %d requests", code, err, len(a.seen)+len(b.seen))
		}
		b.turns = b.turns[len(b.turns)-1:]
		if err := run(t, time.Minute, func(string) error { return nil }, a, b); err != nil {
			t.Errorf("404 %q of the first: %v", code, err)
		}
	}
	p := &play{turns: []func(http.ResponseWriter){sends("data: 1\n\ndata: 2\n\n")}}
	if err := run(t, time.Minute, func(string) error { return stop }, p); !errors.Is(err, stop) || len(p.seen) != 1 {
		t.Errorf("each's error: %v after %d requests", err, len(p.seen))
	}
	if err := client.New().Stream(t.Context(), "/", nil, nil); err == nil {
		t.Error("no nodes, no error")
	}
}

// Example asks three nodes for one answer, of which one suffices.
func Example() {
	c := client.New("http://10.0.0.11:8080", "http://10.0.0.12:8080", "http://10.0.0.13:8080")
	body := map[string]any{"model": "fairy", "prompt": "Once upon a time", "stream": true, "max_tokens": 200}
	err := c.Stream(context.Background(), "/v1/completions", body, func(data json.RawMessage) error {
		var chunk struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal(data, &chunk); err != nil {
			return err
		}
		for _, choice := range chunk.Choices {
			fmt.Print(choice.Text)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}
