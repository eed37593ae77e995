package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// queue is what the machine sends to its own node. Only the loop touches it. It
// is as bounded as the machine's sessions are: each item answers one that was
// taken out.
type queue struct{ events []node.Event }

func (q *queue) push(ev node.Event) { q.events = append(q.events, ev) }

func (q *queue) pop() (node.Event, bool) {
	if len(q.events) == 0 {
		return nil, false
	}
	ev := q.events[0]
	q.events[0] = nil
	if q.events = q.events[1:]; len(q.events) == 0 {
		q.events = nil // let go of what the slice held
	}
	return ev, true
}

// post hands an event to the loop, waiting for room. It reports false when the
// loop has ended.
func (d *Daemon) post(ev node.Event) bool {
	select {
	case d.inbox <- ev:
		return true
	case <-d.ended:
		return false
	}
}

// queuedFrame is an Arrived in the inbox, with what it takes of Daemon.frames.
type queuedFrame struct {
	node.Arrived
	bytes int64
}

// postFrame is post for a frame of so many bytes: it waits for room for them too,
// so that large frames cannot fill the memory before they fill the inbox.
func (d *Daemon) postFrame(ev node.Arrived, bytes int64) bool {
	if !d.frames.TryAcquire(bytes) && !d.awaitBytes(bytes) {
		return false
	}
	return d.post(queuedFrame{ev, bytes})
}

// awaitBytes acquires bytes of Daemon.frames unless the loop ends before.
func (d *Daemon) awaitBytes(bytes int64) bool {
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-d.ended:
			cancel()
		case <-ctx.Done():
		}
	})
	err := d.frames.Acquire(ctx, bytes)
	cancel()
	watch.Wait()
	return err == nil
}

// release gives back what an event taken from the inbox held of Daemon.frames.
func (d *Daemon) release(ev node.Event) node.Event {
	f, ok := ev.(queuedFrame)
	if !ok {
		return ev
	}
	d.frames.Release(f.bytes)
	return f.Arrived
}

func (d *Daemon) now() kevlard.Instant { return kevlard.Instant(time.Since(d.start)) + 1 }

// loop owns the machine.
func (d *Daemon) loop(ctx context.Context) error {
	defer d.streams.end()
	defer close(d.ended)
	dog, err := newWatchdog()
	if err != nil {
		return err
	}
	defer dog.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var out []node.Effect
	published := kevlard.Instant(0)
	dirty := true
	generated := uint64(0) // tokens that were counted
	for {
		ev, ok := d.own.pop()
		if !ok {
			now := d.now()
			due := d.machine.Deadline()
			if dirty {
				if at := published.Add(snapshotEvery); now >= at {
					d.publishSnapshot(now)
					published, dirty = now, false
				} else {
					due = min(due, at)
				}
			}
			timer.Reset(max(0, due.Sub(now)))
			select {
			case <-ctx.Done():
				return nil
			case ev = <-d.inbox:
				ev = d.release(ev)
			case <-timer.C:
				if d.machine.Deadline() > d.now() {
					continue // it was for the snapshot
				}
				ev = node.Wake{}
			case <-dog.due():
				if err := dog.feed(); err != nil {
					return err
				}
				continue
			}
		}
		out = d.machine.Step(d.now(), ev, out[:0])
		if n := d.machine.Generated(); n > generated {
			d.metrics.generated.Add(float64(n - generated))
			generated = n
		}
		for _, e := range out {
			d.apply(e)
		}
		dirty = true
	}
}

