package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/rdma/flow"
)

// guestKey names what there is one connection of.
type guestKey struct {
	node kevlard.NodeID
	slot uint8
}

// Answer makes the receiver's end of a connection: it is what the Exchange of the peer
// "from", which the mesh has proved, asks. An error is for the peer too.
func (m *Mover) Answer(ctx context.Context, from kevlard.NodeID, request []byte) ([]byte, error) {
	if !m.enter() {
		return nil, errors.New("this node is stopping")
	}
	defer m.work.Done()
	if string(request) == askRails {
		return m.rails()
	}
	peer, err := flow.DecodeSetup(request, false)
	if err != nil {
		return nil, err
	}
	if int(peer.Rail) >= len(m.cfg.Devices) {
		return nil, fmt.Errorf("rail %d: node %s has %d", peer.Rail, m.cfg.Self, len(m.cfg.Devices))
	}
	if peer.Summed == m.cfg.Unsummed {
		return nil, fmt.Errorf("the peer's bodies have checksums: %t, those of node %s: %t: set mesh.plain alike on both", peer.Summed, m.cfg.Self, !m.cfg.Unsummed)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errors.New("the connection before is still being read: its handler is slow"))
	defer cancel()
	g, own, err := m.receive(from, peer)
	if err != nil {
		return nil, err
	}
	if err := m.register(ctx, g); err != nil {
		return nil, errors.Join(err, g.discard())
	}
	if !m.spawn(g.run) {
		m.depart(g)
		return nil, errors.Join(errors.New("this node is stopping"), g.discard())
	}
	return own.Encode(), nil
}

// receive makes and connects a queue pair for a peer's.
func (m *Mover) receive(from kevlard.NodeID, peer flow.Setup) (_ *guest, own flow.Setup, err error) {
	device := m.cfg.Devices[peer.Rail]
	mem, err := newBlock(flow.RingBytes+flow.Window*flow.GrantBytes, device)
	if err != nil {
		return nil, own, err
	}
	source, err := chosen(device, peer)
	if err != nil {
		return nil, own, errors.Join(err, mem.close())
	}
	q, err := device.Queue(guestDepth, flow.ReceiverReceives, source)
	if err != nil {
		return nil, own, errors.Join(err, mem.close())
	}
	g := newGuest(m, guestKey{from, peer.Slot}, int(peer.Rail), q, mem, peer)
	if err = q.Receive(flow.ReceiverReceives); err == nil {
		err = q.Connect(peer.Endpoint)
	}
	if err != nil {
		return nil, own, errors.Join(fmt.Errorf("connect RDMA with %s over %s: %w", from, device.Name(), err), g.discard())
	}
	own = peer
	own.Answer, own.Endpoint = true, q.Local()
	own.Endpoint.Addr, own.Endpoint.RKey, own.Endpoint.Size = mem.regions[0].Addr, mem.regions[0].RKey, flow.RingBytes
	return g, own, nil
}

// chosen is the own address that a peer has chosen.
func chosen(d Device, peer flow.Setup) (Source, error) {
	own, err := d.Rail()
	if err != nil {
		return Source{}, err
	}
	for _, g := range own.Addresses {
		if g.Addr.As16() == peer.To && uint8(g.Type) == peer.ToType {
			return Source{g, peer.Endpoint.Routed}, nil
		}
	}
	return Source{}, fmt.Errorf("%s has no address %v any more, or is down", d.Name(), netip.AddrFrom16(peer.To))
}

// register makes g the connection of its key. The one before ends first: its pieces are
// older.
func (m *Mover) register(ctx context.Context, g *guest) error {
	for {
		m.mu.Lock()
		old := m.guests[g.key]
		switch {
		case m.closed:
			m.mu.Unlock()
			return errors.New("this node is stopping")
		case old == nil && len(m.guests) >= maxGuests:
			m.mu.Unlock()
			return fmt.Errorf("too many connections (%d)", maxGuests)
		case old == nil:
			m.guests[g.key] = g
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		if old.setup.Incarnation == g.setup.Incarnation && g.setup.Number <= old.setup.Number {
			return fmt.Errorf("connection %d came after connection %d of the same slot", g.setup.Number, old.setup.Number)
		}
		old.fail(errors.New("the peer made a new connection"))
		select {
		case <-old.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// depart ends g's registration.
func (m *Mover) depart(g *guest) {
	m.mu.Lock()
	if m.guests[g.key] == g {
		delete(m.guests, g.key)
	}
	m.mu.Unlock()
	close(g.gone)
}
