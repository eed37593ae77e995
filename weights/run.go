package weights

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/weights/plan"
)

// run carries out one plan. Its loop owns everything but what is behind a lock; calls,
// reading and writing are done by goroutines of work, each of which ends with an event.
type run struct {
	*job
	items   []item
	machine *plan.Machine
	begun   time.Time
	events  chan any
	lists   map[int]map[kevlard.Digest][]byte // of sums, by unit and digest
	cancels map[uint64]context.CancelFunc
	asked   map[kevlard.NodeID]time.Time // when nodes were asked what they have
	holders map[kevlard.NodeID]bool      // that the machine knows and may ask
	work    sync.WaitGroup               // bounded by the plan and by maxAsked
	err     error
	over    bool
}

// Events beside those of the plan.
type (
	described struct {
		node kevlard.NodeID
		d    Description
		ok   bool
	}
	listed struct {
		node kevlard.NodeID
		unit int
		sums []byte
	}
	came struct { // a chunk, kept or not
		node  kevlard.NodeID
		bytes int
		wrong bool
		ev    plan.Event
		unit  int
	}
	broken struct{ err error } // the disk failed
)

// run fetches items and returns when all are verified.
func (j *job) run(ctx context.Context, items []item) error {
	ctx, cancel := context.WithCancel(ctx)
	cfg := j.cfg.Timing
	cfg.Chunks = nil
	for _, it := range items {
		cfg.Chunks = append(cfg.Chunks, it.chunks())
	}
	if rate := j.cfg.Bandwidth; rate > 0 && cfg.ChunkTimeout == 0 {
		// So long the chunks that are under way wait for each other.
		wait := time.Duration(int64(16*ChunkBytes) * int64(time.Second) / rate)
		cfg.ChunkTimeout, cfg.SlowAfter = 15*time.Second+wait, 2*time.Second+wait
	}
	r := &run{
		job: j, items: items, machine: plan.New(cfg), begun: time.Now(), events: make(chan any),
		lists: map[int]map[kevlard.Digest][]byte{}, cancels: map[uint64]context.CancelFunc{},
		asked: map[kevlard.NodeID]time.Time{}, holders: map[kevlard.NodeID]bool{},
	}
	err := r.loop(ctx)
	cancel()
	r.work.Wait()
	return err
}

func (r *run) now() kevlard.Instant { return kevlard.Instant(time.Since(r.begun)) + 1 }

func (r *run) loop(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for _, n := range r.described() {
		r.asked[n] = time.Now()
		r.announce(ctx, n)
	}
	r.look(ctx)
	r.step(ctx, plan.Wake{})
	for !r.over {
		now := r.now()
		timer.Reset(min(max(0, r.machine.Deadline(now).Sub(now)), time.Hour))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case ev := <-r.events:
			r.take(ctx, ev)
		case <-look.C:
			r.look(ctx)
		case <-timer.C:
			r.step(ctx, plan.Wake{})
		}
	}
	return r.err
}

// look notices nodes that came and went, and asks what they have.
func (r *run) look(ctx context.Context) {
	nodes := r.cfg.Nodes(r.id)
	nodes = nodes[:min(len(nodes), maxAsked)]
	for n := range r.holders {
		if !slices.Contains(nodes, n) {
			delete(r.holders, n)
			delete(r.asked, n)
			r.step(ctx, plan.Gone{Node: n})
		}
	}
	for _, n := range nodes {
		if at, ok := r.asked[n]; ok && time.Since(at) < describeEvery || r.distrusted[n] != "" {
			continue
		}
		r.asked[n] = time.Now()
		r.spawn(ctx, func() any {
			d, ok := r.describe(ctx, n, r.id)
			return described{n, d, ok}
		})
	}
}

// spawn does something and hands the loop what it returns, unless the fetch ends before.
func (r *run) spawn(ctx context.Context, do func() any) {
	r.work.Go(func() {
		ev := do()
		select {
		case r.events <- ev:
		case <-ctx.Done():
		}
	})
}

