package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// ipoibAddressBytes is the length of a hardware address of IP over InfiniBand: four
// bytes of flags and queue pair, then the GID of the port.
const ipoibAddressBytes = 20

// FabricGIDs returns the GIDs that stand for an IP address of this host: the address
// itself, as RoCE has it, and for an address of IP over InfiniBand that of its port.
func FabricGIDs(addr netip.Addr) ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("find the interface of %v: %w", addr, err)
	}
	out := []netip.Addr{addr}
	var bad []error
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			bad = append(bad, fmt.Errorf("addresses of %s: %w", i.Name, err))
			continue
		}
		if !slices.ContainsFunc(addrs, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().Unmap() == addr.Unmap()
		}) {
			continue
		}
		if g, ok := portGID(i.HardwareAddr); ok {
			out = append(out, g)
		}
	}
	return out, errors.Join(bad...)
}

// portGID reads the GID out of a hardware address of IP over InfiniBand.
func portGID(hardware net.HardwareAddr) (netip.Addr, bool) {
	if len(hardware) != ipoibAddressBytes {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(hardware[ipoibAddressBytes-16:])), true
}
