package daemon

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/kevlard/kevlard/membership"
)

// endpoints are the host:ports that others are told. None is unspecified, and none
// is a loopback address unless the mesh is on one machine.
type endpoints struct {
	gossip, mesh string
	bulk, api    string // empty: none
}

// endpoints settles what others are told; meshBound and bulkBound are what the mesh
// and the bulk transport ("" is none) listen on.
// What is bound to all addresses goes by the ring's one, so that a host with several
// networks shows itself in one of them only.
func (c Config) endpoints(meshBound, bulkBound string, ifaces func() ([]membership.Interface, error)) (endpoints, error) {
	var e endpoints
	var err error
	if e.gossip, err = membership.Advertise(c.GossipAdvertise, c.GossipBind, c.Dev, ifaces); err != nil {
		return e, fmt.Errorf("[ring] %w", err)
	}
	host, _, err := net.SplitHostPort(e.gossip)
	if err != nil {
		return e, fmt.Errorf("[ring] advertise %s: %w", e.gossip, err)
	}
	fabric := c.MeshAdvertise
	if fabric == "" && unspecified(meshBound) {
		fabric = host
	}
	if e.mesh, err = membership.Advertise(fabric, meshBound, c.Dev, ifaces); err != nil {
		return e, fmt.Errorf("[mesh] fabric: %w", err)
	}
	if bulkBound != "" {
		on, _, err := net.SplitHostPort(e.mesh)
		if err != nil {
			return e, fmt.Errorf("[mesh] fabric: %s: %w", e.mesh, err)
		}
		_, port, err := net.SplitHostPort(bulkBound)
		if err != nil {
			return e, fmt.Errorf("[mesh] bulk_port: %s: %w", bulkBound, err)
		}
		e.bulk = net.JoinHostPort(on, port)
	}
	e.api = c.apiEndpoint(host)
	return e, nil
}

// apiEndpoint returns what others are told of the API, on a node that they reach at
// host.
func (c Config) apiEndpoint(host string) string {
	on, port, err := net.SplitHostPort(c.APIAddr)
	if err != nil {
		return "" // Validate has seen it: there is none
	}
	ip, err := netip.ParseAddr(on)
	switch {
	case err == nil && ip.IsUnspecified():
		return net.JoinHostPort(host, port)
	case !c.Dev && (on == "localhost" || err == nil && ip.IsLoopback()):
		return ""
	}
	return c.APIAddr
}

func unspecified(hostport string) bool {
	a, err := netip.ParseAddrPort(hostport)
	return err == nil && a.Addr().IsUnspecified()
}
