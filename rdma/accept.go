package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/rdma/flow"
)

// Answer makes the receiver's end of a connection: it is what the Exchange of the peer
// "from", which the mesh has proved, asks. An error is for the peer too.
func (m *Mover) Answer(ctx context.Context, from kevlard.NodeID, request []byte) ([]byte, error) {
	if !m.conns.Enter() {
		return nil, errors.New("this node is stopping")
	}
	defer m.conns.Leave()
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
	ctx, cancel := context.WithTimeout(ctx, conns.HandshakeTimeout)
	defer cancel()
	g, own, err := m.receive(from, peer)
	if err != nil {
		return nil, err
	}
	if err := m.conns.Register(ctx, &g.Guest); err != nil {
		return nil, errors.Join(err, g.discard())
	}
	if !m.conns.Spawn(g.run) {
		m.conns.Depart(&g.Guest)
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
	g := newGuest(newEnd(m, from, int(peer.Rail), q, guestDepth, mem, peer.Endpoint), peer)
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
