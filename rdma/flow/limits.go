package flow

// The bounds of the protocol.
//
//	bound             what is bounded                       when it is reached
//	RingUnits         messages of a connection under way    Reserve says no; the sender waits
//	Window            asks that are not ended               CanAsk says no; the sender waits
//	SenderReceives    what the receiver has told and the    never, while both keep the protocol
//	                  sender not yet read
//	ReceiverReceives  the same the other way                never, while both keep the protocol
const (
	// UnitBytes is what a small message takes: with it the ring bounds the number of
	// messages too.
	UnitBytes = 4 << 10
	// RingUnits makes the ring 1 MiB: at 100 Gbit/s 80 µs, many round trips of a fabric.
	RingUnits = 256
	RingBytes = RingUnits * UnitBytes

	// Window is the most asks that are open. The callers of a connection wait for
	// their answers, so there are rarely more.
	Window = 8

	// creditUnits is how many units are let go of before the sender is told.
	creditUnits = RingUnits / 8

	// SenderReceives: an answer for each ask; a credit for each creditUnits of the ring, and
	// one more at its turn; hello, parted and gone.
	SenderReceives = Window + RingUnits/creditUnits + 1 + 3
	// ReceiverReceives: a message for each unit; for each slot of the window a body or
	// withdrawal, and the withdrawal of the ask before whose grant crossed it; hello and bye.
	ReceiverReceives = RingUnits + 2*Window + 2

	// GrantBytes is the size of a grant's slot.
	GrantBytes = 32

	argMask = 1<<24 - 1
)