// announce tells the machine what a node has, by its description.
func (r *run) announce(ctx context.Context, n kevlard.NodeID) {
	d := r.descriptions[n]
	ev := plan.Holder{Node: n, Rank: rank(r.cfg.Self, n), Units: make([]bool, len(r.items))}
	for i, it := range r.items {
		ev.Units[i] = d.has(it)
	}
	r.holders[n] = true
	r.step(ctx, ev)
}

// rank orders the holders of one fetcher unlike those of another.
func rank(self, n kevlard.NodeID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(self) + "\x00" + string(n))) // never fails
	return h.Sum64()
}

func (r *run) take(ctx context.Context, ev any) {
	if r.over {
		return
	}
	switch ev := ev.(type) {
	case described:
		if ev.ok && r.distrusted[ev.node] == "" {
			r.descriptions[ev.node] = ev.d
			r.announce(ctx, ev.node)
		}
	case listed:
		list := listOf(ev.sums)
		if r.lists[ev.unit] == nil {
			r.lists[ev.unit] = map[kevlard.Digest][]byte{}
		}
		r.lists[ev.unit][list] = ev.sums
		r.step(ctx, plan.Listed{Node: ev.node, Unit: ev.unit, List: list})
	case came:
		r.ended(ev.ev)
		r.cfg.Fetched(ev.bytes)
		r.progress.came(ev.node, ev.bytes, !ev.wrong)
		if ev.wrong {
			r.cfg.Rejected(ev.node, "a chunk of unit "+r.items[ev.unit].name+" that does not match its sum")
		}
		r.step(ctx, ev.ev)
		r.measure(ev.unit)
	case broken:
		r.err, r.over = ev.err, true
	case plan.Compared:
		r.step(ctx, ev)
		r.measure(ev.Unit)
	case plan.Checked:
		r.step(ctx, ev)
		if ev.OK {
			r.progress.unit(r.items[ev.Unit].name, r.items[ev.Unit].bytes, true)
			delete(r.lists, ev.Unit)
		}
	case plan.Event:
		r.ended(ev)
		r.step(ctx, ev)
	}
}

// ended lets go of the context of a request.
func (r *run) ended(ev plan.Event) {
	var id uint64
	switch ev := ev.(type) {
	case plan.Stored:
		id = ev.Request
	case plan.Wrong:
		id = ev.Request
	case plan.Failed:
		id = ev.Request
	}
	if cancel := r.cancels[id]; cancel != nil {
		cancel()
		delete(r.cancels, id)
	}
}

// measure tells how much of a unit is there; all chunks but the last are equal.
func (r *run) measure(n int) {
	it := r.items[n]
	r.progress.unit(it.name, max(0, it.bytes-int64(r.machine.Left(n))*ChunkBytes), false)
}

func (r *run) step(ctx context.Context, ev plan.Event) {
	for _, e := range r.machine.Step(r.now(), ev, nil) {
		r.apply(ctx, e)
	}
	waits := ""
	if r.machine.Waiting() {
		waits = "a unit is read, here or by who has it"
	}
	r.progress.waits(waits)
}

func (r *run) apply(ctx context.Context, e plan.Effect) {
	switch e := e.(type) {
	case plan.AskList:
		r.spawn(ctx, func() any { return r.askList(ctx, e) })
	case plan.Compare:
		it, sums := r.items[e.Unit], r.lists[e.Unit][e.List]
		r.spawn(ctx, func() any {
			have, err := r.store.compare(ctx, it, sums)
			if err != nil {
				return broken{err}
			}
			return plan.Compared{Unit: e.Unit, Have: have}
		})
	case plan.Ask:
		sums := r.lists[e.Unit][e.List]
		one, cancel := context.WithCancel(ctx)
		r.cancels[e.Request] = cancel
		r.spawn(one, func() any { return r.askChunk(one, e, sums) })
	case plan.Cancel:
		if cancel := r.cancels[e.Request]; cancel != nil {
			cancel()
			delete(r.cancels, e.Request)
		}
	case plan.Check:
		it, sums := r.items[e.Unit], r.lists[e.Unit][e.List]
		r.spawn(ctx, func() any {
			ok, damaged, err := r.store.check(ctx, it, sums)
			if err != nil {
				return broken{err}
			}
			return plan.Checked{Unit: e.Unit, OK: ok, Damaged: damaged}
		})
	case plan.Dropped:
		delete(r.holders, e.Node)
		if e.Wrong {
			r.distrust(e.Node, "it gave wrong bytes, or sums, of unit "+r.items[e.Unit].name)
		} else {
			r.progress.dropped(e.Node, "it does not answer")
		}
	case plan.Done:
		r.over = true
	case plan.GaveUp:
		r.over, r.err = true, r.gaveUp(e)
	}
}

