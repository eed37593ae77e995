// Package flow is the protocol of the RDMA mover as values: which bytes of a peer's ring
// are free, which pieces were asked for, what an immediate means and what it allows. It
// knows no memory, no queue pair and no time; package rdma carries out what it says, and
// tests run both ends of it without a card.
//
// # Two ends
//
// A connection is one reliable queue pair. Its sender dialled it and has Sending, the
// receiver has Taking. All that one end tells the other is a write with immediate:
// the receive that it consumes has no memory, and completes in the order of the writes.
// The immediate holds a kind (high 8 bits) and an argument (low 24):
//
//	kind        from      argument           written with it
//	1 piece     sender    unit of the ring   a message (package rdma) at that unit
//	2 body      sender    number of the ask  the end of the body, at the place granted
//	3 withdraw  sender    number of the ask  nothing: the body will not come
//	4 bye       sender    0                  nothing: no more pieces will come
//	5 hello     both      0                  bytes without meaning: this end reaches the other
//	8 credit    receiver  units let go of    nothing
//	9 grant     receiver  number of the ask  the place, in the ask's slot
//	10 refuse   receiver  number of the ask  nothing
//	11 parted   receiver  0                  nothing: all was handed on
//	12 gone     receiver  0                  nothing: the receiver ends the connection
//
// # The ring
//
// The receiver has RingUnits units of UnitBytes. A message takes whole units, next to one
// another: one that does not fit before the end of the ring begins at its start, and
// the units that are left out count with it. Messages are let go of in order, and
// credit tells how many units that were so far, modulo 2^24. The sender composes messages
// in a ring of its own at the same units, so its copy lives until the credit comes.
//
// # Places
//
// A piece that is too large for the ring is asked for: its header travels in a message.
// Every ask is answered once, by grant or refuse, and every grant by body or withdraw.
// At most Window asks are open. An ask that is withdrawn before it was
// answered is refused. The receiver hands pieces on in the order of their messages, so
// one whose message came after that of an ask waits for its body.
//
// # Receives
//
// Each end posts a receive again before it acts on what consumed it. So the sender needs
// at most SenderReceives, and the receiver at most ReceiverReceives.
package flow
