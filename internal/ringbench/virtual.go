package ringbench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// cancelPoll is how often, in virtual time, the caller's context is looked at.
const cancelPoll = 100 * time.Millisecond

// drained is how long after the end memberlist's last timers may run.
const drained = time.Minute

// inVirtualTime runs do in a bubble of testing/synctest. That asks for a test to report to;
// here it is one that nobody reads, since do returns its error. The caller's context can't
// be waited for in a bubble, where only what was made in it lets time go on: it is looked at.
func inVirtualTime(caller context.Context, do func(context.Context) error) (err error) {
	synctest.Test(new(testing.T), func(*testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		go func() {
			for ctx.Err() == nil {
				if caller.Err() != nil {
					cancel(context.Cause(caller))
				}
				time.Sleep(cancelPoll)
			}
		}()
		err = do(ctx)
		cancel(nil)
		time.Sleep(drained)
	})
	return err
}
