package tcp

import (
	"io"

	"github.com/kevlard/kevlard/kvstream/conns"
)

// guest is an accepted connection that was welcomed.
type guest struct {
	conns.Guest
	socket *socket
	stream io.ReadWriter
}
