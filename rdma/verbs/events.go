package verbs

import (
	"context"
	"errors"
	"fmt"
)

// EventKind is what happened to a device.
type EventKind uint32

// The kinds of events that mean something here, by the numbers of the verbs. Others
// may come and need no answer.
const (
	EventQueueFailed EventKind = 0 // a completion queue overran: its queue pairs are lost
	EventPairFatal   EventKind = 1
	EventPairRequest EventKind = 2 // the peer sent what it must not
	EventPairAccess  EventKind = 3 // the peer touched what it must not
	EventDeviceFatal EventKind = 8 // the card must be opened anew
	EventPortActive  EventKind = 9
	EventPortDown    EventKind = 10
	EventLIDChanged  EventKind = 11
	EventSMChanged   EventKind = 13
	EventReregister  EventKind = 17
	EventGIDChanged  EventKind = 18
)

func (k EventKind) String() string {
	return named(int(k), "completion queue failed", "queue pair failed", "queue pair: bad request", "queue pair: access refused",
		"connection established", "queue pair drained", "path migrated", "path migration failed", "device failed", "port active", "port down",
		"LID changed", "partition keys changed", "subnet manager changed", "receive queue failed", "receive queue low", "last request reached",
		"reregistration asked for", "GIDs changed")
}

// Event is something that happened to a device outside of any request.
type Event struct {
	Kind EventKind
	Port int    // of events of a port
	QP   uint32 // of events of a queue pair
}

func (e Event) String() string {
	switch {
	case e.Port != 0:
		return fmt.Sprintf("%v (port %d)", e.Kind, e.Port)
	case e.QP != 0:
		return fmt.Sprintf("%v (queue pair %d)", e.Kind, e.QP)
	}
	return e.Kind.String()
}

// NextEvent sleeps until something happens to the device. One goroutine calls it. Its
// errors are ErrClosed, why ctx ended, or what the kernel says.
func (c *Context) NextEvent(ctx context.Context) (Event, error) {
	var e rawEvent
	err := c.events.wait(ctx, func() error {
		c.mu.RLock()
		defer c.mu.RUnlock()
		if c.closed {
			return ErrClosed
		}
		var err error
		e, err = takeEvent(c.handle)
		return err
	})
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			err = fmt.Errorf("take an event of RDMA device %s: %w", c.device, err)
		}
		return Event{}, err
	}
	return Event{Kind: EventKind(e.kind), Port: int(e.port), QP: e.qp}, nil
}
