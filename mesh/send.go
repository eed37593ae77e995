package mesh

import (
	"fmt"

	"github.com/kevlard/kevlard"
)

// Control queues a message of at most 1 MiB for a node. It never blocks and copies
// msg. Messages to one node arrive in the order they were queued, each at most
// once; a connection that breaks loses those under way.
//
// Errors: ErrSelf, ErrNoPeer, ErrNotConnected, ErrQueueFull (1024 messages or 16 MiB
// wait), ErrTooLarge. After an error nothing was queued.
func (m *Mesh) Control(to kevlard.NodeID, msg []byte) error {
	p, err := m.pairTo(to)
	if err != nil {
		return err
	}
	return p.control.enqueue(to, kindControl, nil, msg)
}

// Data queues a frame for a node: a header of at most 64 KiB and a body, the
// concatenation of the parts, of at most 256 KiB. It never blocks and copies header
// and parts, so the caller may reuse them at once. Order, loss and errors are as
// with Control, with a queue of 4096 frames or 32 MiB; there is no order between
// control messages and data frames.
func (m *Mesh) Data(to kevlard.NodeID, header []byte, body ...[]byte) error {
	p, err := m.pairTo(to)
	if err != nil {
		return err
	}
	return p.data.enqueue(to, kindData, header, body...)
}

func (m *Mesh) pairTo(to kevlard.NodeID) (*pair, error) {
	l, err := m.link(to)
	if err != nil {
		return nil, err
	}
	return l.connected()
}

func (o *outbound) enqueue(to kevlard.NodeID, k kind, header []byte, body ...[]byte) error {
	f, err := newFrame(k, header, body...)
	if err != nil {
		return err
	}
	if err := o.queue.push(f); err != nil {
		return fmt.Errorf("%s to node %s: %w", o.class, to, err)
	}
	return nil
}
