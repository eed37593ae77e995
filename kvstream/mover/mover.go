// Package mover says what it takes to move bulk pieces (KV rows, weights) from one
// node to another. A piece is a short header, which the receiver needs to find
// room, and a body. Movers know nothing of sessions, blocks or tokens: what a
// header means is between the two ends that use it.
//
// # Promises
//
// Pieces to one peer in one lane arrive in the order in which they were sent. A
// piece arrives once or not at all, and never damaged. When a connection breaks,
// what was accepted for it may be missing, so a lane can have gaps: the sender is
// told (Handler.Lost) and headers should say enough to notice. The next Send
// connects again; nothing is sent twice by a mover.
//
// # Who owns a body
//
// The sender's buffers are its own again when Send returns. A receiver's buffer
// comes from Handler.Buffer and belongs to the mover until exactly one of Received
// or Aborted hands it back.
//
// # RDMA
//
// The contract is shaped so that one-sided writes fit. There the sender asks for a
// place first (header and length travel as a small message), so Buffer is called
// before any byte of the body exists at the receiver and may be called for several
// pieces of a lane at once; Received still comes in lane order. Bodies pass through
// registered memory of the mover at both ends, so that no card ever knows a buffer of
// the mover's users, and Send returns after the copy.
package mover

import (
	"context"

	"github.com/kevlard/kevlard"
)

// Lane names a sequence of pieces to one peer that must stay in order, such as
// one session's. Lanes are spread over a peer's connections by lane modulo their
// number, so neighbouring numbers run in parallel. Any number of lanes may exist;
// they cost nothing.
type Lane uint64

// Mover sends pieces. All methods may be called from many goroutines.
type Mover interface {
	// Send sends one piece: a header of at most MaxHeader bytes and a body of at
	// most MaxBody, given in parts. It returns nil when the mover has accepted the
	// piece and no longer reads the buffers, which says nothing about delivery.
	//
	// It connects if need be and waits while the queue to the peer is full. An
	// error means that the piece does not arrive, except that one that was under way
	// when its connection broke may have arrived. When ctx ends after the first byte
	// has left, the connection is broken, for a piece cannot be taken back: end ctx
	// to give up on a peer, not to save time.
	Send(ctx context.Context, to kevlard.NodeID, lane Lane, header []byte, body ...[]byte) error

	// Stats counts since the mover was made.
	Stats() Stats

	// Close sends what it has accepted as far as that takes no longer than a second,
	// breaks all connections, hands back all buffers and returns when nothing of
	// the mover runs any more. Sends under way end with ErrClosed.
	Close() error
}

// Handler is what arrives. A mover calls it from several goroutines, one at a time
// for each lane. A method that waits holds up its lane and all that share a
// connection with it. Headers are valid only during the call.
type Handler interface {
	// Buffer returns where to put the body of n > 0 bytes, a slice of length n, or
	// nil to refuse: then the piece is dropped and counted, and nothing more is said
	// about it. It is not called for empty bodies.
	Buffer(from kevlard.NodeID, header []byte, n int) []byte

	// Received hands over a complete piece. body is nil if it was empty.
	Received(from kevlard.NodeID, header, body []byte)

	// Aborted gives back the buffer of a piece that will not be completed. What is
	// in it is arbitrary.
	Aborted(from kevlard.NodeID, header, body []byte)

	// Lost tells a sender that a connection to a peer broke: pieces that Send
	// accepted before may not have arrived. It does not come after Close.
	Lost(to kevlard.NodeID, err error)
}

// Stats are counts of one mover.
type Stats struct {
	Sent, SentBytes         uint64 // pieces accepted; bytes of their headers and bodies
	Received, ReceivedBytes uint64 // the same of pieces handed to the Handler
	Refused                 uint64 // Buffer returned nil
	Aborted                 uint64 // buffers given back unfinished
	Corrupt                 uint64 // pieces dropped because they were damaged on the way
	Dials, Broken           uint64 // connections made, and broken for a reason other than idleness or Close
}
