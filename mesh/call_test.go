package mesh

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCall(t *testing.T) {
	cfg := testConfig(t, "b")
	cfg.Handler.Call = func(_ context.Context, from Peer, method string, body []byte) ([]byte, error) {
		switch method {
		case "echo":
			return append([]byte(from.Node+":"), body...), nil
		case "long":
			return make([]byte, maxCallBody+1), nil
		}
		return nil, errors.New("no method " + method + strings.Repeat("!", 2*maxFailure))
	}
	a, b := start(t, testConfig(t, "a")), start(t, cfg)
	connect(t, a, b)
	for _, size := range []int{0, 1, maxCallBody - 2} {
		body := bytes.Repeat([]byte{'x'}, size)
		got, err := a.Call(t.Context(), "b", "echo", body)
		if err != nil || string(got) != "a:"+string(body) {
			t.Fatalf("echo of %d bytes: %d bytes, %v", size, len(got), err)
		}
	}
	_, err := a.Call(t.Context(), "b", "nothing", nil)
	remote := (*RemoteError)(nil)
	if !errors.As(err, &remote) || remote.Node != "b" || !strings.HasPrefix(remote.Text, "no method nothing!") || len(remote.Text) != maxFailure {
		t.Fatalf("failing call: %v", err)
	}
	if _, err = a.Call(t.Context(), "b", "long", nil); !errors.As(err, &remote) || !strings.Contains(remote.Text, "too large") {
		t.Fatalf("long answer: %v", err)
	}
	_, err = a.Call(t.Context(), "b", "echo", make([]byte, maxCallBody+1))
	wantError(t, err, ErrTooLarge)
	_, err = a.Call(t.Context(), "b", strings.Repeat("m", maxMethod+1), nil)
	wantError(t, err, ErrTooLarge)
	if _, err = b.Call(t.Context(), "a", "echo", nil); !errors.As(err, &remote) || !strings.Contains(remote.Text, "answers no calls") {
		t.Fatalf("call to a node without handler: %v", err)
	}
}

// hanging is a Call handler that waits for its context and reports why it ended.
func hanging() (handler func(context.Context, Peer, string, []byte) ([]byte, error), began chan struct{}, ended chan error) {
	began, ended = make(chan struct{}, maxCalls), make(chan error, maxCalls)
	return func(ctx context.Context, _ Peer, _ string, _ []byte) ([]byte, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	}, began, ended
}

func receiveIn[T any](t testing.TB, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("nothing within %v", patience)
		panic("unreachable")
	}
}

// The end of the caller's context reaches the handler.
func TestCallCancelled(t *testing.T) {
	cfg := testConfig(t, "b")
	handler, began, ended := hanging()
	cfg.Handler.Call = handler
	a, b := start(t, testConfig(t, "a")), start(t, cfg)
	connect(t, a, b)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("client went away")
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(ctx, "b", "hang", nil)
		result <- err
	}()
	receiveIn(t, began)
	cancel(why)
	wantError(t, receiveIn(t, result), why)
	wantError(t, receiveIn(t, ended), errGaveUp)
}

// A broken connection ends calls at both ends.
func TestCallsEndWithConnection(t *testing.T) {
	cfg := testConfig(t, "b")
	handler, began, ended := hanging()
	cfg.Handler.Call = handler
	a, b := start(t, testConfig(t, "a")), start(t, cfg)
	way := startProxy(t, b.Addr())
	a.SetPeers([]Address{way.at(b)})
	a.next(t, "up")
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(t.Context(), "b", "hang", nil)
		result <- err
	}()
	receiveIn(t, began)
	way.cut()
	if err := receiveIn(t, result); err == nil {
		t.Fatal("the call succeeded over a cut connection")
	}
	receiveIn(t, ended)
}

// maxCalls run at once, one more is refused, and control messages pass meanwhile.
func TestCallBound(t *testing.T) {
	cfg := testConfig(t, "b")
	handler, began, _ := hanging()
	cfg.Handler.Call = handler
	a, b := start(t, testConfig(t, "a")), start(t, cfg)
	connect(t, a, b)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range maxCalls {
		all.Go(func() {
			if _, err := a.Call(ctx, "b", "hang", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("call ended with %v, want its context's end", err)
			}
		})
	}
	for range maxCalls {
		receiveIn(t, began)
	}
	_, err := a.Call(ctx, "b", "hang", nil)
	wantError(t, err, ErrQueueFull)
	if err := a.Control("b", []byte("hi")); err != nil {
		t.Fatal(err)
	}
	b.next(t, "control")
}
