package rail

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kevlard/kevlard/rdma/verbs"
)

// Pair is a rail here and its rail at the peer, and how they talk.
type Pair struct {
	Local, Remote Rail
	Source        verbs.GID // here
	Destination   verbs.GID // at the peer
	MTU           verbs.MTU // the smaller of both
	Global        bool      // packets carry GIDs: always on Ethernet, on InfiniBand between subnets
}

// Match pairs this host's rails with those that the peer sent, rail i with rail i. Of
// rails that can't talk to each other reason says why; with no pair at all it is what
// the log is to say, once.
func Match(local, remote []Rail, want Want) (pairs []Pair, reason string) {
	if len(local) == 0 {
		return nil, "this host has no RDMA port that can be used"
	}
	if len(remote) == 0 {
		return nil, "the peer has no RDMA port that can be used"
	}
	if len(want.Devices) > 0 {
		there := remote
		remote = slices.DeleteFunc(slices.Clone(remote), func(r Rail) bool { return !slices.Contains(want.Devices, r.Device) })
		if len(remote) == 0 {
			return nil, fmt.Sprintf("the peer has no RDMA device called %s: it has %s", strings.Join(want.Devices, " or "), deviceNames(there))
		}
	}
	var why []string
	for i := range min(len(local), len(remote), MaxRails) {
		p, no := match(local[i], remote[i])
		if no != "" {
			why = append(why, fmt.Sprintf("rail %d (%s here, %s there): %s", i, local[i].Device, remote[i].Device, no))
			continue
		}
		pairs = append(pairs, p)
	}
	return pairs, strings.Join(why, "; ")
}

func deviceNames(rails []Rail) string {
	var names []string
	for _, r := range rails[:min(len(rails), MaxRails)] {
		if !slices.Contains(names, r.Device) {
			names = append(names, r.Device)
		}
	}
	return strings.Join(names, ", ")
}

func match(l, r Rail) (p Pair, no string) {
	switch {
	case l.Link != r.Link:
		return p, fmt.Sprintf("%v here and %v there", l.Link, r.Link)
	case r.MTU.Bytes() == 0:
		return p, fmt.Sprintf("the peer's MTU has the unknown number %d", uint8(r.MTU))
	}
	p = Pair{Local: l, Remote: r, MTU: min(l.MTU, r.MTU)}
	if l.Link == verbs.LinkInfiniBand {
		return matchInfiniBand(p)
	}
	found := false
	for _, s := range l.Addresses {
		for _, d := range r.Addresses {
			c := classOf(l.Link, s)
			if c != classOf(r.Link, d) || !sameScope(s, d) || found && c >= classOf(l.Link, p.Source) {
				continue
			}
			p.Source, p.Destination, found = s, d, true
		}
	}
	if !found {
		return p, fmt.Sprintf("no kind of address in common: %s here, %s there", kinds(l), kinds(r))
	}
	p.Global = true
	return p, ""
}

// matchInfiniBand talks by LID within a subnet, as its manager has set up the switches,
// and by GID where the prefixes differ.
func matchInfiniBand(p Pair) (Pair, string) {
	if len(p.Local.Addresses) == 0 || len(p.Remote.Addresses) == 0 {
		return p, "a port without a GID"
	}
	p.Source, p.Destination = p.Local.Addresses[0], p.Remote.Addresses[0]
	a, b := p.Source.Addr.As16(), p.Destination.Addr.As16()
	p.Global = [8]byte(a[:8]) != [8]byte(b[:8])
	if p.Remote.LID == 0 && !p.Global {
		return p, "the peer's port has no LID"
	}
	return p, ""
}

// sameScope keeps a routable address from talking to one that means something else, or
// nothing, where the peer is.
func sameScope(a, b verbs.GID) bool {
	x, y := a.Addr.Unmap(), b.Addr.Unmap()
	return x.IsValid() && y.IsValid() && !y.IsUnspecified() && !y.IsMulticast() &&
		x.IsLoopback() == y.IsLoopback() && x.IsLinkLocalUnicast() == y.IsLinkLocalUnicast()
}

// kinds names the kinds of a rail's addresses.
func kinds(r Rail) string {
	var out []string
	for _, g := range r.Addresses {
		kind := g.Type.String() + " with IPv6"
		if g.Addr.Is4In6() {
			kind = g.Type.String() + " with IPv4"
		}
		if !slices.Contains(out, kind) {
			out = append(out, kind)
		}
	}
	return cmp.Or(strings.Join(out, " and "), "none")
}
