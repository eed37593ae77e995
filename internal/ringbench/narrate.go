package ringbench

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// narrate tells now and then, by the host's clock, what is going on, until the function
// that it returns is called. It also notices the end of Limit.
func (b *bench) narrate() (quiet func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	began := time.Now()
	all.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if b.cfg.Limit > 0 && time.Since(began) >= b.cfg.Limit {
				b.late.Store(true)
			}
			if what := b.phase.Load(); n%narrateEvery == 0 && what != nil {
				b.cfg.Progress(fmt.Sprintf("%v: %s", time.Since(began).Round(time.Second), *what))
			}
		}
	})
	return func() {
		close(done)
		all.Wait()
	}
}

// now notes what is going on.
func (b *bench) now(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.phase.Store(&text)
}

// pass lets time pass, or a part of it if Limit is over.
func (b *bench) pass(ctx context.Context, d time.Duration, what string) error {
	for began := time.Now(); ; {
		left := d - time.Since(began)
		if left <= 0 || b.late.Load() && d-left >= least {
			return nil
		}
		b.now("%s, %v to go", what, left.Round(time.Second))
		if err := sleep(ctx, min(left, time.Second)); err != nil {
			return err
		}
	}
}
