package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3/packages/ssestream"
)

// outage is a stage without hosts under three streams: of the Go client, of the Node
// client and over the socket.
type outage struct {
	*suite
	stage int
	want  *answer
	begun sync.WaitGroup // streams that have not shown text yet
}

// storyTokens is the length of stories that still go on when all streams have begun.
const storyTokens = 400

// silence is an outage that ends in time: the streams show comments meanwhile, and
// then go on as if nothing had been.
func (s *suite) silence(t *testing.T, c *control) {
	o := &outage{suite: s, stage: 1, want: s.unbroken(t.Context(), t, s.story(storyTokens), true)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*endWithin)
	defer cancel()
	healing := make(chan error, 1)
	var once sync.Once
	streams := o.begin(ctx, t, c, "a silence that ends", func(comments int) {
		if comments > 0 {
			once.Do(func() { go func() { healing <- s.heal(ctx, o.stage) }() })
		}
	})
	for name, ended := range streams.of {
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := streams.sdk.same(o.want); err != nil {
		t.Error(err)
	}
	if err := streams.raw.same(o.want); err != nil || !streams.raw.done {
		t.Errorf("over the socket: [DONE] %t, %v", streams.raw.done, err)
	}
	select {
	case err := <-healing:
		if err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatal("the streams ended before the hosts were back: nothing was shown")
	}
}

// lasting is an outage that outlives the streams: they end with an error event, and
// nothing that a client could take for the end of an answer.
func (s *suite) lasting(t *testing.T, c *control) {
	short := s.unbroken(t.Context(), t, s.story(20), false)
	o := &outage{suite: s, stage: 2, want: s.unbroken(t.Context(), t, s.story(storyTokens), true)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*endWithin)
	defer cancel()
	streams := o.begin(ctx, t, c, "an outage that lasts", nil)
	for name, ended := range streams.of {
		err := <-ended
		if name != goStream {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		e, ok := errors.AsType[*ssestream.StreamError](err)
		var body struct{ Error wireError }
		if !ok || json.Unmarshal(e.Event.Data, &body) != nil {
			t.Errorf("%s ended with %v, want an error event", name, err)
			continue
		}
		body.Error.check(t)
	}
	if streams.sdk.choices[0].finish != "" {
		t.Errorf("finish_reason %q comes before the error", streams.sdk.choices[0].finish)
	}
	if r := streams.raw; r.failed == nil || r.done || r.choices[0].finish != "" || r.comments == 0 {
		t.Errorf("over the socket: [DONE] %t, finish_reason %q, %d comments; want comments and then an error", r.done, r.choices[0].finish, r.comments)
	} else {
		r.failed.check(t)
	}
	s.unavailable(ctx, t, o.stage, short)
}

func (e *wireError) check(t *testing.T) {
	t.Helper()
	if e.Message == "" || e.Type != "server_error" || e.Code == nil || *e.Code != "no_route" {
		t.Errorf("the error event is %+v, want a server_error with code no_route", *e)
	}
}

const (
	goStream   = "openai-go"
	nodeStream = "openai for Node"
	rawStream  = "the socket"
)

// streams are the three, with what each ended with.
type streams struct {
	of  map[string]chan error
	sdk *answer // valid once openai-go's has ended
	raw *raw    // valid once the socket's has ended
}

// begin starts the streams, and the outage as soon as all have shown text. The Node
// client runs its test of that name.
func (o *outage) begin(ctx context.Context, t *testing.T, c *control, test string, comments func(int)) *streams {
	t.Helper()
	out := &streams{of: map[string]chan error{goStream: make(chan error, 1), nodeStream: make(chan error, 1), rawStream: make(chan error, 1)}}
	joined := c.expect()
	go func() { out.of[nodeStream] <- c.node(ctx, test) }()
	select {
	case <-joined: // the slow starter is under way
	case err := <-out.of[nodeStream]:
		t.Fatalf("%s ended at once: %v", nodeStream, err)
	}
	o.begun.Add(2)
	go func() {
		var once sync.Once
		var err error
		out.sdk, err = ask(ctx, o.client, o.story(storyTokens), true, func(n int) {
			if n > 0 {
				once.Do(o.begun.Done)
			}
		})
		once.Do(o.begun.Done)
		out.of[goStream] <- err
	}()
	go func() {
		var once sync.Once
		var err error
		out.raw, err = o.rawStory(ctx, func(text, seen int) {
			if text > 0 {
				once.Do(o.begun.Done)
			}
			if comments != nil {
				comments(seen)
			}
		})
		once.Do(o.begun.Done)
		out.of[rawStream] <- err
	}()
	o.begun.Wait()
	if err := o.mesh.outage(ctx, o.stage); err != nil {
		t.Fatal(err)
	}
	return out
}

func (o *outage) rawStory(ctx context.Context, watch watcher) (*raw, error) {
	s, err := dial(ctx, o.Entry().APIURL(), false)
	if err != nil {
		return &raw{}, err
	}
	defer s.conn.Close()
	got, err := askRaw(ctx, s, o.story(storyTokens), watch)
	if got == nil {
		got = &raw{}
	}
	got.at(0)
	return got, err
}
