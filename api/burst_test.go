package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// contextOf is the test's context, which cancel ends.
func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// TestBurst fires 1,500 requests at a node that takes 64: those run, each other one
// is told when to come again, and all the while the node looks alive to those who
// ask (K20).
func TestBurst(t *testing.T) {
	const limit, burst = 64, 1500
	g := &toy{lessons: map[string]lesson{"user:p\nassistant:": {answer: "abc", after: 1, hang: true}}}
	s, err := NewServer(Config{Listen: "127.0.0.1:0", MaxInFlight: limit, Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := contextOf(t)
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()

	url := "http://" + s.Addr()
	// No timeouts: how fast a loaded machine is proves nothing, being answered does.
	clients := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: new(net.Dialer).DialContext}}
	running, cancel := contextOf(t)
	defer cancel()
	type result struct {
		status int
		retry  string
		err    error
	}
	results := make(chan result, burst)
	fire := make(chan struct{})
	var wg sync.WaitGroup
	for range burst {
		wg.Go(func() {
			<-fire
			req, err := http.NewRequestWithContext(running, http.MethodPost, url+chatPath, strings.NewReader(`{"stream":true,`+said("p")+`}`))
			if err != nil {
				results <- result{err: err}
				return
			}
			resp, err := clients.Do(req)
			if err != nil {
				results <- result{err: err}
				return
			}
			defer resp.Body.Close()
			results <- result{resp.StatusCode, resp.Header.Get("Retry-After"), nil}
			_, _ = io.Copy(io.Discard, resp.Body) // a running one lasts until it is cancelled
		})
	}
	probes := make(chan string, 1)
	probing, finished := make(chan struct{}), make(chan struct{})
	go func() {
		prober := &http.Client{Transport: &http.Transport{DialContext: new(net.Dialer).DialContext}}
		defer prober.CloseIdleConnections()
		n := 0
		for {
			for _, path := range []string{"/healthz", "/readyz"} {
				resp, err := prober.Get(url + path)
				if err != nil {
					probes <- path + ": " + err.Error()
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					probes <- path + ": " + resp.Status
					return
				}
			}
			if n++; n == 1 {
				close(probing) // and so a round at least begins with the burst
			}
			select {
			case <-finished:
				probes <- ""
				return
			default:
			}
		}
	}()
	select {
	case <-probing:
	case bad := <-probes:
		t.Fatal(bad)
	}
	close(fire)
	count := map[int]int{}
	for range burst {
		select {
		case r := <-results:
			if r.err != nil {
				t.Fatalf("a request was dropped: %v", r.err)
			}
			if (r.retry != "") != (r.status == http.StatusTooManyRequests) {
				t.Errorf("status %d with Retry-After %q", r.status, r.retry)
			}
			count[r.status]++
		case <-time.After(5 * time.Minute):
			t.Fatalf("so far %v, and nothing more", count)
		}
	}
	if count[200] != limit || count[429] != burst-limit {
		t.Errorf("statuses %v, want %d of 200 and %d of 429", count, limit, burst-limit)
	}
	close(finished)
	if bad := <-probes; bad != "" {
		t.Error(bad)
	}
	cancel()
	wg.Wait()
	// The places are free again.
	waitFor(t, func() bool {
		resp, err := clients.Post(url+chatPath, "", strings.NewReader(`{`+said("q")+`}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
