package conns

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard/kvstream/mover"
)

// Options are what can be set of any mover.
type Options struct {
	// Conns is the number of connections to a peer, 1 to 16; 0 means the mover's default.
	Conns int
	// Stall is how long a connection may make no progress though the peer owes some; 0 means
	// 5 s. Shorter than a peer's worst pause, it breaks connections for nothing; long, a
	// vanished peer holds its senders longer.
	Stall time.Duration
	// Idle is how long an unused connection is kept; 0 means 5 min.
	Idle time.Duration
	// Log gets connections that come and go, at level debug, and refusals. nil: nowhere.
	Log *slog.Logger
}

// WithDefaults returns o with every field set.
func (o Options) WithDefaults(conns int) Options {
	o.Conns = cmp.Or(o.Conns, conns)
	o.Stall = cmp.Or(o.Stall, defaultStall)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Validate returns an error for every field that is out of its range.
func (o Options) Validate() (errs []error) {
	if o.Conns < 0 || o.Conns > MaxConns {
		errs = append(errs, fmt.Errorf("option Conns is %d: want 1 to %d", o.Conns, MaxConns))
	}
	if o.Stall != 0 && o.Stall < MinStall {
		errs = append(errs, fmt.Errorf("option Stall is %v: want at least %v", o.Stall, MinStall))
	}
	if o.Idle < 0 {
		errs = append(errs, fmt.Errorf("option Idle is %v: want a positive time", o.Idle))
	}
	return errs
}

// Counts are mover.Stats under way.
type Counts struct {
	Sent, SentBytes, Received, ReceivedBytes atomic.Uint64
	Refused, Aborted, Corrupt                atomic.Uint64
	Dials, Broken                            atomic.Uint64
}

// Stats returns them as they are now.
func (c *Counts) Stats() mover.Stats {
	return mover.Stats{
		Sent: c.Sent.Load(), SentBytes: c.SentBytes.Load(),
		Received: c.Received.Load(), ReceivedBytes: c.ReceivedBytes.Load(),
		Refused: c.Refused.Load(), Aborted: c.Aborted.Load(), Corrupt: c.Corrupt.Load(),
		Dials: c.Dials.Load(), Broken: c.Broken.Load(),
	}
}
