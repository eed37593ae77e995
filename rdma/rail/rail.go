// Package rail decides which ports of two hosts talk RDMA to each other, with which
// addresses and packet size. It is pure: it sees what the devices said of themselves
// (package verbs) and what the peer sent, and answers with rails or with the reason
// why there are none.
//
// A rail is a port that can be used. A host's rails are in the order of their names,
// and rail i of one host talks to rail i of the other: racks are cabled so, and no
// switch need carry traffic between rails. Names of devices mean nothing at another
// host, so they are not compared, unless the configuration lists them.
package rail

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kevlard/kevlard/rdma/verbs"
)

// Rail is a port that can be used, as its host tells the peer.
type Rail struct {
	Device string
	Port   int
	Link   verbs.LinkLayer
	MTU    verbs.MTU
	LID    uint16 // on InfiniBand
	// Addresses are those that a peer may use, the best first.
	Addresses []verbs.GID
}

// Want is what the configuration says.
type Want struct {
	// Fabric, if there are any, are the addresses that a rail must have: [mesh] fabric,
	// and the GID behind it if it is an address of IP over InfiniBand (verbs.FabricGIDs).
	Fabric []netip.Addr
	// Devices, if there are any, are the only ones to use, here and at the peer.
	Devices []string
}

// Local returns the rails of this host, and for each port that is none the reason.
func Local(devices []verbs.Device, want Want) (rails []Rail, why []string) {
	devices = slices.Clone(devices)
	slices.SortStableFunc(devices, func(a, b verbs.Device) int { return CompareNames(a.Name, b.Name) })
	for _, d := range devices {
		if len(want.Devices) > 0 && !slices.Contains(want.Devices, d.Name) {
			continue
		}
		for _, p := range d.Ports {
			r, reason := local(d.Name, p, want)
			if reason != "" {
				why = append(why, fmt.Sprintf("port %d of %s %s", p.Number, d.Name, reason))
				continue
			}
			rails = append(rails, r)
		}
	}
	if len(rails) == 0 && len(why) == 0 {
		why = append(why, none(devices, want))
	}
	if len(rails) > MaxRails {
		why = append(why, fmt.Sprintf("%d rails: the first %d are used", len(rails), MaxRails))
		rails = rails[:MaxRails]
	}
	return rails, why
}

// none says why not even a port was looked at.
func none(devices []verbs.Device, want Want) string {
	if len(devices) == 0 {
		return "this host has no RDMA device"
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return fmt.Sprintf("this host has no RDMA device called %s: it has %s", strings.Join(want.Devices, " or "), strings.Join(names, ", "))
}

func local(device string, p verbs.Port, want Want) (r Rail, reason string) {
	r = Rail{Device: device, Port: p.Number, Link: p.Link, MTU: p.MTU, LID: p.LID}
	if r.Link == verbs.LinkUnspecified {
		r.Link = verbs.LinkInfiniBand
	}
	switch {
	case p.State != verbs.PortActive:
		return r, fmt.Sprintf("is %v (cable: %v)", p.State, p.Physical)
	case p.MTU.Bytes() == 0:
		return r, fmt.Sprintf("has an MTU of unknown number %d", uint8(p.MTU))
	case r.Link == verbs.LinkInfiniBand && p.LID == 0:
		return r, "has no LID: no subnet manager has seen it"
	}
	reasons := map[string]bool{}
	for _, g := range p.GIDs {
		if reason := unusable(r.Link, g, want.Fabric); reason != "" {
			reasons[reason] = true
			continue
		}
		r.Addresses = append(r.Addresses, g)
	}
	slices.SortStableFunc(r.Addresses, func(a, b verbs.GID) int { return cmp.Compare(classOf(r.Link, a), classOf(r.Link, b)) })
	if len(r.Addresses) > MaxAddresses {
		r.Addresses = r.Addresses[:MaxAddresses]
	}
	if len(r.Addresses) > 0 {
		return r, ""
	}
	if len(want.Fabric) > 0 {
		return r, "does not have the address of [mesh] fabric"
	}
	if len(reasons) == 0 {
		return r, "has no address: give its network interface an IP address"
	}
	return r, "has only addresses that are " + strings.Join(slices.Sorted(maps.Keys(reasons)), " or ") + ": give its network interface an IP address"
}

// unusable says why a peer can't be given the address, or nothing.
func unusable(link verbs.LinkLayer, g verbs.GID, fabric []netip.Addr) string {
	a := g.Addr.Unmap()
	switch {
	case !a.IsValid() || a.IsUnspecified() || g.Addr.As16() == [16]byte{}:
		return "empty"
	case len(fabric) > 0:
		// What the configuration names is used, whatever it is.
		if !slices.ContainsFunc(fabric, func(f netip.Addr) bool { return f.Unmap().WithZone("") == a }) {
			return "not [mesh] fabric"
		}
		return ""
	case link == verbs.LinkInfiniBand:
		return "" // fe80::/64 is the default prefix of a subnet there
	case a.IsLinkLocalUnicast():
		return "link-local"
	case a.IsLoopback():
		return "loopback"
	case a.IsMulticast():
		return "multicast"
	}
	return ""
}

// class is a kind of address; both ends must use the same. Lower is better.
type class uint8

const (
	infiniBand class = iota
	v2IPv4           // RoCE v2 passes routers; IPv4 is what networks are set up for first
	v2IPv6
	v1IPv4
	v1IPv6
)

func classOf(link verbs.LinkLayer, g verbs.GID) class {
	switch {
	case link == verbs.LinkInfiniBand:
		return infiniBand
	case g.Type == verbs.GIDRoCEv2 && g.Addr.Is4In6():
		return v2IPv4
	case g.Type == verbs.GIDRoCEv2:
		return v2IPv6
	case g.Addr.Is4In6():
		return v1IPv4
	}
	return v1IPv6
}

// CompareNames orders mlx5_2 before mlx5_10.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits counts those that s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
