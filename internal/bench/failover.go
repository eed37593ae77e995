package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
)

// Failover measures the pauses that clients see when stage hosts break under load,
// and compares with a fail-stop system.
//
// It has two parts. In the first, hosts break one after another as fast as the mesh
// heals, each as soon as a stream runs through it: this gives many recoveries. In the
// second, kevlard and then the fail-stop system run the same plan: the same requests
// at the same times, the same victims, each out for as long as a restart takes. Only
// the second compares how long clients waited.
type Failover struct {
	Start    func(context.Context, devmesh.Options) (*devmesh.Mesh, error) // a mesh that serves
	Say      func(format string, args ...any)
	Mesh     devmesh.Options // hosts, stages, model, and what the fault needs
	Breaker  *Breaker
	RPS      float64
	Faults   int           // of the first part
	Compare  int           // faults of the second part; 0 leaves it out
	Tokens   int           // of each stream, at most
	Contexts Contexts      // at the fault
	Hold     time.Duration // of a fault, in the first part
	Restart  time.Duration // of a fault, in the second part
	Calm     time.Duration // between two faults of the second part
}

// Run runs both parts.
func (f Failover) Run(ctx context.Context) (FailoverReport, error) {
	r := FailoverReport{
		Nodes: f.Mesh.Nodes, Stages: f.Mesh.Stages, RPS: f.RPS, RestartS: f.Restart.Seconds(), Fault: f.Breaker.Fault,
		CompareFaults: f.Compare, Standbys: f.Mesh.Standbys, Each: []Recovery{},
	}
	opt := f.Mesh
	opt.Gateways = 1
	mesh, err := f.Start(ctx, opt)
	if err != nil {
		return r, err
	}
	run := trial{Failover: f, mesh: mesh, client: load.NewClient(mesh.Entry().APIURL()), board: newBoard()}
	err = run.kevlard(ctx, &r)
	run.client.CloseIdle()
	if err = errors.Join(err, mesh.Close()); err != nil || f.Compare == 0 {
		return r, err
	}
	return r, f.failstop(ctx, &r, run.requests, run.references)
}

// plan is what both systems run in the second part.
func (f Failover) plan() measure.Schedule {
	return measure.Plan(f.RPS, f.Compare, f.Mesh.Nodes, f.Restart, f.Calm)
}

// failstop runs the plan on one ring for each pipeline.
func (f Failover) failstop(ctx context.Context, r *FailoverReport, requests []load.Request, references []load.Result) (err error) {
	var rings []*devmesh.Mesh
	defer func() {
		for _, ring := range rings {
			err = errors.Join(err, ring.Close())
		}
	}()
	for _, o := range ringOptions(f.Mesh) {
		ring, err := f.Start(ctx, o)
		if err != nil {
			return err
		}
		rings = append(rings, ring)
	}
	f.Say("the same load and the same %d faults on fail-stop pipelines", f.Compare)
	busy, err := devmesh.MachineTime()
	if err != nil {
		return err
	}
	streams, err := follow(ctx, newBaseline(rings, f.Breaker), f.plan(), requests)
	if err != nil {
		return err
	}
	now, err := devmesh.MachineTime()
	if err != nil {
		return err
	}
	r.BusyPct.Failstop = now.BusySince(busy)
	out := outcome(streams, references, f.Say)
	r.Failstop = &out
	r.Ratio = ratios(r.Kevlard, out)
	return nil
}

// ringOptions returns what to start for the fail-stop system: a ring for each
// pipeline. No two of their nodes share an address or a group, by which a fault may
// choose its victim.
func ringOptions(mesh devmesh.Options) []devmesh.Options {
	var out []devmesh.Options
	for i := range mesh.Nodes / mesh.Stages {
		o := mesh
		o.Nodes, o.Gateways, o.Standbys, o.GatewayStandbys = mesh.Stages, 1, 0, []int{0}
		o.SkipAddresses = i * (o.Nodes + o.Gateways)
		if o.GroupBase > 0 {
			o.GroupBase += o.SkipAddresses
		}
		out = append(out, o)
	}
	return out
}

// trial breaks hosts of one kevlard mesh under load. It is a side of the comparison.
type trial struct {
	Failover
	mesh   *devmesh.Mesh
	client *load.Client
	board  *board

	requests   []load.Request
	references []load.Result // the unbroken run of each request

	mu     sync.Mutex
	broken []breakage
}

// breakage is one fault and the streams that ran through the victim.
type breakage struct {
	victim   string
	at       time.Time
	lifted   time.Time
	sessions map[string]progress
}

func (t *trial) kevlard(ctx context.Context, r *FailoverReport) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	streams, err := t.busy(&r.BusyPct.Recoveries, func() ([]arrival, error) { return t.recoveries(ctx) })
	if err != nil {
		return err
	}
	compared := streams
	if t.Compare > 0 {
		t.Say("the comparison: %d faults, each for %s", t.Compare, t.Restart)
		compared, err = t.busy(&r.BusyPct.Kevlard, func() ([]arrival, error) { return follow(ctx, t, t.plan(), t.requests) })
		if err != nil {
			return err
		}
		streams = append(streams, compared...)
	}
	events, err := t.mesh.Entry().Events(ctx)
	if err != nil {
		return err
	}
	if err := checkComplete(events, t.broken); err != nil {
		return err
	}
	r.Requests, r.Faults = len(streams), len(t.broken)
	judge(r, t.Contexts, streams, t.broken, events, t.Say)
	all := outcome(streams, t.references, t.Say)
	r.Kevlard = outcome(compared, t.references, func(string, ...any) {})
	r.Kevlard.Requests, r.Kevlard.Errors, r.Kevlard.Mismatches = all.Requests, all.Errors, all.Mismatches
	return nil
}

