package weights

import (
	"context"
	"sync"
	"time"
)

// pacer keeps bytes to a rate: it remembers until when all that was taken is paid for.
type pacer struct {
	rate int64 // bytes a second; 0: no bound

	mu   sync.Mutex
	paid time.Time
}

// take takes n bytes and waits until they may pass, or ctx ends.
func (p *pacer) take(ctx context.Context, n int) error {
	wait := p.reserve(time.Now(), n)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pacer) reserve(now time.Time, n int) time.Duration {
	if p.rate == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := now.Add(-burst); p.paid.Before(first) {
		p.paid = first
	}
	wait := p.paid.Sub(now)
	p.paid = p.paid.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	return wait
}
