package ringbench

import (
	"context"
	"fmt"
	"time"
)

// gather makes all members know all, once they have started.
func (b *bench) gather(ctx context.Context) error {
	for began := time.Now(); ; {
		lacking := b.lacking()
		for _, i := range lacking {
			other := (i + 1 + b.rng.IntN(len(b.members)-1)) % len(b.members)
			b.members[i].meet(addrOf(other))
		}
		for _, m := range b.members {
			m.hush()
		}
		if len(lacking) == 0 {
			return nil
		}
		if time.Since(began) > settleLimit {
			return fmt.Errorf("%d of %d members do not show all within %v", len(lacking), len(b.members), settleLimit)
		}
		if err := sleep(ctx, poll); err != nil {
			return err
		}
	}
}

// lacking lists the members that do not show all.
func (b *bench) lacking() (out []int) {
	for i, m := range b.members {
		if m.alive() != len(b.members) {
			out = append(out, i)
		}
	}
	if len(out) > 0 {
		b.now("%d of %d members do not show all yet", len(out), len(b.members))
	}
	return out
}

// settle waits until every member shows every other as alive.
func (b *bench) settle(ctx context.Context) error {
	for began := time.Now(); ; {
		lacking := len(b.lacking())
		if lacking == 0 {
			return nil
		}
		if time.Since(began) > settleLimit {
			return fmt.Errorf("%d of %d members do not show all within %v", lacking, len(b.members), settleLimit)
		}
		if err := sleep(ctx, poll); err != nil {
			return err
		}
	}
}
