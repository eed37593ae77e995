package failstop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// errDropped ends the streams of a pipeline that broke.
var errDropped = errors.New("the pipeline broke")

// Balancer sends requests to the pipelines that are up. Its methods may be called
// from any goroutine.
type Balancer struct {
	mu        sync.Mutex
	pipelines []*pipeline
	changed   chan struct{} // closed and replaced when a pipeline comes up
}

type pipeline struct {
	client  *load.Client
	up      bool
	running int
	life    context.Context // of the streams; ends when it is dropped
	end     context.CancelCauseFunc
}

// New returns a balancer over pipelines that are all up, one client each.
func New(clients ...*load.Client) *Balancer {
	b := &Balancer{changed: make(chan struct{})}
	for _, c := range clients {
		p := &pipeline{client: c}
		p.rise()
		b.pipelines = append(b.pipelines, p)
	}
	return b
}

func (p *pipeline) rise() {
	p.up = true
	p.life, p.end = context.WithCancelCause(context.Background())
}

// Drop takes pipeline i out and makes its requests start over.
func (b *Balancer) Drop(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pipelines[i].up = false
	b.pipelines[i].end(errDropped)
}

// TakeBack lets pipeline i have requests again.
func (b *Balancer) TakeBack(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pipelines[i].up {
		return
	}
	b.pipelines[i].rise()
	close(b.changed)
	b.changed = make(chan struct{})
}

// Served is a request as its client saw it.
type Served struct {
	load.Result               // of the try that went through, but Sent is that of the first
	FirstShown  time.Duration // from the first sending to the first text of any try
	Restarts    int
}

// Stream sends the request, and again from its beginning whenever the pipeline under
// it breaks. It waits while none is up, until ctx ends.
func (b *Balancer) Stream(ctx context.Context, r load.Request) Served {
	out := Served{Result: load.Result{Sent: time.Now()}}
	sent := out.Sent
	for {
		p, life, err := b.pick(ctx)
		if err != nil {
			out.Err, out.Sent, out.Ended = err, sent, time.Now()
			return out
		}
		try, stop := context.WithCancelCause(ctx)
		unlink := context.AfterFunc(life, func() { stop(errDropped) })
		out.Result = p.client.Stream(try, r, nil)
		unlink()
		stop(nil)
		if len(out.Pieces) > 0 && out.FirstShown == 0 {
			out.FirstShown = out.Pieces[0].At.Sub(sent)
		}
		out.Sent = sent
		b.done(p)
		if out.Err == nil || life.Err() == nil || ctx.Err() != nil {
			return out // an error of a pipeline that is up is an error
		}
		out.Restarts++
	}
}

// pick returns the pipeline with the least streams, once one is up, and takes a place
// in it.
func (b *Balancer) pick(ctx context.Context) (*pipeline, context.Context, error) {
	for {
		b.mu.Lock()
		var best *pipeline
		for _, p := range b.pipelines {
			if p.up && (best == nil || p.running < best.running) {
				best = p
			}
		}
		changed := b.changed
		if best != nil {
			best.running++
			life := best.life
			b.mu.Unlock()
			return best, life, nil
		}
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-changed:
		}
	}
}

func (b *Balancer) done(p *pipeline) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.running--
}
