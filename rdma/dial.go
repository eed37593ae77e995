package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/rdma/flow"
)

// dial makes a queue pair, and has the peer make one that belongs to it. What it returns
// is connected, but has not been heard of over the fabric.
func (m *Mover) dial(to kevlard.NodeID, slot int) (_ *outgoing, err error) {
	if !m.cfg.Known(to) {
		return nil, fmt.Errorf("%w: the mesh does not reach it", mover.ErrUnknownPeer)
	}
	ctx, cancel := context.WithTimeoutCause(m.conns.Life(), conns.HandshakeTimeout, fmt.Errorf("the peer has not answered within %v", conns.HandshakeTimeout))
	defer cancel()
	way, err := m.match(ctx, to, slot)
	if err != nil {
		return nil, err
	}
	device := m.cfg.Devices[way.rail]
	mem, err := newBlock(flow.RingBytes+flow.Window*flow.GrantBytes, device)
	if err != nil {
		return nil, err
	}
	q, err := device.Queue(sendDepth, flow.SenderReceives, Source{way.Source, way.Global})
	if err != nil {
		return nil, errors.Join(err, mem.close())
	}
	c := newOutgoing(newEnd(m, to, way.rail, q, sendDepth, mem, flow.Endpoint{}), slot)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.discard())
		}
	}()
	if err := q.Receive(flow.SenderReceives); err != nil {
		return nil, err
	}
	own := flow.Setup{
		Summed: !m.cfg.Unsummed, Rail: uint8(way.theirs), To: way.Destination.Addr.As16(), ToType: uint8(way.Destination.Type),
		Slot: uint8(slot), Number: m.attempts.Add(1), Incarnation: m.incarnation, Endpoint: q.Local(),
	}
	own.Endpoint.Addr = mem.regions[0].Addr + flow.RingBytes
	own.Endpoint.RKey, own.Endpoint.Size = mem.regions[0].RKey, flow.Window*flow.GrantBytes
	answer, err := m.cfg.Exchange(ctx, to, own.Encode())
	if err != nil {
		return nil, fmt.Errorf("set up RDMA with %s: %w", to, asked(ctx, err))
	}
	peer, err := flow.DecodeSetup(answer, true)
	if err != nil {
		return nil, fmt.Errorf("set up RDMA with %s: %w", to, err)
	}
	if peer.Rail != own.Rail || peer.Slot != own.Slot || peer.Number != own.Number || peer.Summed != own.Summed {
		return nil, fmt.Errorf("set up RDMA with %s: it answers for rail %d, slot %d, connection %d, sums %t; asked for %d, %d, %d, %t", to, peer.Rail, peer.Slot, peer.Number, peer.Summed, own.Rail, own.Slot, own.Number, own.Summed)
	}
	c.peer = peer.Endpoint
	if err := q.Connect(peer.Endpoint); err != nil {
		return nil, fmt.Errorf("connect RDMA with %s over %s: %w", to, device.Name(), err)
	}
	return c, nil
}

// asked is the error of an exchange, with why its context ended.
func asked(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// Ready implements conns.Conn: it says hello over the fabric and waits for the peer's.
func (c *outgoing) Ready() error {
	c.mu.Lock()
	err := c.hello()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	timer := time.NewTimer(conns.HandshakeTimeout)
	defer timer.Stop()
	life := c.mover.conns.Life()
	select {
	case <-c.ready:
		return nil
	case <-c.broken:
		return c.cause()
	case <-life.Done():
		return context.Cause(life)
	case <-timer.C:
		return fmt.Errorf("no word from %s over %s within %v: the fabric does not carry bytes both ways", c.node, c.mover.cfg.Devices[c.rail].Name(), conns.HandshakeTimeout)
	}
}