// busy runs one part and says how busy the machine was.
func (t *trial) busy(share *float64, part func() ([]arrival, error)) ([]arrival, error) {
	before, err := devmesh.MachineTime()
	if err != nil {
		return nil, err
	}
	out, err := part()
	if err != nil {
		return nil, err
	}
	now, err := devmesh.MachineTime()
	*share = now.BusySince(before)
	return out, err
}

// prepare writes the requests and runs each once without faults.
func (t *trial) prepare(ctx context.Context) error {
	prompter, err := NewPrompter(t.mesh.Model())
	if err != nil {
		return err
	}
	limit := t.mesh.Model().Context
	if err := t.Contexts.Check(limit); err != nil {
		return err
	}
	if t.requests, err = prompter.Requests(t.mesh.ModelName(), t.Contexts, t.Tokens, limit); err != nil {
		return err
	}
	began := time.Now()
	t.references = make([]load.Result, len(t.requests))
	var all errgroup.Group
	all.SetLimit(referencesAtOnce)
	for i, r := range t.requests {
		all.Go(func() error {
			t.references[i] = stream(ctx, t.client, i, r, nil).result
			if err := t.references[i].Err; err != nil {
				return fmt.Errorf("collect unbroken reference %d: %w", i+1, err)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	t.Say("%d unbroken references in %.1f s", len(t.references), time.Since(began).Seconds())
	return nil
}

// recoveries is the first part.
func (t *trial) recoveries(ctx context.Context) ([]arrival, error) {
	stop := make(chan struct{})
	streams := make(chan []arrival, 1)
	go func() {
		streams <- openLoop(stop, steadily(t.RPS), func(i int) arrival {
			v := i % len(t.requests)
			return t.stream(ctx, v, t.requests[v])
		})
	}()
	err := t.breakInTurn(ctx)
	close(stop)
	return <-streams, err
}

func (t *trial) breakInTurn(ctx context.Context) error {
	hosts := t.mesh.Hosts()
	turns := make([]int, len(hosts)) // how often each was broken
	for i := range t.Faults {
		host, err := t.awaitRipe(ctx, i, turns)
		if err != nil {
			return err
		}
		turns[host]++
		if err := t.breakHost(ctx, host); err != nil {
			return err
		}
		// Also so that one fault's recoveries end before the next.
		if err := sleepUntil(ctx, time.Now().Add(t.Hold)); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, settledWithin)
		err = t.mend(within, host)
		cancel()
		if err != nil {
			return err
		}
		t.Say("fault %d of %d: %s, %d streams ran through it", i+1, t.Faults, hosts[host].Name(), len(t.broken[len(t.broken)-1].sessions))
	}
	return nil
}

// awaitRipe waits until streams run through hosts that would have something to
// recover, and returns the host of these that was broken least often, counted from
// the i-th on in turn. It insists on no single host: on a machine with time to spare
// one pipeline may take all streams.
func (t *trial) awaitRipe(ctx context.Context, i int, turns []int) (int, error) {
	within, cancel := context.WithTimeout(ctx, busyWithin)
	defer cancel()
	tick := time.NewTicker(busyEvery)
	defer tick.Stop()
	for {
		all, err := t.mesh.Entry().Sessions(within)
		if err == nil {
			if host := choose(i, turns, func(host int) bool {
				return len(ripeThrough(all, t.mesh.Hosts()[host].Name(), t.board, t.Contexts)) > 0
			}); host >= 0 {
				return host, nil
			}
		}
		select {
		case <-within.Done():
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			return 0, errors.Join(err, fmt.Errorf("wait for a stream to break a host under: none within %s: raise --rps or --tokens", busyWithin))
		case <-tick.C:
		}
	}
}

// choose returns the ripe host that was broken least often, the first of these in the
// order of turns from the i-th on, or -1 if none is ripe.
func choose(i int, turns []int, ripe func(host int) bool) int {
	best := -1
	for j := range turns {
		host := measure.Victim(i+j, len(turns))
		if ripe(host) && (best < 0 || turns[host] < turns[best]) {
			best = host
		}
	}
	return best
}

// through returns the streams that decode through a host and have something to
// recover.
func (t *trial) through(ctx context.Context, n *devmesh.Node) (map[string]progress, error) {
	all, err := t.mesh.Entry().Sessions(ctx)
	if err != nil {
		return nil, err
	}
	return ripeThrough(all, n.Name(), t.board, t.Contexts), nil
}

func ripeThrough(all []report.Session, node string, b *board, c Contexts) map[string]progress {
	out := map[string]progress{}
	for _, s := range all {
		if p, ok := b.get(s.ID); ok && s.State == "decode" && slices.Contains(s.Route, node) && p.ripe(c) {
			out[s.ID] = p
		}
	}
	return out
}

func (t *trial) stream(ctx context.Context, variant int, r load.Request) arrival {
	return stream(ctx, t.client, variant, r, t.board.follow(variant, r))
}

func (t *trial) breakHost(ctx context.Context, i int) error {
	victim := t.mesh.Hosts()[i]
	sessions, err := t.through(ctx, victim)
	if err != nil {
		return err
	}
	at, err := t.Breaker.Break(ctx, victim)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, breakage{victim: victim.Name(), at: at, sessions: sessions})
	return nil
}

func (t *trial) mend(ctx context.Context, i int) error {
	lifted := time.Now()
	if err := t.Breaker.Lift(ctx, t.mesh.Hosts()[i]); err != nil {
		return err
	}
	t.mu.Lock()
	t.broken[len(t.broken)-1].lifted = lifted
	t.mu.Unlock()
	return whole(ctx, t.mesh)
}
