package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kevlard/kevlard/rdma/flow"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// How long a card tries: 4.096 us * 2^ackTimeout is 67 ms to an acknowledgement, which
// cards may stretch to four times as long. With ackRetries it gives up after 0.4 to 2 s.
const (
	ackTimeout = 14
	ackRetries = 5
	// notReadyTimer 14 is 1 ms. Receives are always posted before they are needed, so this
	// covers no more than the peer's set-up.
	notReadyTimer   = 14
	notReadyRetries = 6
)

// Cards are the ports of this host's devices.
type Cards struct {
	Devices  []Device // in the order in which their rails are matched
	LeftOut  []error  // devices that are wanted and could not be opened
	contexts []*verbs.Context
}

// Open opens the ports of all devices that are wanted; some may be down. A device that
// can't be opened is left out, and an error if there is no other. Its errors wrap
// ErrNoDevice or verbs.ErrNotBuilt and the like.
func Open(want rail.Want) (*Cards, error) {
	lib, err := verbs.Load()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	devices, err := lib.Devices()
	if len(devices) == 0 {
		if err == nil {
			err = errors.New("this host has none")
		}
		return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	c := &Cards{}
	if err != nil {
		c.LeftOut = append(c.LeftOut, err)
	}
	c.open(devices, want, lib.Open)
	if len(c.Devices) > 0 {
		return c, nil
	}
	if len(c.LeftOut) > 0 {
		return nil, errors.Join(append(c.LeftOut, c.Close())...)
	}
	_, why := rail.Local(devices, want)
	return nil, errors.Join(fmt.Errorf("%w: %v", ErrNoDevice, why), c.Close())
}

// open adds the ports of the devices that are wanted and open.
func (c *Cards) open(devices []verbs.Device, want rail.Want, open func(name string) (*verbs.Context, error)) {
	devices = slices.Clone(devices)
	slices.SortStableFunc(devices, func(a, b verbs.Device) int { return rail.CompareNames(a.Name, b.Name) })
	for _, d := range devices {
		if len(want.Devices) > 0 && !slices.Contains(want.Devices, d.Name) {
			continue
		}
		opened, err := open(d.Name)
		if err != nil {
			c.LeftOut = append(c.LeftOut, err)
			continue
		}
		c.contexts = append(c.contexts, opened)
		for _, p := range d.Ports {
			if len(c.Devices) < flow.MaxRails {
				c.Devices = append(c.Devices, &card{context: opened, port: p.Number, want: want})
			}
		}
	}
}

// Close closes the devices. Nothing may be left of them.
func (c *Cards) Close() error {
	var errs []error
	for _, x := range c.contexts {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

// card is a port as a Device.
type card struct {
	context *verbs.Context
	port    int
	want    rail.Want
}

func (c *card) Name() string { return fmt.Sprintf("%s port %d", c.context.Name(), c.port) }

// Rail implements Device.
func (c *card) Rail() (rail.Rail, error) {
	p, err := c.context.Port(c.port)
	if err != nil {
		return rail.Rail{}, err
	}
	link := p.Link
	if link == verbs.LinkUnspecified {
		link = verbs.LinkInfiniBand
	}
	d := verbs.Device{Name: c.context.Name(), Ports: []verbs.Port{p}}
	if rails, _ := rail.Local([]verbs.Device{d}, c.want); len(rails) == 1 {
		return rails[0], nil
	}
	return rail.Rail{Device: d.Name, Port: c.port, Link: link, MTU: p.MTU}, nil
}

// Register implements Device.
func (c *card) Register(mem []byte) (Region, error) {
	r, err := c.context.Register(mem, verbs.PeerWrites)
	if err != nil {
		return Region{}, err
	}
	return Region{Addr: r.Addr, LKey: r.LocalKey, RKey: r.RemoteKey, Release: r.Close}, nil
}

// Queue implements Device.
func (c *card) Queue(send, receive int, source Source) (Queue, error) {
	p, err := c.context.Port(c.port)
	if err != nil {
		return nil, err
	}
	q := &cardQueue{port: p, source: source}
	if q.done, err = c.context.NewQueue(send + receive); err != nil {
		return nil, err
	}
	q.pair, err = c.context.NewQueuePair(verbs.PairConfig{Port: c.port, Sends: q.done, Receives: q.done, SendDepth: send, ReceiveDepth: receive})
	if err != nil {
		return nil, errors.Join(err, q.done.Close())
	}
	var psn [4]byte
	rand.Read(psn[:]) // crypto/rand ends the process if it cannot
	q.psn = binary.BigEndian.Uint32(psn[:]) >> 8
	return q, nil
}

// cardQueue is a queue pair as a Queue.
type cardQueue struct {
	port   verbs.Port
	source Source
	done   *verbs.Queue
	pair   *verbs.QueuePair
	psn    uint32
	batch  [pollBatch]verbs.Completion // Wait's

	mu    sync.Mutex
	woken bool
	stop  context.CancelFunc // of the Wait that sleeps
}

// Local implements Queue.
func (q *cardQueue) Local() flow.Endpoint {
	return flow.Endpoint{
		Ethernet: q.port.Link == verbs.LinkEthernet, Routed: q.source.Global, MTU: uint8(q.port.MTU), LID: q.port.LID,
		GID: q.source.GID.Addr.As16(), QPN: q.pair.Number, PSN: q.psn,
	}
}

// Connect implements Queue.
func (q *cardQueue) Connect(remote flow.Endpoint) error {
	return q.pair.Connect(verbs.Path{
		Port: q.port.Number, MTU: min(q.port.MTU, verbs.MTU(remote.MTU)), QP: remote.QPN, SendPSN: q.psn, ReceivePSN: remote.PSN,
		LID: remote.LID, Global: q.source.Global, GID: netip.AddrFrom16(remote.GID), SourceGID: q.source.GID.Index,
		Timeout: ackTimeout, Retries: ackRetries, NotReadyTimer: notReadyTimer, NotReadyRetries: notReadyRetries,
	})
}

// Receive implements Queue.
func (q *cardQueue) Receive(n int) error {
	var works [pollBatch]verbs.Work
	for n > 0 {
		k, err := q.pair.PostReceive(works[:min(n, len(works))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// Post implements Queue.
func (q *cardQueue) Post(works ...Work) error {
	var batch [pollBatch]verbs.Work
	for len(works) > 0 {
		n := min(len(works), len(batch))
		for i, w := range works[:n] {
			batch[i] = verbs.Work{
				ID: w.ID, Local: w.Local, LocalKey: w.LKey, Bytes: w.Bytes, Remote: w.Addr, RemoteKey: w.RKey,
				Op: verbs.OpWrite, Flags: verbs.Signaled,
			}
			if w.Imm != 0 {
				batch[i].Op, batch[i].Immediate = verbs.OpWriteImmediate, uint32(w.Imm)
			}
		}
		k, err := q.pair.PostSend(batch[:n])
		if err != nil {
			return err
		}
		works = works[k:]
	}
	return nil
}

// Wait implements Queue.
func (q *cardQueue) Wait(until time.Time, out []Done) (int, error) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	q.mu.Lock()
	if q.woken {
		cancel()
	}
	q.woken, q.stop = false, cancel
	q.mu.Unlock()
	n, err := q.done.Wait(ctx, q.batch[:min(len(out), len(q.batch))])
	q.mu.Lock()
	q.stop = nil
	q.mu.Unlock()
	switch {
	case n > 0:
	case errors.Is(err, context.DeadlineExceeded):
		return 0, os.ErrDeadlineExceeded
	case ctx.Err() != nil:
		return 0, nil // woken
	case err != nil:
		return 0, err
	}
	for i, c := range q.batch[:n] {
		out[i] = Done{ID: c.ID, Receive: c.Kind == verbs.ReceivedImmediate, Imm: flow.Imm(c.Immediate), Bytes: c.Bytes, Err: c.Err()}
	}
	return n, nil
}

// Wake implements Queue.
func (q *cardQueue) Wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.woken = true
	if q.stop != nil {
		q.stop()
	}
}

// Fail implements Queue.
func (q *cardQueue) Fail() error { return q.pair.Fail() }

// Close implements Queue.
func (q *cardQueue) Close() error { return errors.Join(q.pair.Close(), q.done.Close()) }
