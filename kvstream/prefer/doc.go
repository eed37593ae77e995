// Package prefer makes one mover (see kvstream/mover) of two: for each peer the better one
// where it works, and the other where it does not or not yet.
//
// # Choosing
//
// A peer begins with the other mover, and is probed. When the better one has reached it,
// pieces go there. When the better one fails, the next piece goes to the other, and the
// peer is probed again, after waits that double up to 10 s, as long as pieces are sent to it.
// They double, too, when the better mover fails soon after it was reached.
// With Config.Insist there is no other: Send fails until the probe succeeds.
//
// # Order
//
// Two movers know nothing of each other's lanes. So each piece carries a tag before its
// header: which life of which sender it is from, and a generation that grows with each
// change of mover. A receiver (Gate) that has seen a generation hands on no piece of an
// earlier one, and none while a handler is still busy with an earlier one. What is dropped so
// counts as lost on the way: the sender is told (Handler.Lost) at each change.
//
//	offset  size  field
//	0       4     ff "KVP"; no header of an untagged piece begins with it
//	4       8     life, drawn at random
//	12      8     generation, big-endian, from 1
//
// Untagged pieces, from nodes with one mover, pass as those of another life.
package prefer

import "time"

// The bounds of the package.
//
//	bound       what is bounded                  when it is reached
//	MaxHeader   header of a piece                Send returns ErrTooLarge
//	maxPeers    peers that are remembered        those that are not probed are forgotten: they begin anew
//	maxWait     wait between two probes          it grows no further
//	steadyTime  use of the better mover          after a longer one the first probe comes at once
//	probeTime   one probe                        it has failed
//	unusedTime  probing after the last piece     it ends until the next piece
const (
	tagBytes = 4 + 8 + 8

	maxPeers = 2048

	minWait    = 250 * time.Millisecond
	maxWait    = 10 * time.Second
	steadyTime = maxWait
	probeTime  = 20 * time.Second
	unusedTime = 5 * time.Minute
)
