package mover

import (
	"errors"
	"fmt"
)

const (
	// MaxHeader is the most bytes of a header. A mover may keep one per connection.
	MaxHeader = 64 << 10

	// MaxBody is the most bytes of a body: the granularity of buffers, and how long
	// other lanes of a connection wait for one piece.
	MaxBody = 16 << 20
)

// Errors that a caller tells apart. Each is wrapped with the peer's name and what
// to do.
var (
	// ErrTooLarge: the piece is over a bound; cut it.
	ErrTooLarge = errors.New("piece too large")
	// ErrUnknownPeer: nobody knows the node's bulk address (yet).
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrUnreachable: no connection, and none will be tried before the back-off ends.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrBusy: too many sends wait for the peer already.
	ErrBusy = errors.New("too many sends wait for the peer")
	// ErrBroken: the connection broke under the piece.
	ErrBroken = errors.New("connection broke")
	// ErrClosed: the mover was closed.
	ErrClosed = errors.New("mover is closed")
)

// Size returns the length of a body given in parts, or an error that wraps
// ErrTooLarge.
func Size(header []byte, body [][]byte) (int, error) {
	if len(header) > MaxHeader {
		return 0, fmt.Errorf("%w: header of %d bytes: want at most %d", ErrTooLarge, len(header), MaxHeader)
	}
	n := 0
	for _, b := range body {
		if n += len(b); n > MaxBody {
			return 0, fmt.Errorf("%w: body of over %d bytes: send it as several pieces", ErrTooLarge, MaxBody)
		}
	}
	return n, nil
}
