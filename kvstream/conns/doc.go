// Package conns is the connections of a mover (see kvstream/mover): a few to each peer that
// it sends to, which it dials when it sends, and those that peers have dialled to it. What
// a connection is, and how pieces travel on it, is the mover's; when one is made, replaced
// and given up is said here, once for all movers.
//
// # Slots
//
// A peer has Options.Conns slots, and pieces of a lane always use the same one, so they
// stay in order. A slot holds one connection at a time. A dial that fails, or a connection
// that breaks, is followed by a pause, in which Get returns mover.ErrUnreachable.
//
// # Guests
//
// The receiver has one connection of each slot of a peer. A new one replaces the one before,
// whose last piece is handed on first; one that is older by its number is refused.
package conns

import "time"

// The bounds of the package.
//
//	bound             what is bounded                       when it is reached
//	maxPeers          peers that were sent to               Get returns mover.ErrBusy; Forget makes room
//	MaxConns          connections to one peer               Options are refused
//	Config.MaxGuests  accepted connections                  refused: "too many connections"
//	CloseGrace        what Close waits for all connections  they are broken
//
// HandshakeTimeout is for movers: from the dial to the first word of the peer.
const (
	maxPeers = 1024
	MaxConns = 16

	HandshakeTimeout = 5 * time.Second
	CloseGrace       = time.Second

	defaultStall = 5 * time.Second
	defaultIdle  = 5 * time.Minute
	// MinStall is the shortest Options.Stall.
	MinStall = 50 * time.Millisecond

	// BackoffMin doubles to backoffMax between failed dials, a fifth of jitter either
	// way; a connection that lasted steadyAfter starts again from none.
	BackoffMin  = 100 * time.Millisecond
	backoffMax  = 2 * time.Second
	steadyAfter = time.Second
)
