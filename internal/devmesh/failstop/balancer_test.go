package failstop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

const deadline = 10 * time.Second

// fake is a pipeline that shows one piece and then waits for leave to go on.
type fake struct {
	*httptest.Server
	arrived chan struct{}
	leave   chan struct{}
	once    sync.Once
	refuse  bool
}

func newFake(t *testing.T) *fake {
	f := &fake{arrived: make(chan struct{}, 100), leave: make(chan struct{})}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.refuse {
			http.Error(w, `{"error":{"message":"full","type":"x"}}`, http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1]}]}\n\n")
		w.(http.Flusher).Flush()
		f.arrived <- struct{}{}
		select {
		case <-f.leave:
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"b\",\"token_ids\":[2],\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(f.Close)
	t.Cleanup(f.proceed)
	return f
}

func (f *fake) proceed() { f.once.Do(func() { close(f.leave) }) }

func (f *fake) wait(t *testing.T) {
	t.Helper()
	select {
	case <-f.arrived:
	case <-time.After(deadline):
		t.Fatal("no request came")
	}
}

func start(ctx context.Context, b *Balancer) <-chan Served {
	out := make(chan Served, 1)
	go func() { out <- b.Stream(ctx, load.Request{Prompt: "x"}) }()
	return out
}

func get(t *testing.T, c <-chan Served) Served {
	t.Helper()
	select {
	case s := <-c:
		return s
	case <-time.After(deadline):
		t.Fatal("the stream has not ended")
		return Served{}
	}
}

func TestBalancesByLoad(t *testing.T) {
	one, two := newFake(t), newFake(t)
	b := New(load.NewClient(one.URL), load.NewClient(two.URL))
	first := start(t.Context(), b)
	one.wait(t)
	second := start(t.Context(), b)
	two.wait(t)
	one.proceed()
	two.proceed()
	for _, c := range []<-chan Served{first, second} {
		if s := get(t, c); s.Err != nil || s.Restarts != 0 || s.Text() != "ab" || s.FirstShown != s.FirstToken() {
			t.Errorf("got %+v", s)
		}
	}
}

// TestStartsOver drops the pipeline under a stream, then the other, and takes the
// first back: the client has one whole answer in the end.
func TestStartsOver(t *testing.T) {
	one, two := newFake(t), newFake(t)
	b := New(load.NewClient(one.URL), load.NewClient(two.URL))
	stream := start(t.Context(), b)
	one.wait(t)
	b.Drop(0)
	two.wait(t)
	b.Drop(1)
	waiting := start(t.Context(), b)
	b.TakeBack(0)
	b.TakeBack(0)
	one.wait(t)
	one.wait(t)
	one.proceed()
	s := get(t, stream)
	if s.Err != nil || s.Restarts != 2 || s.Text() != "ab" || s.Tokens != 2 {
		t.Errorf("got %+v", s)
	}
	// Equal if both drops came before the client had read anything.
	if s.FirstShown <= 0 || s.FirstShown > s.FirstToken() {
		t.Errorf("first shown after %s, first of the answer after %s", s.FirstShown, s.FirstToken())
	}
	if s := get(t, waiting); s.Err != nil || s.Text() != "ab" {
		t.Errorf("the one that waited: %+v", s)
	}
}

func TestErrorsThatAreNoBreak(t *testing.T) {
	one := newFake(t)
	one.refuse = true
	b := New(load.NewClient(one.URL))
	if s := get(t, start(t.Context(), b)); s.Err == nil || s.Restarts != 0 {
		t.Errorf("refused: %+v", s)
	}
	b.Drop(0)
	ctx, cancel := context.WithCancelCause(t.Context())
	stream := start(ctx, b)
	why := errors.New("enough")
	cancel(why)
	if s := get(t, stream); !errors.Is(s.Err, why) || s.Ended.Before(s.Sent) {
		t.Errorf("given up: %+v", s)
	}
}
