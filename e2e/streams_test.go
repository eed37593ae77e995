package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// storyRequests returns n requests of the bundled model, all different, greedy and
// at temperature 0.8 in turn.
func storyRequests(m *mesh, n, tokens int) []load.Request {
	prompts := []string{
		"Once upon a time there was a little girl who",
		"The old king had three sons, and the youngest",
		"In a deep dark forest there lived",
		"The fox said to the cat",
		"There was once a poor miller who",
		"The princess looked out of the window and",
		"A soldier came marching along the road",
	}
	out := make([]load.Request, n)
	for i := range out {
		out[i] = load.Request{
			Model: m.ModelName(), Prompt: prompts[i%len(prompts)], MaxTokens: tokens,
			Seed: uint64(1000 + i), IgnoreEOS: true,
		}
		if i%2 == 1 {
			out[i].Temperature = 0.8
		}
	}
	return out
}

// longPrompts returns n requests whose prompts take a while to compute: 900 ids of
// the bundled model's ordinary tokens each.
func longPrompts(m *mesh, n, tokens int) []load.Request {
	const ids, ordinary = 900, 2000
	out := storyRequests(m, n, tokens)
	for i := range out {
		out[i].PromptIDs = make([]int32, ids)
		for j := range out[i].PromptIDs {
			out[i].PromptIDs[j] = int32((i*7919 + j*j*31 + j*17) % ordinary)
		}
	}
	return out
}

// storm is many streams at once.
type storm struct {
	ended chan struct{} // closed when all have ended

	mu      sync.Mutex
	streams []progress
	results []load.Result
}

// progress is how far one stream is, as its client sees it.
type progress struct {
	session string
	tokens  int
	ended   bool
}

// storm starts the requests at once.
func (m *mesh) storm(ctx context.Context, requests []load.Request) *storm {
	s := &storm{ended: make(chan struct{}), streams: make([]progress, len(requests)), results: make([]load.Result, len(requests))}
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() {
			res := m.client.Stream(ctx, r, func(session string, p load.Piece) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.streams[i].session = session
				s.streams[i].tokens += len(p.IDs)
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			s.results[i], s.streams[i].ended = res, true
		})
	}
	go func() {
		wg.Wait()
		close(s.ended)
	}()
	return s
}

// running counts the streams that have not ended.
func (s *storm) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.streams {
		if !p.ended {
			n++
		}
	}
	return n
}

// reach waits until every stream has shown so many tokens.
func (s *storm) reach(t *testing.T, tokens int) {
	t.Helper()
	eventually(t, streamWithin, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, p := range s.streams {
			if p.ended && s.results[i].Err != nil {
				t.Fatalf("stream %d: %v", i, s.results[i].Err)
			}
			if p.tokens < tokens && !p.ended {
				return fmt.Errorf("stream %d has shown %d tokens of %d", i, p.tokens, tokens)
			}
		}
		return nil
	})
}

// wait returns what the clients saw once all streams have ended.
func (s *storm) wait(t *testing.T) []load.Result {
	t.Helper()
	select {
	case <-s.ended:
		return s.results
	case <-time.After(streamWithin):
		t.Fatalf("%d streams have not ended within %s", s.running(), streamWithin)
		return nil
	}
}

// unbroken runs the requests without a fault and demands that all end well.
func (m *mesh) unbroken(t *testing.T, requests []load.Request) []load.Result {
	t.Helper()
	results := m.storm(t.Context(), requests).wait(t)
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("unbroken stream %d: %v", i, r.Err)
		}
		if r.Tokens != requests[i].MaxTokens || r.Finish != "length" || len(r.IDs()) != r.Tokens {
			t.Fatalf("unbroken stream %d: %d tokens (%d ids), finish %q; want %d and length", i, r.Tokens, len(r.IDs()), r.Finish, requests[i].MaxTokens)
		}
	}
	return results
}

// judge demands that every client saw exactly what it would have seen unbroken.
func judge(t *testing.T, got, want []load.Result) {
	t.Helper()
	wrong, failed := 0, 0
	for i := range got {
		switch {
		case got[i].Err != nil:
			failed++
			t.Errorf("stream %d (session %s) failed after %d tokens: %v", i, got[i].Session, len(got[i].IDs()), got[i].Err)
		case !got[i].Same(want[i]):
			wrong++
			t.Errorf("stream %d (session %s): %s", i, got[i].Session, difference(got[i], want[i]))
		}
	}
	t.Logf("%d streams, %d errors, %d mismatches", len(got), failed, wrong)
}

// difference says where two answers part.
func difference(got, want load.Result) string {
	g, w := got.IDs(), want.IDs()
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("token %d is %d, unbroken %d", i, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d tokens (usage %d), finish %q; unbroken %d (usage %d), %q; same text: %t",
		len(g), got.Tokens, got.Finish, len(w), want.Tokens, want.Finish, got.Text() == want.Text())
}

// through waits until at least one session in one of the states runs through the
// node, and returns all of those.
func (m *mesh) through(t *testing.T, n *devmesh.Node, states ...string) []string {
	t.Helper()
	var out []string
	eventually(t, streamWithin, func() error {
		sessions, err := m.Entry().Sessions(t.Context())
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if slices.Contains(states, s.State) && slices.Contains(s.Route, n.Name()) {
				out = append(out, s.ID)
			}
		}
		if len(out) == 0 {
			return fmt.Errorf("no session in %q runs through %s", states, n.Name())
		}
		return nil
	})
	return out
}
