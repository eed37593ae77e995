package lifecycle_test

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kevlard/kevlard/internal/lifecycle"
)

// trace collects what parts do, in order.
type trace struct {
	mu    sync.Mutex
	lines []string
}

func (t *trace) add(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, s)
}

func (t *trace) list() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}

// part drains for the given time after it is stopped.
func (t *trace) part(name string, drain, grace time.Duration) lifecycle.Part {
	return lifecycle.Part{Name: name, Grace: grace, Run: func(ctx context.Context) error {
		<-ctx.Done()
		t.add("stop " + name)
		time.Sleep(drain)
		t.add("end " + name)
		return context.Cause(ctx)
	}}
}

func TestStopsTopDownDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr trace
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		err := lifecycle.Run(ctx, tr.part("mesh", time.Second, 2*time.Second), tr.part("loop", 3*time.Second, 5*time.Second), tr.part("api", 0, 0))
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("took %v, want 1 s of running, 3 s and 1 s of draining", took)
		}
		want := []string{"stop api", "end api", "stop loop", "end loop", "stop mesh", "end mesh"}
		if got := tr.list(); !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestFailureStopsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr trace
		boom := errors.New("boom")
		err := lifecycle.Run(t.Context(), tr.part("low", 0, time.Second),
			lifecycle.Part{Name: "middle", Run: func(context.Context) error { return boom }}, tr.part("high", 0, time.Second))
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "part middle: boom") {
			t.Errorf("error %v, want that of part middle", err)
		}
		if strings.Contains(err.Error(), "low") || strings.Contains(err.Error(), "high") {
			t.Errorf("error %v blames parts that were stopped", err)
		}
		if got, want := tr.list(), []string{"stop high", "end high", "stop low", "end low"}; !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestEndingWithoutErrorStopsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		err := lifecycle.Run(t.Context(),
			lifecycle.Part{Name: "low", Run: func(ctx context.Context) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return ctx.Err()
			}},
			lifecycle.Part{Name: "high", Run: func(context.Context) error { return nil }})
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		if cause == nil || !strings.Contains(cause.Error(), "high") {
			t.Errorf("cause %v, want it to name part high", cause)
		}
	})
}

func TestOverduePartIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		err := lifecycle.Run(ctx,
			lifecycle.Part{Name: "low", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }},
			lifecycle.Part{Name: "stuck", Grace: 2 * time.Second, Run: func(context.Context) error { <-release; return nil }})
		if !errors.Is(err, lifecycle.ErrOverdue) || !strings.Contains(err.Error(), "stuck") || strings.Contains(err.Error(), "low") {
			t.Errorf("error %v, want one that names part stuck alone", err)
		}
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("took %v, want 1 s of running and 2 s of grace", took)
		}
		close(release)
	})
}

func TestCauseAndLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quit := errors.New("SIGTERM")
		ctx, cancel := context.WithCancelCause(t.Context())
		var label string
		err := lifecycle.Run(ctx, lifecycle.Part{Name: "only", Run: func(ctx context.Context) error {
			label, _ = pprof.Label(ctx, "part")
			cancel(quit)
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		if err != nil {
			t.Errorf("error %v: a part may return the cause that stopped it", err)
		}
		if label != "only" {
			t.Errorf("pprof label %q, want the part's name", label)
		}
	})
}

func TestNoParts(t *testing.T) {
	if err := lifecycle.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
