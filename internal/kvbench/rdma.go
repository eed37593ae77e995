package kvbench

import (
	"context"
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/rdma"
	"github.com/kevlard/kevlard/rdma/rail"
)

// RunRDMA measures RDMA between the devices and themselves, against bare TCP connections and
// the mover over plain TCP, all on this machine. An error that wraps mover.ErrUnreachable
// says why the devices do not reach themselves.
func RunRDMA(ctx context.Context, o Options, devices []rdma.Device, want rail.Want) (_ []Result, err error) {
	moved, err := newMovedRDMA(ctx, o, devices, want)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, moved.close()) }()
	tcp, err := newMoved(o.Conns, true, !o.Summed)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tcp.close()) }()
	return against(ctx, o, "rdma", true, moved, tcp)
}

func newMovedRDMA(ctx context.Context, o Options, devices []rdma.Device, want rail.Want) (*moved, error) {
	m := &moved{conns: o.Conns, sink: newSink(o.Conns), body: payload()}
	nodes := map[kevlard.NodeID]*rdma.Mover{}
	err := m.start(func(node kevlard.NodeID) (mover.Mover, error) {
		r, err := rdma.New(rdma.Config{
			Self: node, Devices: devices, Want: want, Handler: m.sink, Unsummed: !o.Summed, Options: conns.Options{Conns: o.Conns},
			Known: func(to kevlard.NodeID) bool { return nodes[to] != nil },
			Exchange: func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error) {
				return nodes[to].Answer(ctx, node, request)
			},
		})
		nodes[node] = r
		return r, err
	})
	if err != nil {
		return nil, err
	}
	if err := nodes["sender"].Probe(ctx, "receiver"); err != nil {
		return nil, errors.Join(fmt.Errorf("over %s: %w", devices[0].Name(), err), m.close())
	}
	return m, nil
}
