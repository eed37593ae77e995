package flow

import "fmt"

// Sending is the sender's end of a connection. The zero value is a new one.
type Sending struct {
	ring ring
	next uint32           // number of the next ask
	asks map[uint32]asked // without an answer, or granted and not yet written
	byed bool             // bye was said
}

// asked is an ask that waits for its answer, or then for its body to be written.
type asked struct{ withdrawn, granted bool }

// Told is what the receiver has said.
type Told struct {
	Kind   Kind   // Credit, Grant, Refuse, Hello, Parted or Gone
	Number uint32 // of the ask, with Grant and Refuse
	// Withdrawn says that the ask had been taken back: nobody waits for the answer.
	Withdrawn bool
}

// Reserve takes room in the ring for a message of size bytes and returns the offset of
// its first byte; false if there is none now.
func (s *Sending) Reserve(size int) (offset int, ok bool) {
	if s.byed {
		return 0, false
	}
	at, _, ok := s.ring.take(units(size))
	return int(at) * UnitBytes, ok
}

// At is the immediate of the message at an offset.
func At(offset int) Imm { return Say(Piece, uint32(offset/UnitBytes)) }

// CanAsk reports whether one more ask may be open.
func (s *Sending) CanAsk() bool { return len(s.asks) < Window && !s.slotBusy() }

// slotBusy reports whether the slot of the next ask belongs to an earlier one. Answers
// need not come in order.
func (s *Sending) slotBusy() bool {
	for n := range s.asks {
		if n%Window == s.next%Window {
			return true
		}
	}
	return false
}

// Ask begins an ask and returns its number; CanAsk must be true.
func (s *Sending) Ask() uint32 {
	if !s.CanAsk() {
		panic("rdma/flow: an ask beyond the window")
	}
	if s.asks == nil {
		s.asks = make(map[uint32]asked, Window)
	}
	n := s.next
	s.next = (s.next + 1) & argMask
	s.asks[n] = asked{}
	return n
}

// Slot returns the offset of an ask's grant among the slots.
func Slot(number uint32) int { return int(number%Window) * GrantBytes }

// Take understands an immediate. An error means that the peer breaks the protocol, or
// that memory is damaged: the connection must end.
func (s *Sending) Take(i Imm) (Told, error) {
	t := Told{Kind: i.Kind()}
	switch t.Kind {
	case Credit:
		more := (i.Arg() - s.ring.freed) & argMask
		if more > s.ring.used-s.ring.freed {
			return t, fmt.Errorf("%v: %d units more let go of, but only %d are in use", i, more, s.ring.used-s.ring.freed)
		}
		s.ring.freed += more
		return t, nil
	case Grant, Refuse:
		a, ok := s.asks[i.Arg()]
		if !ok || a.granted {
			return t, fmt.Errorf("%v: no such ask waits", i)
		}
		if t.Kind == Grant && !a.withdrawn {
			s.asks[i.Arg()] = asked{granted: true}
		} else {
			delete(s.asks, i.Arg())
		}
		t.Number, t.Withdrawn = i.Arg(), a.withdrawn
		return t, nil
	case Parted:
		if !s.byed {
			return t, fmt.Errorf("%v: before bye", i)
		}
		return t, nil
	case Hello, Gone:
		return t, nil
	}
	return t, fmt.Errorf("%v: a receiver does not say it", i)
}

// Withdraw takes an ask back that waits for its answer. False: the answer is there.
func (s *Sending) Withdraw(number uint32) bool {
	a, ok := s.asks[number]
	if !ok || a.withdrawn || a.granted {
		return false
	}
	s.asks[number] = asked{withdrawn: true}
	return true
}

// Wrote ends an ask that was granted: its body is being written.
func (s *Sending) Wrote(number uint32) Imm {
	if !s.asks[number].granted {
		panic("rdma/flow: a body without a grant")
	}
	delete(s.asks, number)
	return Say(Body, number)
}

// Open is how many asks are neither written nor ended.
func (s *Sending) Open() int { return len(s.asks) }

// Bye ends the sending: nothing may be reserved any more. It is to be said when no grant
// is open.
func (s *Sending) Bye() { s.byed = true }
