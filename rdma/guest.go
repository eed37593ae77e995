package rdma

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/rdma/flow"
)

// guest is one accepted connection. All but Fail, bye and placed runs in its own
// goroutine.
type guest struct {
	*end
	conns.Guest
	leaving chan struct{} // closed by bye

	flow   flow.Taking
	bodies map[uint32]*arriving // of asks whose pieces were not handed on
	heads  map[int]message      // of messages in the ring, by offset

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

func newGuest(e *end, setup flow.Setup) *guest {
	g := &guest{end: e, leaving: make(chan struct{}), bodies: map[uint32]*arriving{}, heads: map[int]message{}}
	g.Guest = conns.Guest{Node: e.node, Slot: setup.Slot, Number: setup.Number, Incarnation: setup.Incarnation, End: g.Fail, Bye: g.bye}
	return g
}

// bye has the peer told that the connection ends; called once.
func (g *guest) bye(err error) {
	close(g.leaving)
	g.queue.Wake()
	time.AfterFunc(goneGrace, func() { g.Fail(err) })
}

// run takes pieces until the connection ends, and takes it down.
func (g *guest) run() {
	var dones [pollBatch]Done
	parted, told := false, false
	for g.cause() == nil {
		n, err := g.queue.Wait(g.deadline(), dones[:])
		if err == nil {
			err = g.take(dones[:n], g.told)
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
			err = g.say(flow.Say(flow.Parted, 0), func() { g.Fail(errParted) })
		}
		select {
		case <-g.leaving:
			if !told && err == nil {
				told = true
				err = g.say(flow.Say(flow.Gone, 0), func() { g.Fail(errors.New("this node ended the connection")) })
			}
		default:
		}
		if err != nil {
			g.Fail(err)
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
		wait = conns.HandshakeTimeout
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
		return fmt.Errorf("no word over the fabric within %v", conns.HandshakeTimeout)
	default:
		return fmt.Errorf("no body for %v after a place was granted", g.mover.cfg.Stall)
	}
	if !g.flow.Heard() {
		return nil // it may not be connected
	}
	return g.out.probe(now, g.word(0))
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
		return g.hello()
	case flow.Body:
		return g.landed(g.bodies[h.Number])
	case flow.Withdraw:
		if h.Dropped {
			g.abandon(g.bodies[h.Number])
			delete(g.bodies, h.Number)
		}
		if h.Refuse {
			return g.say(flow.Say(flow.Refuse, h.Number), nil)
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
		g.mover.cfg.Log.Warn("RDMA connection was not taken down cleanly", "peer", g.node, "err", err)
	}
	g.mover.cfg.Log.Debug("RDMA connection from a peer ended", "peer", g.node, "slot", g.Slot, "why", g.cause())
	g.mover.conns.Depart(&g.Guest)
}
