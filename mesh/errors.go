package mesh

import (
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
)

var (
	// ErrSelf is returned for a message to the node itself: the caller loops it back.
	ErrSelf = errors.New("the message is for this node itself")

	// ErrNoPeer is returned for a node that SetPeers does not name.
	ErrNoPeer = errors.New("no such peer in the mesh")

	// ErrNotConnected is returned while the link to a peer is down. The mesh
	// goes on dialling; Peers says what the last attempt met.
	ErrNotConnected = errors.New("the peer is not connected")

	// ErrQueueFull is returned when a peer's queue, or its number of calls in
	// flight, is at its bound. Nothing was queued.
	ErrQueueFull = errors.New("the queue to the peer is full")

	// ErrTooLarge is returned for a message over the limit of its kind.
	ErrTooLarge = errors.New("message too large")

	// ErrRemoved is the cause of a Down for a peer that SetPeers took out.
	ErrRemoved = errors.New("it left the ring or is dead: it is no peer any more")

	// ErrMoved is the cause of a Down for a peer that SetPeers gave another
	// address, peer ID or boot.
	ErrMoved = errors.New("the peer has another address or boot")
)

// RefusedError says that one side refused to admit the other.
type RefusedError struct {
	Node   string // the other side's name, "" if unknown; not proved
	ByUs   bool   // this side refused
	Reason string // for people, names what differs
}

// Error returns who refused whom, and why.
func (e *RefusedError) Error() string {
	who := "peer"
	if e.Node != "" {
		who = fmt.Sprintf("node %q", e.Node)
	}
	if e.ByUs {
		return fmt.Sprintf("%s is refused: %s", who, e.Reason)
	}
	return fmt.Sprintf("refused by %s: %s", who, e.Reason)
}

// RemoteError is an error that the called node's handler returned.
type RemoteError struct {
	Node   kevlard.NodeID
	Method string
	Text   string
}

// Error names the node and the method.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("%s on node %s: %s", e.Method, e.Node, e.Text)
}
