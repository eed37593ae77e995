package rdma

import (
	"errors"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/rdma/flow"
)

// end is what both ends of a connection have: outgoing and guest.
type end struct {
	mover *Mover
	node  kevlard.NodeID // the peer
	rail  int            // index of the device
	queue Queue
	mem   *block        // the own half of the ring, and behind it slots for grants
	peer  flow.Endpoint // with the memory that may be written there

	broken   chan struct{} // closed by Fail
	failOnce sync.Once
	why      error // of Fail

	// Guarded by the owner's lock, if it has one.
	out   poster
	heard time.Time // when the peer last said something, or began to owe it
	grace bool      // it was overdue once since
}

func newEnd(m *Mover, node kevlard.NodeID, rail int, q Queue, depth int, mem *block, peer flow.Endpoint) *end {
	return &end{
		mover: m, node: node, rail: rail, queue: q, mem: mem, peer: peer,
		broken: make(chan struct{}), out: newPoster(q, depth), heard: time.Now(),
	}
}

// Fail breaks the connection. run does the rest.
func (e *end) Fail(err error) {
	e.failOnce.Do(func() {
		e.why = err
		close(e.broken)
		// If it cannot be told so, it is destroyed all the same.
		_ = e.queue.Fail()
		e.queue.Wake()
	})
}

// cause is why the connection broke, nil if it did not.
func (e *end) cause() error {
	select {
	case <-e.broken:
		return e.why
	default:
		return nil
	}
}

// say posts an immediate alone; done, if not nil, is called when it was sent.
func (e *end) say(i flow.Imm, done func()) error { return e.out.post(done, e.word(i)) }

// word is a write without bytes. It names the peer's memory, since some cards look at the
// key even so.
func (e *end) word(i flow.Imm) Work {
	return Work{Addr: e.peer.Addr, RKey: e.peer.RKey, Imm: i}
}

// hello says the first word, with as many bytes as the largest packet has, or as may be
// written there: that neither they nor the key get lost on the way is what is to be known.
func (e *end) hello() error {
	own := e.mem.regions[0]
	w := e.word(flow.Say(flow.Hello, 0))
	w.Local, w.LKey, w.Bytes = own.Addr, own.LKey, min(flow.UnitBytes, e.peer.Size)
	return e.out.post(nil, w)
}

// take handles completions: told gets what the peer says.
func (e *end) take(dones []Done, told func(Done) error) error {
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
		e.heard, e.grace = time.Now(), false
		if err := e.queue.Receive(received); err != nil {
			return err
		}
	}
	for _, d := range dones {
		var err error
		if d.Receive {
			err = told(d)
		} else {
			err = e.out.done(d.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// discard takes down what never ran.
func (e *end) discard() error { return errors.Join(e.queue.Close(), e.mem.close()) }
