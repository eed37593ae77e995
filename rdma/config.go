package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
	"github.com/kevlard/kevlard/rdma/flow"
	"github.com/kevlard/kevlard/rdma/rail"
)

// Config is what a mover is made of.
type Config struct {
	// Self is this node's name.
	Self kevlard.NodeID
	// Devices are the rails of this node, 1 to 16, which are matched with a peer's by
	// package rdma/rail as Want says.
	Devices []Device
	Want    rail.Want
	// Exchange asks a peer over the mesh, which has proved who it is: the peer's Answer is
	// called with the request and this node's name.
	Exchange func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error)
	// Known reports whether a node can be asked; else Send returns ErrUnknownPeer.
	Known func(kevlard.NodeID) bool
	// Handler gets what arrives.
	Handler mover.Handler
	// Unsummed leaves out the checksum of each body, for users whose headers carry one that
	// they check: it costs a pass over every byte at both ends. Both ends must say the same.
	Unsummed bool
	// Pacer caps what is sent, together with whatever else has it; nil: no cap. A piece leaves
	// at once, and what comes next waits.
	Pacer *pace.Pacer
	// Options of all movers. Conns is 2 by default, or one for each rail if that is more.
	// Connection i uses the i-th matched rail, modulo their number. Stall counts while an
	// answer, a body or room in the ring is owed.
	conns.Options
	// Staging is the bytes of locked memory for bodies that are sent, and as many for those
	// that arrive; a multiple of 16 MiB; 0 means 32 MiB.
	Staging int
}

func (c Config) withDefaults() Config {
	c.Options = c.Options.WithDefaults(max(defaultConns, len(c.Devices)))
	c.Staging = cmp.Or(c.Staging, defaultStaging)
	return c
}

// Validate reports every field that is out of its range.
func (c Config) Validate() error {
	errs := c.Options.Validate()
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Self == "" || c.Exchange == nil || c.Known == nil || c.Handler == nil {
		bad("Self, Exchange, Known and Handler are required")
	}
	if n := len(c.Devices); n < 1 || n > flow.MaxRails {
		bad("%d devices: want 1 to %d", n, flow.MaxRails)
	}
	if c.Staging < 0 || c.Staging%maxPlace != 0 {
		bad("Staging is %d bytes: want a multiple of %d", c.Staging, maxPlace)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bulk transport over RDMA: %w", err)
	}
	return nil
}
