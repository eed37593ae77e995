package sdk

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/openai/openai-go/v3"
)

// A kill that comes too late has shown nothing and is tried again, a little earlier:
// a token takes two milliseconds.
const tries = 16

// moment is when a host dies under a request.
type moment struct {
	name string
	// of returns after how many units (chunks of a stream, tokens of a whole answer) of
	// n; an even later try comes earlier.
	of func(n, try int) int
}

func moments() []moment {
	return []moment{
		{"kill at token 1", func(int, int) int { return 1 }},
		{"kill half way", func(n, _ int) int { return n / 2 }},
		{"kill as the last chunk is due", func(n, try int) int { return max(1, n-1-try) }},
	}
}

// suite is what the rows of one client share.
type suite struct {
	*mesh
	client openai.Client
}

// matrix runs a row streamed and not, unbroken and under every fault.
func (s *suite) matrix(t *testing.T, r row) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r = r.with(s.ModelName(), "", nil)
	var text string
	if r.StopAt != nil || r.Decoys != nil {
		without := s.unbroken(ctx, t, row{Endpoint: r.Endpoint, Body: r.Body, Finish: "length"}, false)
		var stops []string
		stops, text = r.stops(without.choices[0].text)
		if r = r.with(s.ModelName(), "stop", stops); len(stops) == 1 {
			r = r.with(s.ModelName(), "stop", stops[0])
		}
	}
	want := s.unbroken(ctx, t, r, false)
	if r.StopAt != nil || r.Decoys != nil {
		if got := want.choices[0].text; got != text {
			t.Fatalf("with stop strings %q the answer is %q, want %q", r.Body["stop"], got, text)
		}
	}
	streamed := s.unbroken(ctx, t, r, true)
	if err := streamed.same(want); err != nil {
		t.Fatalf("streamed and not differ: %v", err)
	}
	for _, m := range moments() {
		t.Run(m.name, func(t *testing.T) { s.killed(t, r, want, false, m) })
		t.Run(m.name+", streamed", func(t *testing.T) { s.killed(t, r, streamed, true, m) })
	}
}

func (s *suite) unbroken(ctx context.Context, t *testing.T, r row, streamed bool) *answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	a, err := ask(ctx, s.client, r, streamed, nil)
	if err == nil && r.Name != "" {
		err = a.check(r, s.ModelName(), streamed)
	}
	if err != nil {
		t.Fatalf("unbroken, streamed %t: %v", streamed, err)
	}
	return a
}

// killed runs the row until a host of its route was killed under it at the moment.
func (s *suite) killed(t *testing.T, r row, want *answer, streamed bool, m moment) {
	for try := range tries {
		hit, err := s.attempt(t.Context(), r, want, streamed, m, try)
		if err != nil {
			t.Fatal(err)
		}
		if hit != nil {
			t.Logf("failed over after %d tokens, at try %d", hit.AtToken, try+1)
			return
		}
	}
	t.Fatalf("the host was killed too late %d times: nothing was shown", tries)
}

func (s *suite) attempt(ctx context.Context, r row, want *answer, streamed bool, m moment, try int) (hit *report.Failover, err error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	at, size := 0, 0
	if streamed {
		size = want.sizes[m.of(len(want.sizes), try)-1]
	} else {
		at = int(want.usage.prompt)/max(1, r.Prompts) + m.of(int(want.usage.completion)/len(want.choices), try)
	}
	f, err := s.arm(ctx, at)
	if err != nil {
		return nil, err
	}
	fired := false
	got, err := ask(ctx, s.client, r, streamed, func(n int) {
		if streamed && n >= size && !fired {
			fired = true
			f.fire()
		}
	})
	hit, settleErr := f.settle(ctx)
	if err == nil {
		err = got.check(r, s.ModelName(), streamed)
	}
	if err == nil {
		err = got.same(want)
	}
	if err != nil {
		err = fmt.Errorf("%s, try %d, stage %d of the route %q, sessions %q: %w", m.name, try, f.stage, f.route, f.sessions, err)
	}
	return hit, errors.Join(err, settleErr)
}
