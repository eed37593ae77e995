package flow

import "fmt"

// Taking is the receiver's end of a connection. The zero value is a new one.
type Taking struct {
	ring   ring
	told   uint32  // units that the sender knows to be free
	queue  []entry // messages in the ring, in order
	heard  bool    // hello came
	byed   bool
	parted bool
}

type state uint8

const (
	ready   state = iota // whole, or its body arrived
	asking               // no place yet
	granted              // the sender writes
	dropped              // refused or withdrawn
)

// entry is a message in the ring.
type entry struct {
	offset int
	takes  uint32
	number uint32
	ask    bool
	state  state
}

// Arrived finds the message that an immediate of kind Piece names: its offset. What it is
// must then be told by Whole or Asked.
func (t *Taking) Arrived(i Imm) (offset int, err error) {
	if t.byed {
		return 0, fmt.Errorf("%v: after bye", i)
	}
	at := i.Arg()
	if want := t.ring.used % RingUnits; at != want && at != 0 {
		return 0, fmt.Errorf("%v: the next message is at unit %d or 0", i, want)
	}
	return int(at) * UnitBytes, nil
}

// Whole takes a message of size bytes at an offset that holds a whole piece.
func (t *Taking) Whole(offset, size int) error {
	return t.add(entry{offset: offset, state: ready}, size)
}

// Asked takes a message that asks for a place. It is to be answered by Granted or Refused.
func (t *Taking) Asked(offset, size int, number uint32) error {
	open := 0
	for _, e := range t.queue {
		if e.ask && e.number == number {
			return fmt.Errorf("ask %d: asked twice", number)
		}
		if e.ask && (e.state == asking || e.state == granted) {
			open++
		}
	}
	if open >= Window {
		return fmt.Errorf("ask %d: %d are open already", number, open)
	}
	return t.add(entry{offset: offset, number: number, ask: true, state: asking}, size)
}

func (t *Taking) add(e entry, size int) error {
	at, takes, ok := t.ring.take(units(size))
	if !ok || int(at)*UnitBytes != e.offset {
		return fmt.Errorf("a message of %d bytes at %d: it should be at %d, with %d of %d units in use", size, e.offset, int(at)*UnitBytes, t.ring.used-t.ring.freed, RingUnits)
	}
	e.takes = takes
	t.queue = append(t.queue, e)
	return nil
}

// Granted answers an ask that waits: the sender may write. False: it was withdrawn.
func (t *Taking) Granted(number uint32) bool { return t.answer(number, granted) }

// Refused answers an ask that waits: the piece is dropped.
func (t *Taking) Refused(number uint32) bool { return t.answer(number, dropped) }

func (t *Taking) answer(number uint32, s state) bool {
	e := t.open(number)
	if e == nil || e.state != asking {
		return false
	}
	e.state = s
	return true
}

// open returns the ask of a number that is asking or granted.
func (t *Taking) open(number uint32) *entry {
	for i := range t.queue {
		if e := &t.queue[i]; e.ask && e.number == number && (e.state == asking || e.state == granted) {
			return e
		}
	}
	return nil
}

// Heard is what the sender has said beside messages.
type Heard struct {
	Kind   Kind   // Body, Withdraw, Bye or Hello
	Number uint32 // of the ask, with Body and Withdraw
	// Dropped says, with Withdraw, that the ask was open: what is kept for it goes.
	Dropped bool
	// Refuse says that the ask had no answer yet: it is to be answered by refuse.
	Refuse bool
}

// Take understands an immediate other than a Piece. An error means that the peer breaks
// the protocol.
func (t *Taking) Take(i Imm) (Heard, error) {
	h := Heard{Kind: i.Kind()}
	switch h.Kind {
	case Hello:
		if t.heard {
			return h, fmt.Errorf("%v: said twice", i)
		}
		t.heard = true
		return h, nil
	case Bye:
		if t.byed {
			return h, fmt.Errorf("%v: said twice", i)
		}
		t.byed = true
		return h, nil
	case Body, Withdraw:
		h.Number = i.Arg()
		e := t.open(h.Number)
		switch {
		case e == nil:
			// A refusal may have crossed a withdrawal.
			if h.Kind == Withdraw {
				return h, nil
			}
			return h, fmt.Errorf("%v: no such ask is open", i)
		case h.Kind == Body && e.state != granted:
			return h, fmt.Errorf("%v: it was not granted", i)
		case h.Kind == Body:
			e.state = ready
		default:
			h.Dropped, h.Refuse = true, e.state == asking
			e.state = dropped
		}
		return h, nil
	}
	return h, fmt.Errorf("%v: a sender does not say it", i)
}

// Next is the oldest message, if it is to be handed on or dropped now.
func (t *Taking) Next() (offset int, deliver, ok bool) {
	if len(t.queue) == 0 || t.queue[0].state == asking || t.queue[0].state == granted {
		return 0, false, false
	}
	return t.queue[0].offset, t.queue[0].state == ready, true
}

// Done lets go of the message of Next. If the sender is to be told, it returns the
// immediate.
func (t *Taking) Done() (Imm, bool) {
	t.ring.freed += t.queue[0].takes
	t.queue[0] = entry{}
	if t.queue = t.queue[1:]; len(t.queue) == 0 {
		t.queue = nil
	}
	if t.ring.freed-t.told < creditUnits {
		return 0, false
	}
	return t.Credit(), true
}

// Credit is the immediate that tells what was let go of so far.
func (t *Taking) Credit() Imm {
	t.told = t.ring.freed
	return Say(Credit, t.ring.freed)
}

// Part reports, once, that bye was said and all was handed on.
func (t *Taking) Part() bool {
	if !t.byed || t.parted || len(t.queue) > 0 {
		return false
	}
	t.parted = true
	return true
}

// Waits reports whether the sender owes a body.
func (t *Taking) Waits() bool {
	for _, e := range t.queue {
		if e.state == granted {
			return true
		}
	}
	return false
}

// Heard reports whether hello came.
func (t *Taking) Heard() bool { return t.heard }
