// Package lifecycle runs the parts of a process so that their lifetimes nest:
// parts are named from the bottom up, start in that order and stop in reverse,
// one after the other. So a part can still use everything under it while it
// drains, and when Run returns, all that was started has ended, or the error
// names what has not.
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"
)

// Part is one thing that runs. Run blocks until ctx is done or the part has
// failed, and returns after everything it started has ended.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
	// Grace is how long Run may take to return after its context is done.
	// 0 means DefaultGrace.
	Grace time.Duration
}

// DefaultGrace is the Grace of a part that names none.
const DefaultGrace = 5 * time.Second

// ErrOverdue marks a part that outlived its grace.
var ErrOverdue = errors.New("still running after its grace")

// Run starts all parts and blocks until ctx is done or one part returns; then it
// stops the others, top down. It returns nil if ctx ended the run, or a part
// returned nil, and all parts stopped in time without an error. Otherwise the
// error names every part that failed or outlived its grace. context.Canceled, or
// the cause of its context, is no failure of a part that was stopped.
//
// Each part runs in its own goroutine under the pprof label part=<name>. Its
// context carries ctx's values and, once it is stopped, the cause: that of ctx,
// or the name of the part that ended first.
func Run(ctx context.Context, parts ...Part) error {
	ended := make(chan *running, len(parts))
	all := make([]*running, len(parts))
	for i, p := range parts {
		all[i] = start(ctx, p, ended)
	}
	cause := context.Canceled
	if len(parts) > 0 {
		select {
		case <-ctx.Done():
			cause = context.Cause(ctx)
		case first := <-ended:
			cause = fmt.Errorf("part %s ended first", first.part.Name)
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		all[i].stop(cause)
	}
	errs := make([]error, len(all))
	for i, r := range all {
		errs[i] = r.result(cause)
	}
	return errors.Join(errs...)
}

// running is a part with its goroutine. err may be read after done is closed.
type running struct {
	part    Part
	grace   time.Duration
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error
	stopped bool // by us, before it ended by itself
	overdue bool
}

func start(ctx context.Context, p Part, ended chan<- *running) *running {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &running{part: p, grace: cmp.Or(p.Grace, DefaultGrace), cancel: cancel, done: make(chan struct{})}
	go pprof.Do(own, pprof.Labels("part", p.Name), func(ctx context.Context) {
		r.err = p.Run(ctx)
		close(r.done)
		ended <- r
	})
	return r
}

// stop ends one part, waiting no longer than its grace.
func (r *running) stop(cause error) {
	select {
	case <-r.done:
	default:
		r.stopped = true
	}
	r.cancel(cause)
	timer := time.NewTimer(r.grace)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		r.overdue = true
	}
}

// result is read after all parts were stopped. The error of a part that is still
// running is not known; one that ended late has both.
func (r *running) result(cause error) error {
	var late error
	if r.overdue {
		late = fmt.Errorf("part %s: %w of %v", r.part.Name, ErrOverdue, r.grace)
	}
	select {
	case <-r.done:
	default:
		return late
	}
	if r.err == nil || r.stopped && (errors.Is(r.err, context.Canceled) || errors.Is(r.err, cause)) {
		return late
	}
	return errors.Join(late, fmt.Errorf("part %s: %w", r.part.Name, r.err))
}
