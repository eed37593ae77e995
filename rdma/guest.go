package rdma

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/rdma/flow"
)

// guest is one accepted connection. All but fail, leave and place runs in its own
// goroutine.
type guest struct {
	mover *Mover
	key   guestKey
	rail  int
	setup flow.Setup // the peer's
	queue Queue
	mem   *block // the receiver's half of the ring, and behind it grants to be written

	broken   chan struct{} // closed by fail
	failOnce sync.Once
	why      error
	leaving  chan struct{} // closed by leave
	gone     chan struct{} // closed when it is no longer registered

	flow   flow.Taking
	out    poster
	bodies map[uint32]*arriving // of asks whose pieces were not handed on
	heads  map[int]message      // of messages in the ring, by offset
	heard  time.Time
	grace  bool

	mu     sync.Mutex
	places []placed // that staging gave, and run has not seen
	ended  bool     // run sees no more
}

// arriving is a body that was asked for.
type arriving struct {
	number  uint32
	message message
	buffer  []byte // the handler's
	request *request
	staged  *place
}

// errParted ends a connection in peace.
var errParted = errors.New("all was handed on")

// placed is a place for a body.
type placed struct {
	body *arriving
	place
}

func newGuest(m *Mover, key guestKey, rail int, q Queue, mem *block, setup flow.Setup) *guest {
	return &guest{
		mover: m, key: key, rail: rail, setup: setup, queue: q, mem: mem, out: newPoster(q, guestDepth),
		broken: make(chan struct{}), leaving: make(chan struct{}), gone: make(chan struct{}),
		bodies: map[uint32]*arriving{}, heads: map[int]message{}, heard: time.Now(),
	}
}

// fail breaks the connection. run does the rest.
func (g *guest) fail(err error) {
	g.failOnce.Do(func() {
		g.why = err
		close(g.broken)
		// If it cannot be told so, it is destroyed all the same.
		_ = g.queue.Fail()
		g.queue.Wake()
	})
}

// leave has the peer told that the connection ends; called once.
func (g *guest) leave(err error) {
	close(g.leaving)
	g.queue.Wake()
	time.AfterFunc(goneGrace, func() { g.fail(err) })
}

func (g *guest) cause() error {
	select {
	case <-g.broken:
		return g.why
	default:
		return nil
	}
}

// run takes pieces until the connection ends, and takes it down.
func (g *guest) run() {
	var dones [pollBatch]Done
	parted, told := false, false
	for g.cause() == nil {
		n, err := g.queue.Wait(g.deadline(), dones[:])
		if err == nil {
			err = g.take(dones[:n])
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			err = g.overdue(time.Now())
		}
		if err == nil {
			err = g.grantPlaced()
		}
		if err == nil {
			err = g.deliver()
		}
		if err == nil && !parted && g.flow.Part() {
			parted = true
			err = g.out.post(func() { g.fail(errParted) }, g.word(flow.Say(flow.Parted, 0)))
		}
		select {
		case <-g.leaving:
			if !told && err == nil {
				told = true
				err = g.out.post(func() { g.fail(errors.New("this node ended the connection")) }, g.word(flow.Say(flow.Gone, 0)))
			}
		default:
		}
		if err != nil {
			g.fail(err)
		}
	}
	g.takeDown()
}

// deadline is when run has to look again though nothing happened.
func (g *guest) deadline() time.Time {
	until := g.heard.Add(g.patience())
	if g.flow.Waits() {
		until = earlier(until, time.Now().Add(probeEvery))
	}
	return until
}

// patience is how long the peer may be silent.
func (g *guest) patience() time.Duration {
	wait := keepAlive
	switch {
	case !g.flow.Heard():
		wait = handshakeTimeout
	case g.flow.Waits():
		wait = g.mover.cfg.Stall
	}
	if g.grace {
		wait += kevlard.LateGrace // see outgoing.patienceLocked
	}
	return wait
}

// overdue probes a silent peer, and is an error if it owes for too long.
func (g *guest) overdue(now time.Time) error {
	owes := !g.flow.Heard() || g.flow.Waits()
	switch {
	case now.Sub(g.heard) < g.patience() && !g.flow.Waits():
		return nil
	case now.Sub(g.heard) < g.patience():
	case !owes:
		g.heard = now
	case !g.grace:
		g.grace, g.heard = true, now.Add(-g.patience())
	case !g.flow.Heard():
		return fmt.Errorf("no word over the fabric within %v", handshakeTimeout)
	default:
		return fmt.Errorf("no body for %v after a place was granted", g.mover.cfg.Stall)
	}
	if !g.flow.Heard() {
		return nil // it may not be connected
	}
	return g.out.probe(now, g.word(0))
}

// word is a write without bytes; see outgoing.word.
func (g *guest) word(i flow.Imm) Work {
	return Work{Addr: g.setup.Endpoint.Addr, RKey: g.setup.Endpoint.RKey, Imm: i}
}

// take handles completions.
func (g *guest) take(dones []Done) error {
	received := 0
	for _, d := range dones {
		if d.Err != nil {
			return d.Err
		}
		if d.Receive {
			received++
		}
	}
	if received > 0 {
		g.heard, g.grace = time.Now(), false
		if err := g.queue.Receive(received); err != nil {
			return err
		}
	}
	for _, d := range dones {
		var err error
		if d.Receive {
			err = g.told(d)
		} else {
			err = g.out.done(d.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// told does what the peer says.
func (g *guest) told(d Done) error {
	if d.Imm.Kind() == flow.Piece {
		return g.arrived(d)
	}
	h, err := g.flow.Take(d.Imm)
	if err != nil {
		return err
	}
	switch h.Kind {
	case flow.Hello:
		return g.out.post(nil, g.word(flow.Say(flow.Hello, 0)))
	case flow.Body:
		return g.landed(g.bodies[h.Number])
	case flow.Withdraw:
		if b := g.bodies[h.Number]; b != nil {
			g.abandon(b)
			delete(g.bodies, h.Number)
		}
		if h.Refuse {
			return g.out.post(nil, g.word(flow.Say(flow.Refuse, h.Number)))
		}
	}
	return nil
}

// takeDown ends everything after the last Wait.
func (g *guest) takeDown() {
	err := g.queue.Close() // from here on the card touches nothing
	for _, b := range g.bodies {
		g.abandon(b)
	}
	g.mu.Lock()
	g.ended = true
	places := g.places
	g.places = nil
	g.mu.Unlock()
	for _, p := range places {
		g.mover.inco.put(p.place)
	}
	if err := errors.Join(err, g.mem.close()); err != nil {
		g.mover.cfg.Log.Warn("RDMA connection was not taken down cleanly", "peer", g.key.node, "err", err)
	}
	g.mover.cfg.Log.Debug("RDMA connection from a peer ended", "peer", g.key.node, "slot", g.key.slot, "why", g.cause())
	g.mover.depart(g)
}

// discard takes down what never ran.
func (g *guest) discard() error { return errors.Join(g.queue.Close(), g.mem.close()) }
