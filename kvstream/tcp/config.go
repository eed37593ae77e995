package tcp

import (
	"context"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
)

// Config is what a mover is made of.
type Config struct {
	// Self is this node's name. Peers connect under the names they know.
	Self kevlard.NodeID
	// Listen is the host:port where peers' connections are accepted; port 0 chooses one.
	Listen string
	// Plain turns encryption off. Both ends must say the same.
	Plain bool
	// Unsummed leaves out the checksum of each body that Plain adds, for users whose headers
	// carry one that they check: it costs a pass over every byte at both ends. Both ends
	// must say the same. TLS has its own.
	Unsummed bool
	// Key is the node's mesh key, whose peer ID it proves in TLS. Unused with Plain.
	Key crypto.PrivKey
	// Resolve returns where a node is, false if it is not (yet) known. It is asked at
	// each dial and must not block.
	Resolve func(kevlard.NodeID) (Peer, bool)
	// Admitted returns the node that the mesh admitted under a peer ID (in its text
	// form), false if none. It is asked for each TLS connection and must not block.
	Admitted func(id string) (kevlard.NodeID, bool)
	// Secret returns the key of at least 16 bytes that this node shares with a peer,
	// and an error if the mesh has not admitted it. Used with Plain, for each
	// connection at both ends; it may ask the peer over the mesh.
	Secret func(context.Context, kevlard.NodeID) ([]byte, error)
	// Handler gets what arrives.
	Handler mover.Handler
	// Pacer caps what is sent, together with whatever else has it; nil: no cap.
	Pacer *pace.Pacer
	// Options of all movers. Conns is 4 by default: one TLS connection is bound by one core
	// at each end, so up to the number of cores that bulk transfers may use, more do not
	// help on one link.
	conns.Options
}

// Peer says where a node's mover listens.
type Peer struct {
	ID   string // libp2p peer ID in its text form; unused with Plain
	Addr string // host:port
}

// transport is how the wire format names the mode.
func (c Config) transport() uint8 {
	switch {
	case !c.Plain:
		return transportTLS
	case c.Unsummed:
		return transportUnsummed
	}
	return transportPlain
}

// summed reports whether bodies carry checksums.
func (c Config) summed() bool { return c.transport() == transportPlain }

func (c Config) withDefaults() Config {
	c.Options = c.Options.WithDefaults(defaultConns)
	return c
}

// Validate reports every field that is out of its range.
func (c Config) Validate() error {
	errs := c.Options.Validate()
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n := len(c.Self); n < 1 || n > maxName {
		bad("Self has %d bytes: want 1 to %d", n, maxName)
	}
	if c.Listen == "" {
		bad("Listen is empty: want host:port")
	}
	if c.Resolve == nil || c.Handler == nil {
		bad("Resolve and Handler are required")
	}
	switch {
	case c.Plain && c.Secret == nil:
		bad("Plain needs Secret")
	case !c.Plain && (c.Key == nil || c.Admitted == nil):
		bad("TLS needs Key and Admitted")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bulk transport over TCP: %w", err)
	}
	return nil
}
