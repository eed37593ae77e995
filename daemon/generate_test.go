package daemon_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/kevlard/kevlard"
)

func TestOneNode(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 4), span(4, 8))
	r.ready()
	j := newJob(3, 50)
	exact(t, j, generate(t.Context(), m, j, nil))
	r.idle()
}

func TestPipelines(t *testing.T) {
	t.Parallel()
	for _, cuts := range [][]kevlard.Layers{
		{span(0, 3), span(3, 8)},
		{span(0, 2), span(2, 4), span(4, 6), span(6, 8)},
	} {
		r := newRing(t)
		names := []kevlard.NodeID{"a", "b", "c", "d"}
		for i, l := range cuts {
			r.start(names[i], l)
		}
		gateway := r.start("gate")
		r.ready()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				j := newJob(i, 60)
				exact(t, j, generate(t.Context(), gateway, j, nil))
			})
		}
		all.Wait()
		r.idle()
	}
}

func TestRefusals(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 8))
	r.ready()
	for name, c := range map[string]struct {
		change func(*job)
		code   string
	}{
		"no prompt":     {func(j *job) { j.req.Prompt = nil }, "invalid_request"},
		"no tokens":     {func(j *job) { j.req.MaxTokens = 0 }, "invalid_request"},
		"bad token":     {func(j *job) { j.req.Prompt = []kevlard.Token{1000} }, "invalid_request"},
		"too long":      {func(j *job) { j.req.MaxTokens = 1024 }, "context_length_exceeded"},
		"no such model": {func(j *job) { j.req.Model = kevlard.Digest{1} }, "model_not_found"},
		"long name":     {func(j *job) { j.name = kevlard.SessionID(strings.Repeat("n", 102)) }, "invalid_request"},
		"hot":           {func(j *job) { j.req.Sampling.Temperature = -1 }, "invalid_request"},
	} {
		j := newJob(1, 10)
		c.change(&j)
		_, err := m.Generate(t.Context(), j.name, j.req)
		var f *kevlard.Failure
		if !errors.As(err, &f) || f.Code != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestOneStreamPerSession(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 8))
	r.ready()
	j := newJob(1, 900)
	s, err := m.Generate(t.Context(), j.name, j.req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Generate(t.Context(), j.name, j.req)
	var f *kevlard.Failure
	if !errors.As(err, &f) || f.Status != 409 {
		t.Errorf("second stream of a running session: %v, want 409", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.idle()
}

// TestNamesDoNotReachTheMesh runs one name at two gateways at once, then again, and
// two sessions without one: each must have an id of its own.
func TestNamesDoNotReachTheMesh(t *testing.T) {
	r := newRing(t)
	one, two := r.start("gate-1"), r.start("gate-2")
	r.start("a", span(0, 8))
	r.ready()
	seen := map[kevlard.SessionID]bool{}
	for round := range 2 {
		var all sync.WaitGroup
		for i, m := range []*member{one, two, one, two} {
			j := newJob(i, 40)
			j.name = kevlard.SessionID([]string{strings.Repeat("x", 101), ""}[i/2])
			s, err := m.Generate(t.Context(), j.name, j.req)
			if err != nil {
				t.Fatalf("round %d, %d: %v", round, i, err)
			}
			if seen[s.ID()] || len(s.ID()) > 128 || !strings.HasPrefix(string(s.ID()), string(j.name)) {
				t.Errorf("round %d, %d: id %q", round, i, s.ID())
			}
			seen[s.ID()] = true
			all.Go(func() { exact(t, j, read(t.Context(), s, nil)) })
		}
		all.Wait()
	}
	r.idle()
}

// TestCancelFreesAllStages ends clients after some tokens, during prefill and
// before the first token; every stage must be free and the other streams exact.
func TestCancelFreesAllStages(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	gateway := r.start("gate")
	r.start("a", span(0, 4))
	r.start("b", span(4, 8))
	r.ready()
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			if i%4 == 0 {
				j := newJob(i, 200)
				exact(t, j, generate(t.Context(), gateway, j, nil))
				return
			}
			j := newJob(i, 800)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%4 == 1 {
				cancel()
			}
			res := generate(ctx, gateway, j, func(n int) {
				if n >= i%4 {
					cancel()
				}
			})
			if res.err != nil || res.end.Reason != "cancelled" {
				t.Errorf("%s ended with %q, %v, want cancelled", j.name, res.end.Reason, res.err)
			}
		})
	}
	all.Wait()
	r.idle()
}
