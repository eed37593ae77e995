package rdma

import (
	"sync/atomic"

	"github.com/kevlard/kevlard/kvstream/mover"
)

// counts are the Stats under way.
type counts struct {
	sent, sentBytes, received, receivedBytes atomic.Uint64
	refused, aborted, corrupt                atomic.Uint64
	dials, broken                            atomic.Uint64
}

func (c *counts) stats() mover.Stats {
	return mover.Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Refused: c.refused.Load(), Aborted: c.aborted.Load(), Corrupt: c.corrupt.Load(),
		Dials: c.dials.Load(), Broken: c.broken.Load(),
	}
}
