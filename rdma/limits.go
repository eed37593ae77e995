package rdma

import (
	"time"

	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/rdma/flow"
)

// The bounds of the package, beside mover.MaxHeader, mover.MaxBody and those of
// kvstream/conns and rdma/flow.
//
//	bound             what is bounded                              when it is reached
//	maxGuests         accepted connections                         refused: "too many connections"
//	Config.Staging    registered memory for bodies on their way    Send waits; a grant waits, and so its sender
//	maxWaiters        sends that wait on one connection            Send returns ErrBusy
//	sendDepth         writes of a connection not yet completed     they wait in order
//	Config.Stall      an answer, a body or room that is owed       the connection breaks
//
// A connection locks flow.RingBytes at each end, and Config.Staging is locked once for
// each direction.
const (
	maxGuests  = 2048
	maxWaiters = 1024

	// eagerBytes is the most bytes of header and body together that travel as a message,
	// for a copy at each end and no round trip.
	eagerBytes = 64 << 10

	// writeBytes is the largest single write: what is lost by one lost packet on a
	// provider that repeats whole messages.
	writeBytes = 1 << 20
	// sumBytes is what is copied and summed in one go, while it is in the cache.
	sumBytes = 64 << 10

	// sendDepth takes the writes of a full ring and of bodies; pollBatch is how many
	// completions are looked at together, as the bindings take them.
	sendDepth  = 512
	guestDepth = 64
	pollBatch  = 64

	// minPlace and maxPlace are the classes of staging memory.
	minPlace = 4 << 10
	maxPlace = mover.MaxBody

	defaultConns   = 2
	defaultStaging = 32 << 20
)

const (
	goneGrace = 100 * time.Millisecond

	// probeEvery is how often an end that waits for the other looks whether its card still
	// answers; keepAlive is how often the receiver of a silent connection does.
	probeEvery = 250 * time.Millisecond
	keepAlive  = 15 * time.Second
)

// A message with the largest header fits into the ring twice.
const _ = uint(flow.RingBytes - 2*(headLen+mover.MaxHeader+flow.UnitBytes))