func (r *run) gaveUp(e plan.GaveUp) error {
	var names []string
	for _, i := range append(e.Missing, e.Damaged...) {
		names = append(names, r.items[i].name)
	}
	list := strings.Join(names, ", ")
	if len(e.Damaged) > 0 {
		return fmt.Errorf("what is written to %s is not what is read back, of unit %s: check the disk", r.store.dir, list)
	}
	return r.nobody("no node that this one reaches has unit " + list)
}

// askList asks a holder for the sums of a unit.
func (r *run) askList(ctx context.Context, e plan.AskList) any {
	it := r.items[e.Unit]
	a, err := r.ask(ctx, e.Node, Request{Kind: ListSums, Unit: it.digest})
	if err == nil && a.Bytes != it.bytes {
		err = refuse(Absent, "its unit %s has %d bytes: want %d", it.name, a.Bytes, it.bytes)
	}
	if err != nil {
		r.cfg.Log.Debug("no sums of a unit", "peer", e.Node, "unit", it.name, "err", err)
		return plan.NotListed{Node: e.Node, Unit: e.Unit, Absent: lacks(err)}
	}
	return listed{e.Node, e.Unit, a.Sums}
}

// lacks reports whether asking again is of no use.
func lacks(err error) bool {
	no, ok := errors.AsType[*refused](err)
	return ok && (no.why == Absent || no.why == Damaged || no.why == Unspoken)
}

// askChunk asks for a chunk, checks it and writes it.
func (r *run) askChunk(ctx context.Context, e plan.Ask, sums []byte) any {
	it := r.items[e.Unit]
	size := chunkSize(it.bytes, e.Chunk)
	if err := r.pace.take(ctx, size); err != nil {
		return plan.Failed{Request: e.Request}
	}
	body, err := r.chunk(ctx, e.Node, it.digest, e.Chunk, size)
	if err != nil {
		r.cfg.Log.Debug("a chunk did not come", "peer", e.Node, "unit", it.name, "chunk", e.Chunk, "err", err)
		return plan.Failed{Request: e.Request, Absent: lacks(err)}
	}
	if !matches(body, sums, e.Chunk) {
		return came{e.Node, size, true, plan.Wrong{Request: e.Request}, e.Unit}
	}
	kept, err := r.store.write(it, e.Chunk, body, e.List)
	if err != nil {
		return broken{err}
	}
	if !kept { // the request was taken back meanwhile
		return plan.Failed{Request: e.Request}
	}
	return came{e.Node, size, false, plan.Stored{Request: e.Request}, e.Unit}
}

// chunk asks a node for a chunk and waits until it has come.
func (f *Fetcher) chunk(ctx context.Context, n kevlard.NodeID, unit kevlard.Digest, i, size int) ([]byte, error) {
	number := f.number.Add(1)
	d := &delivery{from: n, size: size, came: make(chan []byte, 1)}
	f.mu.Lock()
	f.awaited[number] = d
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.awaited, number)
		f.mu.Unlock()
	}()
	if _, err := f.ask(ctx, n, Request{Kind: SendChunk, Unit: unit, Chunk: i, Number: number}); err != nil {
		return nil, err
	}
	grace := time.NewTimer(pieceGrace)
	defer grace.Stop()
	select {
	case b := <-d.came:
		return b, nil
	case <-grace.C:
		return nil, fmt.Errorf("node %s says that it sent a chunk, which did not come within %v: is the bulk port open?", n, pieceGrace)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
