package membership

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Interface is a network interface of the host that is up.
type Interface struct {
	Name  string
	Addrs []netip.Prefix
}

// SystemInterfaces lists the interfaces of this host that are up.
func SystemInterfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var out []Interface
	for _, n := range all {
		if n.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := n.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", n.Name, err)
		}
		i := Interface{Name: n.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, netip.PrefixFrom(p.Addr().Unmap().WithZone(""), p.Bits()))
			}
		}
		out = append(out, i)
	}
	return out, nil
}

// containerBridge matches interfaces whose addresses mean another thing on every
// host: the bridges of container and VM managers.
var containerBridge = regexp.MustCompile(
	`^(docker|podman|veth|virbr|vnet|lxc|lxd|cni|flannel|cali|cilium|weave|kube-|nerdctl|br-[0-9a-f]{12}$)`)

// AdvertiseError says why an address is not advertised, and what could be.
type AdvertiseError struct {
	// Passing: a host whose interfaces come up later may do without a change of its
	// configuration.
	Passing bool

	text string
}

// Error implements error.
func (e *AdvertiseError) Error() string { return e.text }

// notUp is a refusal that an interface which comes up later may mend.
type notUp string

func (e notUp) Error() string { return string(e) }

// Advertise returns the ip:port that others should use to reach a listener bound
// to bind (ip:port). explicit is what the operator said: an IP address, the name
// of an interface, or a CIDR that one local address lies in, each optionally with
// ":port" (an IPv6 address then in brackets); empty means the address of bind,
// or, if that is unspecified, the one routable address of the host. The port
// defaults to that of bind.
//
// Loopback, link-local and container-bridge addresses are refused, since
// they mean another host to everyone else; with dev, loopback is allowed and
// is what an unspecified bind gives. Nobody ever advertises an unspecified
// address. A refusal is an *AdvertiseError that lists the candidates by interface.
func Advertise(explicit, bind string, dev bool, ifaces func() ([]Interface, error)) (string, error) {
	b, err := netip.ParseAddrPort(bind)
	if err != nil {
		return "", fmt.Errorf("bind %q: want ip:port: %w", bind, err)
	}
	b = netip.AddrPortFrom(b.Addr().Unmap(), b.Port())
	host, port, err := splitAdvertise(explicit, b.Port())
	if err != nil {
		return "", err
	}
	have, err := ifaces()
	if err != nil {
		return "", err
	}
	h := hostAddrs{have: have, dev: dev}
	var addr netip.Addr
	switch ip, ipErr := netip.ParseAddr(host); {
	case host == "" && !b.Addr().IsUnspecified():
		addr, err = b.Addr(), h.reject(b.Addr())
	case host == "" && dev:
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case host == "":
		addr, err = only(h.routable(func(string, netip.Addr) bool { return true }), "this host")
	case ipErr == nil:
		addr, err = ip.Unmap(), h.reject(ip.Unmap())
	case strings.Contains(host, "/"):
		p, perr := netip.ParsePrefix(host)
		if perr != nil {
			return "", fmt.Errorf("advertise %q: want an address, interface or CIDR: %w", explicit, perr)
		}
		addr, err = only(h.routable(func(_ string, a netip.Addr) bool { return p.Contains(a) }), "the network "+host)
	case !slices.ContainsFunc(have, func(i Interface) bool { return i.Name == host }):
		err = notUp("neither an address nor a CIDR nor an interface that is up (host names are not taken: /etc/hosts often maps them to 127.0.1.1)")
	default:
		addr, err = only(h.routable(func(name string, _ netip.Addr) bool { return name == host }), "interface "+host)
	}
	if err != nil {
		said := "advertise"
		if explicit != "" {
			said = fmt.Sprintf("advertise %q", explicit)
		}
		_, passing := errors.AsType[notUp](err)
		return "", &AdvertiseError{passing, fmt.Sprintf("%s: %v; name one of: %s", said, err, h.candidates())}
	}
	return netip.AddrPortFrom(addr, port).String(), nil
}

// splitAdvertise takes an optional port off the operator's words.
func splitAdvertise(s string, port uint16) (string, uint16, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().String(), ap.Port(), nil
	}
	i := strings.LastIndexByte(s, ':')
	if _, err := netip.ParseAddr(s); err == nil || i < 0 || strings.Contains(s, "/") && strings.Count(s, ":") > 1 {
		return s, port, nil
	}
	ap, err := netip.ParseAddrPort("0.0.0.0" + s[i:])
	if err != nil {
		return "", 0, fmt.Errorf("advertise %q: bad port %q", s, s[i+1:])
	}
	return s[:i], ap.Port(), nil
}

// hostAddrs are a host's addresses and the rule over them.
type hostAddrs struct {
	have []Interface
	dev  bool
}

// reject says why a may not be advertised.
func (h hostAddrs) reject(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return fmt.Errorf("%s is no address that others can reach", a)
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is not one host's address", a)
	case a.IsLinkLocalUnicast():
		return fmt.Errorf("%s is link-local", a)
	case a.IsLoopback() && !h.dev:
		return fmt.Errorf("%s is loopback: every other node would reach itself", a)
	}
	for _, i := range h.have {
		for _, p := range i.Addrs {
			if p.Addr() == a && containerBridge.MatchString(i.Name) {
				return fmt.Errorf("%s is on %s, a bridge that exists on every host", a, i.Name)
			}
		}
	}
	return nil
}

// routable returns the addresses that may be advertised and that pick wants:
// the IPv4 ones, or if there are none the IPv6 ones.
func (h hostAddrs) routable(pick func(iface string, a netip.Addr) bool) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, i := range h.have {
		for _, p := range i.Addrs {
			a := p.Addr()
			switch {
			case containerBridge.MatchString(i.Name) || h.reject(a) != nil || !pick(i.Name, a):
			case a.Is4():
				v4 = append(v4, a)
			default:
				v6 = append(v6, a)
			}
		}
	}
	if len(v4) > 0 {
		return v4
	}
	return v6
}

func only(addrs []netip.Addr, where string) (netip.Addr, error) {
	switch len(addrs) {
	case 0:
		return netip.Addr{}, notUp(where + " has no address that others can reach")
	case 1:
		return addrs[0], nil
	}
	return netip.Addr{}, fmt.Errorf("%s has %d addresses that others may reach, which is for you to choose", where, len(addrs))
}

// candidates lists what could be named, as "10.0.0.5 (eth0), fd00::5 (eth0)".
func (h hostAddrs) candidates() string {
	var out []string
	for _, i := range h.have {
		for _, p := range i.Addrs {
			if !containerBridge.MatchString(i.Name) && h.reject(p.Addr()) == nil {
				out = append(out, fmt.Sprintf("%s (%s)", p.Addr(), i.Name))
			}
		}
	}
	if len(out) == 0 {
		return "(this host has none: bring an interface up)"
	}
	return strings.Join(out, ", ")
}
