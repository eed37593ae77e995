package sdk

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// sessionHeader names the session of a request.
const sessionHeader = "X-Kevlard-Session"

const (
	endToken   = "2047" // the bundled model's
	longTokens = 900    // of an answer that does not end before somebody ends it
)

// story is a row of n tokens for tests that need no more than some text.
func (s *suite) story(n int) row {
	return row{
		Endpoint: "chat", Usage: true, Finish: "length", Tokens: n,
		Body: map[string]any{
			"model": s.ModelName(), "messages": []map[string]any{{"role": "user", "content": "Tell me of the fox."}},
			"max_completion_tokens": n, "temperature": 0.8, "seed": 7,
			"logit_bias": map[string]any{endToken: -100},
		},
	}
}

// busy makes a second request under the name of a session that runs: 409, which
// clients retry by themselves, so that the second one must work as soon as the first
// has ended, and neither runs twice.
func (s *suite) busy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), endWithin)
	defer cancel()
	want := s.unbroken(ctx, t, s.story(20), true)
	name := option.WithHeader(sessionHeader, "the-same")
	long, cut := context.WithCancel(ctx)
	defer cut()
	begun, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := ask(long, newClient(s.mesh, name), s.story(longTokens), true, func(n int) {
			if n > 0 {
				once.Do(func() { close(begun) })
			}
		})
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the first request ended at once: %v", err)
	}
	_, err := ask(ctx, newClient(s.mesh, name), s.story(20), true, nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != http.StatusConflict || e.Code != "session_busy" {
		t.Errorf("the second request: %v, want 409 session_busy", err)
	}
	var statuses []int
	watch := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(r)
		if err == nil {
			statuses = append(statuses, resp.StatusCode)
			if resp.StatusCode == http.StatusConflict {
				cut()
			}
		}
		return resp, err
	})
	got, err := ask(ctx, newClient(s.mesh, name, option.WithMaxRetries(2), watch), s.story(20), true, nil)
	if err == nil {
		err = got.same(want)
	}
	if err != nil || len(statuses) < 2 || statuses[0] != http.StatusConflict {
		t.Errorf("with retries: statuses %v, %v; want 409 and then the answer", statuses, err)
	}
	if err := <-ended; err == nil {
		t.Error("the first request was not cut off")
	}
}

// unavailable makes a request while a stage has no host: 503 with Retry-After before
// anything is answered, and the client's retry works once a host is back.
func (s *suite) unavailable(ctx context.Context, t *testing.T, stage int, want *answer) {
	t.Helper()
	_, err := ask(ctx, s.client, s.story(20), true, nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != http.StatusServiceUnavailable || e.Response.Header.Get("Retry-After") == "" || e.Type != "server_error" {
		t.Errorf("without a route: %v, want HTTP 503 with Retry-After", err)
	}
	var statuses []int
	heal := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(r)
		if err != nil {
			return resp, err
		}
		if statuses = append(statuses, resp.StatusCode); len(statuses) == 1 {
			err = s.heal(ctx, stage)
		}
		return resp, err
	})
	got, err := ask(ctx, newClient(s.mesh, option.WithMaxRetries(2), heal), s.story(20), false, nil)
	if err == nil {
		err = got.same(want)
	}
	if err != nil || len(statuses) < 2 || statuses[0] != http.StatusServiceUnavailable {
		t.Errorf("with retries: statuses %v, %v; want 503 and then the answer", statuses, err)
	}
}

// cancelled goes away in the middle of an answer, streamed or not: nothing of it may
// be left in any host.
func (s *suite) cancelled(t *testing.T, streamed bool) {
	ctx, cancel := context.WithTimeout(t.Context(), endWithin)
	defer cancel()
	going, leave := context.WithCancel(ctx)
	defer leave()
	ended := make(chan error, 1)
	go func() {
		_, err := ask(going, s.client, s.story(longTokens), streamed, func(n int) {
			if n > 20 {
				leave()
			}
		})
		ended <- err
	}()
	if !streamed {
		err := poll(ctx, endWithin, func(ctx context.Context) error {
			_, _, tokens, err := s.owned(ctx, nil)
			if err == nil && tokens < 50 {
				err = errors.New("no session has got so far")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v, want that it was cancelled", err)
	}
	if err := s.idle(ctx); err != nil {
		t.Error(err)
	}
}
