package sdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// fault kills the host of one stage of a request that is about to be made. Arm it,
// make the request, fire it (or let it watch the count of tokens), settle it.
type fault struct {
	mesh  *mesh
	stage int
	at    int       // tokens known to the session, prompt included, at which it fires by itself; 0: never
	armed time.Time // events before do not count
	old   []string  // sessions that were there before
	stop  context.CancelFunc
	ended chan struct{} // the watch has ended

	mu       sync.Mutex
	sessions []string
	route    []string
	routed   chan struct{} // closed once the route is known
	victim   *devmesh.Node // once it was killed
	err      error
}

// arm waits until some stage can lose a host, and begins to watch for the request.
// With at above 0 it kills once the session knows so many tokens.
func (m *mesh) arm(ctx context.Context, at int) (*fault, error) {
	stage, err := m.rotate(ctx)
	if err != nil {
		return nil, err
	}
	old, _, _, err := m.owned(ctx, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	f := &fault{
		mesh: m, stage: stage, at: at, armed: time.Now(), old: old,
		stop: cancel, ended: make(chan struct{}), routed: make(chan struct{}),
	}
	go f.watch(ctx)
	return f, nil
}

func (f *fault) watch(ctx context.Context) {
	defer close(f.ended)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ids, route, tokens, err := f.mesh.owned(ctx, f.old)
		if err != nil && ctx.Err() == nil {
			f.fail(err)
			return
		}
		f.saw(ids, route)
		if f.at > 0 {
			if tokens >= f.at {
				f.kill()
			}
			if tokens > 0 && ctx.Err() == nil {
				continue // a pause would miss the token
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f *fault) saw(ids, route []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if !slices.Contains(f.sessions, id) {
			f.sessions = append(f.sessions, id)
		}
	}
	if f.route == nil && route != nil {
		f.route = route
		close(f.routed)
	}
}

// fire kills the host, once the route is known, and returns when it did. It does
// nothing if the request has ended before.
func (f *fault) fire() {
	select {
	case <-f.routed:
		f.kill()
	case <-f.ended:
	}
}

func (f *fault) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.victim != nil || f.err != nil || f.route == nil {
		return
	}
	name := f.route[f.stage]
	n := f.mesh.Named(name)
	if n == nil {
		f.err = fmt.Errorf("the route names %s, which is no node of the mesh", name)
		return
	}
	if f.err = n.Kill(syscall.SIGKILL); f.err == nil {
		f.victim = n
	}
}

func (f *fault) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}

// settle ends the watch after the request has ended and starts the victim again,
// without waiting until it serves. It returns how the request was hit, or nil if it
// was not: no session of it failed over and recovered.
func (f *fault) settle(ctx context.Context) (hit *report.Failover, err error) {
	f.stop()
	<-f.ended
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || f.victim == nil {
		return nil, f.err
	}
	if err := restart(f.victim); err != nil {
		return nil, err
	}
	events, err := f.mesh.Entry().Events(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if e.Type == "recovered" && e.At.After(f.armed) && slices.Contains(f.sessions, e.Session) && e.Failover != nil {
			hit = e.Failover
		}
	}
	return hit, nil
}