// apply carries out one effect and never blocks.
func (d *Daemon) apply(e node.Effect) {
	switch e := e.(type) {
	case node.Send:
		d.send(e)
	case node.SendAll:
		d.sendAll(e)
	case node.SendFrame:
		d.sendFrame(e)
	case node.StartEngine:
		d.engines.start(e)
	case node.KillEngine:
		d.engines.killEngine(e)
	case node.RunBatch:
		d.engines.runBatch(e)
	case node.Export:
		d.engines.export(e)
	case node.SendStored:
		d.copies.sender.sendStored(e)
	case node.Load:
		d.engines.load(e)
	case node.StoreRows:
		d.copies.keeper.storeRows(e)
	case node.FreeSlots:
		d.copies.keeper.freeSlots(e)
	case node.DropRows:
		d.copies.keeper.dropRows(e)
	case node.Emit:
		if s := d.streams.get(e.Session); s != nil && s.emit(e.Token, e.Logprobs) {
			d.metrics.ttft.Observe(time.Since(s.submitted).Seconds())
		}
	case node.Replay:
		if s := d.streams.get(e.Session); s != nil {
			s.replay(e.Tokens, e.Logprobs)
		}
	case node.TakenOver:
		d.takeovers.answer(e.Number, e)
	case node.Found:
		d.finds.answer(e.Number, e)
	case node.Reused:
		if s := d.streams.get(e.Session); s != nil {
			s.reuse(e.Positions)
		}
	case node.Finish:
		d.finish(e)
	case node.Publish:
		if version, changed := d.records.publish(e); changed {
			d.ring.SetRecord(version)
		}
	case node.Report:
		d.report(e)
	default:
		panic(fmt.Sprintf("daemon: effect of unknown type %T", e))
	}
}

func (d *Daemon) finish(e node.Finish) {
	if e.Err != nil && (e.Err.Status == 429 || e.Err.Status == 503) {
		d.shed(e.Session, e.Err.Code, e.Err.Message)
	}
	if s := d.streams.remove(e.Session); s != nil {
		s.finish(Update{Reason: e.Reason, Err: e.Err, Failovers: e.Failovers})
	}
}

// report adds to the event log.
func (d *Daemon) report(r node.Report) {
	e := report.Event{
		At: time.Now().UTC(), Node: string(d.cfg.Name), Type: r.Type, Session: string(r.Session), Peer: string(r.Node),
		Cause: r.Cause, Detail: r.Detail, TookMS: millis(r.Took),
	}
	if f := r.Failover; f != nil {
		d.metrics.observeRecovery(*f)
		e.Failover = &report.Failover{AtToken: f.AtToken, DetectMS: millis(f.Detect), RerouteMS: millis(f.Reroute), RestoreMS: millis(f.Restore), Known: f.Known, From: f.From}
	}
	d.events.add(e)
}

// snapshot is what readers see. It is immutable.
type snapshot struct {
	at      kevlard.Instant
	node    node.Snapshot
	view    topology.View
	serving []serving        // by model, in the order of view.Models, without the strays
	strays  []topology.Model // their names mean other models
}

// serving says whether a model has a complete route now.
type serving struct {
	model   topology.Model
	ok      bool
	missing []kevlard.Layers
}

// board shows the last snapshot and lets readers wait for the next.
type board struct {
	mu   sync.Mutex
	cur  *snapshot
	next chan struct{} // closed and replaced with each snapshot
}

func newBoard() *board { return &board{cur: &snapshot{}, next: make(chan struct{})} }

func (b *board) put(s *snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cur = s
	close(b.next)
	b.next = make(chan struct{})
}

func (b *board) get() (*snapshot, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cur, b.next
}

func (d *Daemon) snapshot() *snapshot {
	s, _ := d.board.get()
	return s
}

func (d *Daemon) publishSnapshot(now kevlard.Instant) {
	s := &snapshot{at: now, node: d.machine.Snapshot(now)}
	s.view = s.node.View
	s.strays = s.view.Strays()
	for _, m := range s.view.Models() {
		if has(s.strays, m) {
			continue
		}
		ok, missing := d.machine.Servable(m)
		s.serving = append(s.serving, serving{m, ok, missing})
	}
	d.board.put(s)
}

// watchdog feeds systemd's watchdog from the loop, so that it barks when the loop
// is stuck. Without one, due never fires.
type watchdog struct{ ticker *time.Ticker }

func newWatchdog() (watchdog, error) {
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return watchdog{}, fmt.Errorf("read WATCHDOG_USEC: %w", err)
	}
	if limit == 0 {
		return watchdog{}, nil
	}
	return watchdog{time.NewTicker(limit / 3)}, nil
}

func (w watchdog) due() <-chan time.Time {
	if w.ticker == nil {
		return nil
	}
	return w.ticker.C
}

func (w watchdog) feed() error { return notify(systemd.SdNotifyWatchdog) }

func (w watchdog) stop() {
	if w.ticker != nil {
		w.ticker.Stop()
	}
}

// notify tells systemd; without NOTIFY_SOCKET it does nothing.
func notify(state string) error {
	if _, err := systemd.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify systemd of %q: %w", state, err)
	}
	return nil
}
