package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/failstop"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
)

// side is one of the two systems that are compared under the same plan.
type side interface {
	// stream runs one request to its end.
	stream(ctx context.Context, variant int, r load.Request) arrival
	// breakHost breaks host i, from 0, now.
	breakHost(ctx context.Context, i int) error
	// mend brings host i back and returns when it serves again.
	mend(ctx context.Context, i int) error
}

// follow runs a plan: requests arrive and hosts break at its times. A host that takes
// longer to serve again than planned holds up the next fault.
func follow(ctx context.Context, s side, p measure.Schedule, requests []load.Request) ([]arrival, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	faults := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		err := outages(ctx, s, began, p.Faults)
		if err != nil {
			close(stop) // the rest would be measured without faults
		}
		faults <- err
	}()
	streams := openLoop(stop, listed(p.Arrivals), func(i int) arrival {
		v := i % len(requests)
		return s.stream(ctx, v, requests[v])
	})
	return streams, <-faults
}

func outages(ctx context.Context, s side, began time.Time, faults []measure.Outage) error {
	for _, f := range faults {
		if err := sleepUntil(ctx, began.Add(f.At)); err != nil {
			return err
		}
		if err := s.breakHost(ctx, f.Victim); err != nil {
			return err
		}
		if err := sleepUntil(ctx, began.Add(f.Mend)); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, settledWithin)
		err := s.mend(within, f.Victim)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// baseline is the fail-stop system: one ring for each pipeline.
type baseline struct {
	rings    []*devmesh.Mesh
	balancer *failstop.Balancer
	breaker  *Breaker
}

func newBaseline(rings []*devmesh.Mesh, breaker *Breaker) baseline {
	var clients []*load.Client
	for _, r := range rings {
		clients = append(clients, load.NewClient(r.Entry().APIURL()))
	}
	return baseline{rings, failstop.New(clients...), breaker}
}

// host returns host i of all pipelines together, and its pipeline.
func (b baseline) host(i int) (*devmesh.Node, int) {
	each := len(b.rings[0].Hosts())
	return b.rings[i/each].Hosts()[i%each], i / each
}

func (b baseline) stream(ctx context.Context, variant int, r load.Request) arrival {
	ctx, cancel := context.WithTimeout(ctx, streamWithin)
	defer cancel()
	s := b.balancer.Stream(ctx, r)
	return arrival{variant: variant, result: s.Result, firstShown: s.FirstShown, restarts: s.Restarts}
}

// breakHost tells the balancer at the same instant. Nothing in a fail-stop system
// notices a host that is only slow.
func (b baseline) breakHost(ctx context.Context, i int) error {
	n, pipeline := b.host(i)
	if b.breaker.Fault != Slow {
		b.balancer.Drop(pipeline)
	}
	_, err := b.breaker.Break(ctx, n)
	return err
}

func (b baseline) mend(ctx context.Context, i int) error {
	n, pipeline := b.host(i)
	if b.breaker.Fault == Slow {
		return b.breaker.Lift(ctx, n)
	}
	if err := b.breaker.Replace(ctx, n); err != nil {
		return err
	}
	if err := whole(ctx, b.rings[pipeline]); err != nil {
		return fmt.Errorf("bring fail-stop pipeline %d back: %w", pipeline+1, err)
	}
	b.balancer.TakeBack(pipeline)
	return nil
}

// whole waits until every node sees every other and has a link to it: a host that has
// come back is in the ring a little before all others reach it, and breaking its
// sibling meanwhile would be two faults at once.
func whole(ctx context.Context, mesh *devmesh.Mesh) error {
	if err := mesh.Ready(ctx); err != nil {
		return err
	}
	for _, n := range mesh.All() {
		for {
			s, err := n.Status(ctx)
			if err == nil {
				err = linked(s, len(mesh.All())-1)
			}
			if err == nil {
				break
			}
			if waitErr := sleepUntil(ctx, time.Now().Add(linkedEvery)); waitErr != nil {
				return fmt.Errorf("wait for the links of the mesh: %w: %w", waitErr, err)
			}
		}
	}
	return nil
}

// linked returns an error unless a node has a good link to so many peers.
func linked(s report.Status, peers int) error {
	up := 0
	for _, l := range s.Links {
		if l.Up && !l.Silent {
			up++
		}
	}
	if up < peers {
		return fmt.Errorf("%s has links to %d of %d peers", s.Node, up, peers)
	}
	return nil
}
