package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener accepts connections that are net.Pipes, which a synctest bubble can
// wait for.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// client returns an HTTP client whose connections go to the listener.
func (l *pipeListener) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case l.conns <- theirs:
				return ours, nil
			case <-l.closed:
				return nil, errors.New("refused")
			}
		},
	}}
}

// TestKeepAlive checks the comments in silence, at the times when they must come.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		g := &toy{lessons: map[string]lesson{"p": {answer: "abc", after: 1, wait: 12 * time.Second}}}
		s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}, gen: g, inFlight: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- serve(ctx, l, s.routes(http.NotFoundHandler()), nil, 0, s.cfg.Log) }()
		resp, err := l.client().Post("http://x/v1/completions", "", strings.NewReader(`{"model":"toy","prompt":"p","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		// 12 s of silence have comments after 5 s and 10 s.
		want := chunk("a", "null") + ": keep-alive\n\n: keep-alive\n\n" + chunk("b", "null") + chunk("c", "stop") + done
		if got := normal(t, string(text)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowFirstToken checks that headers go out in time although there is no token,
// and that an error after that is an event.
func TestSlowFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		g := &toy{lessons: map[string]lesson{"p": {answer: "abc", after: 0, wait: 6 * time.Second, fail: goneFailure}}}
		s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}, gen: g, inFlight: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- serve(ctx, l, s.routes(http.NotFoundHandler()), nil, 0, s.cfg.Log) }()
		began := time.Now()
		resp, err := l.client().Post("http://x/v1/completions", "", strings.NewReader(`{"model":"toy","prompt":"p","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != keepAlive || resp.StatusCode != 200 {
			t.Errorf("headers with status %d after %v, want 200 after %v", resp.StatusCode, took, keepAlive)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := ": keep-alive\n\n" + `data: {"error":{"message":"gone","type":"server_error","param":null,"code":"no_route"}}` + "\n\n"
		if got := normal(t, string(text)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestShutdown checks that streams get the drain time, then an error event, and
// that Run waits for them.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		g := &toy{lessons: map[string]lesson{"p": {answer: "abc", after: 1, hang: true}}}
		s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}, gen: g, inFlight: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		const drain = 3 * time.Second
		go func() { ended <- serve(ctx, l, s.routes(http.NotFoundHandler()), nil, drain, s.cfg.Log) }()
		resp, err := l.client().Post("http://x/v1/completions", "", strings.NewReader(`{"model":"toy","prompt":"p","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		cancel()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if took := time.Since(began); took < drain || took > drain+closeTimeout {
			t.Errorf("the stream ended after %v, want about %v", took, drain)
		}
		want := chunk("a", "null") + `data: {"error":{"message":"this node is stopping: send the request to another node","type":"server_error","param":null,"code":"node_stopping"}}` + "\n\n"
		if got := normal(t, string(text)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
