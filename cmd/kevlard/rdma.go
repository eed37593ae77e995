package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/rdma"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// rdmaStaging is the locked memory for KV on its way out, and as much for KV that
// arrives.
const rdmaStaging = 32 << 20

// rdma returns how the daemon makes its RDMA transport.
func (a *agent) rdma() func(daemon.RDMAUse) (daemon.RDMA, error) {
	return func(use daemon.RDMAUse) (daemon.RDMA, error) {
		fabric, err := fabricAddrs(a.cfg.Mesh.Fabric)
		if err != nil {
			return nil, err
		}
		want := rail.Want{Fabric: fabric}
		cards, err := rdma.Open(want)
		if err != nil {
			return nil, err
		}
		for _, err := range cards.LeftOut {
			use.Log.Warn("an RDMA device is not used; kevlard doctor says more", "error", err)
		}
		m, err := rdma.New(rdma.Config{
			Self: use.Self, Devices: cards.Devices, Want: want, Exchange: use.Exchange, Known: use.Known, Handler: use.Handler,
			Unsummed: true, // rows and weights carry sums of their own, which are checked where they arrive
			Staging:  rdmaStaging, Pacer: use.Pacer, Options: conns.Options{Log: use.Log},
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", cards.Devices[0].Name(), err), cards.Close())
		}
		return ownedCards{m, cards}, nil
	}
}

// ownedCards closes the devices after the mover.
type ownedCards struct {
	*rdma.Mover
	cards *rdma.Cards
}

// Close implements mover.Mover.
func (o ownedCards) Close() error { return errors.Join(o.Mover.Close(), o.cards.Close()) }

// fabricAddrs are the addresses that [mesh] fabric names; none if it is an interface or a
// range, as then any port may do.
func fabricAddrs(fabric string) ([]netip.Addr, error) {
	host, _, err := net.SplitHostPort(fabric)
	if err != nil {
		host = fabric
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return nil, nil
	}
	return verbs.FabricGIDs(a)
}
