package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// control is what the Node client's tests ask and tell the mesh, over HTTP on
// loopback: what to test, and when to kill.
type control struct {
	*suite
	table  table
	url    string
	runDir string
	log    func(...any)

	mu     sync.Mutex
	fault  *fault        // armed
	joined chan struct{} // closed when the Node client's stream is under way
}

// newControl serves until the test ends.
func newControl(t *testing.T, s *suite, rows table) *control {
	t.Helper()
	c := &control{suite: s, table: rows, log: t.Log}
	ctx := t.Context()
	mux := http.NewServeMux()
	handle := func(path string, f func(*http.Request) (any, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Errorf("answer the Node client: %v", err)
			}
		})
	}
	handle("/suite", func(*http.Request) (any, error) {
		return map[string]any{
			"rows": c.table.Rows, "refused": c.table.Refused, "long": s.story(longTokens), "story": s.story(storyTokens), "short": s.story(20),
			"model": s.ModelName(), "tries": tries,
		}, nil
	})
	// A fault outlives the request that arms it.
	handle("/arm", func(r *http.Request) (any, error) { return c.arm(ctx, r) })
	handle("/kill", func(*http.Request) (any, error) { return c.kill() })
	handle("/settle", func(*http.Request) (any, error) { return c.settle(ctx) })
	handle("/idle", func(r *http.Request) (any, error) { return nil, s.idle(r.Context()) })
	handle("/tokens", func(r *http.Request) (any, error) {
		_, _, tokens, err := s.owned(r.Context(), nil)
		return map[string]any{"tokens": tokens}, err
	})
	handle("/join", func(*http.Request) (any, error) { return c.join() })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

var errNoFault = errors.New("no fault is armed")

func (c *control) arm(ctx context.Context, r *http.Request) (any, error) {
	var q struct {
		At int `json:"at"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return nil, err
	}
	f, err := c.suite.arm(ctx, q.At)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
	return map[string]any{"stage": f.stage}, nil
}

func (c *control) current() (*fault, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		return nil, errNoFault
	}
	return c.fault, nil
}

func (c *control) kill() (any, error) {
	f, err := c.current()
	if err == nil {
		f.fire()
	}
	return nil, err
}

func (c *control) settle(ctx context.Context) (any, error) {
	f, err := c.current()
	if err != nil {
		return nil, err
	}
	hit, err := f.settle(ctx)
	return map[string]any{"hit": hit != nil}, err
}

// expect returns a channel that is closed when the Node client joins an outage.
func (c *control) expect() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined = make(chan struct{})
	return c.joined
}

func (c *control) join() (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined == nil {
		return nil, errors.New("no outage is planned")
	}
	close(c.joined)
	c.joined = nil
	return nil, nil
}
