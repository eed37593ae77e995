package rail

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/rdma/verbs"
	"pgregory.net/rapid"
)

// gid makes an entry of a GID table; IPv4 addresses are mapped, as cards hold them.
func gid(i int, addr string, t verbs.GIDType) verbs.GID {
	a := netip.MustParseAddr(addr)
	return verbs.GID{Index: i, Addr: netip.AddrFrom16(a.As16()), Type: t}
}

const (
	v1 = verbs.GIDRoCEv1
	v2 = verbs.GIDRoCEv2
	ib = verbs.GIDInfiniBand
)

// ethernet makes a device with one active port.
func ethernet(name string, mtu verbs.MTU, gids ...verbs.GID) verbs.Device {
	return verbs.Device{Name: name, Ports: []verbs.Port{{Number: 1, State: verbs.PortActive, Link: verbs.LinkEthernet, MTU: mtu, GIDs: gids}}}
}

func infiniband(name string, lid uint16, mtu verbs.MTU, g string) verbs.Device {
	return verbs.Device{Name: name, Ports: []verbs.Port{{Number: 1, State: verbs.PortActive, Link: verbs.LinkInfiniBand, MTU: mtu, LID: lid, GIDs: []verbs.GID{gid(0, g, ib)}}}}
}

// table is the GID table of a common card whose interface has IPv4 and IPv6: each
// address as RoCE v1 and v2, link-local first.
func table(v4, v6 string) []verbs.GID {
	return []verbs.GID{
		gid(0, "fe80::1", v1), gid(1, "fe80::1", v2), gid(2, v4, v1), gid(3, v4, v2), gid(4, v6, v1), gid(5, v6, v2),
	}
}

// TestK57GID is case K57: the table begins with link-local entries, RoCE v2 with IPv4
// comes third or later, entries are empty, hosts have IPv6 only.
func TestK57GID(t *testing.T) {
	down := ethernet("mlx5_0", 5, gid(0, "10.0.0.1", v2))
	down.Ports[0].State, down.Ports[0].Physical = verbs.PortDown, 3
	for _, c := range []struct {
		name string
		dev  verbs.Device
		want Want
		best int    // index of the first address
		n    int    // addresses in all
		why  string // or the reason for none
	}{
		{"link-local first", ethernet("mlx5_0", 5, table("10.0.0.1", "fd00::1")...), Want{}, 3, 4, ""},
		{"v1 only", ethernet("mlx5_0", 5, gid(0, "fe80::1", v1), gid(1, "10.0.0.1", v1)), Want{}, 1, 1, ""},
		{"empty entries", ethernet("mlx5_0", 5, gid(0, "::", v2), gid(1, "::", v1), gid(2, "0.0.0.0", v2), gid(7, "10.0.0.1", v2)), Want{}, 7, 1, ""},
		{"IPv6 only", ethernet("mlx5_0", 5, gid(0, "fe80::1", v1), gid(1, "fe80::1", v2), gid(2, "2001:db8::1", v1), gid(3, "2001:db8::1", v2)), Want{}, 3, 2, ""},
		{"v2 before v1, whatever the family", ethernet("mlx5_0", 5, gid(0, "10.0.0.1", v1), gid(1, "2001:db8::1", v2)), Want{}, 1, 2, ""},
		{"link-local only", ethernet("mlx5_0", 5, gid(0, "fe80::1", v1), gid(1, "fe80::1", v2)), Want{}, 0, 0, "port 1 of mlx5_0 has only addresses that are link-local: give"},
		{"IPv4 link-local", ethernet("mlx5_0", 5, gid(0, "169.254.3.4", v2)), Want{}, 0, 0, "port 1 of mlx5_0 has only addresses that are link-local: give"},
		{"loopback and link-local", ethernet("rxe0", 5, gid(0, "127.0.0.1", v2), gid(1, "fe80::1", v2)), Want{}, 0, 0, "port 1 of rxe0 has only addresses that are link-local or loopback: give"},
		{"no addresses", ethernet("mlx5_0", 5), Want{}, 0, 0, "port 1 of mlx5_0 has no address: give"},
		{"port down", down, Want{}, 0, 0, "port 1 of mlx5_0 is down (cable: disabled)"},
		{"fabric picks the entry", ethernet("mlx5_0", 5, table("10.0.0.1", "fd00::1")...), Want{Fabric: []netip.Addr{netip.MustParseAddr("fd00::1")}}, 5, 2, ""},
		{"fabric may be loopback", ethernet("rxe0", 5, gid(0, "fe80::1", v2), gid(1, "127.0.0.1", v2)), Want{Fabric: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, 1, 1, ""},
		{"fabric elsewhere", ethernet("mlx5_0", 5, table("10.0.0.1", "fd00::1")...), Want{Fabric: []netip.Addr{netip.MustParseAddr("10.9.9.9")}}, 0, 0, "port 1 of mlx5_0 does not have the address of [mesh] fabric"},
		{"InfiniBand: the default prefix is no link-local address", infiniband("mlx5_0", 7, 5, "fe80::e41d:2d03:1:2"), Want{}, 0, 1, ""},
		{"InfiniBand without a subnet manager", infiniband("mlx5_0", 0, 5, "fe80::e41d:2d03:1:2"), Want{}, 0, 0, "port 1 of mlx5_0 has no LID"},
		{"unknown MTU", ethernet("mlx5_0", 9, gid(0, "10.0.0.1", v2)), Want{}, 0, 0, "port 1 of mlx5_0 has an MTU of unknown number 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rails, why := Local([]verbs.Device{c.dev}, c.want)
			if c.why != "" {
				if len(rails) > 0 || len(why) != 1 || !strings.HasPrefix(why[0], c.why) {
					t.Fatalf("rails %v, why %q; want %q", rails, why, c.why)
				}
				return
			}
			if len(rails) != 1 || len(why) > 0 || len(rails[0].Addresses) != c.n || rails[0].Addresses[0].Index != c.best {
				t.Fatalf("rails %+v, why %q; want entry %d of %d", rails, why, c.best, c.n)
			}
		})
	}
}

// TestK57FabricPicksDevice: two cards, of which the configuration names one by address;
// they are not all bound to the same.
func TestK57FabricPicksDevice(t *testing.T) {
	devices := []verbs.Device{ethernet("mlx5_0", 5, table("10.0.0.1", "fd00::1")...), ethernet("mlx5_1", 5, table("10.0.1.1", "fd01::1")...)}
	for i, addr := range []string{"10.0.0.1", "10.0.1.1"} {
		rails, why := Local(devices, Want{Fabric: []netip.Addr{netip.MustParseAddr(addr)}})
		if len(rails) != 1 || rails[0].Device != devices[i].Name || len(why) != 1 {
			t.Errorf("%s: rails %+v, why %q", addr, rails, why)
		}
	}
	rails, _ := Local(devices, Want{})
	if len(rails) != 2 || rails[0].Addresses[0].Addr == rails[1].Addresses[0].Addr {
		t.Errorf("rails %+v", rails)
	}
}

// pair matches the one rail of each of two devices.
func pair(t *testing.T, a, b verbs.Device) (Pair, string) {
	t.Helper()
	l, why := Local([]verbs.Device{a}, Want{})
	r, more := Local([]verbs.Device{b}, Want{})
	if len(l) != 1 || len(r) != 1 {
		t.Fatalf("%q, %q", why, more)
	}
	pairs, reason := Match(l, r, Want{})
	if len(pairs) == 0 {
		return Pair{}, reason
	}
	return pairs[0], reason
}

// TestK56MTU is case K56: the peers' ports have different MTUs; both must use the
// smaller, whoever asks.
func TestK56MTU(t *testing.T) {
	for _, c := range []struct{ a, b, bytes int }{{5, 3, 1024}, {3, 5, 1024}, {5, 5, 4096}, {1, 4, 256}, {2, 4, 512}, {4, 5, 2048}} {
		p, reason := pair(t, ethernet("mlx5_0", verbs.MTU(c.a), gid(0, "10.0.0.1", v2)), ethernet("rxe7", verbs.MTU(c.b), gid(4, "10.0.0.2", v2)))
		if reason != "" || p.MTU.Bytes() != c.bytes {
			t.Errorf("%d and %d: MTU %v, %q; want %d", c.a, c.b, p.MTU, reason, c.bytes)
		}
	}
}

func TestMatchAddresses(t *testing.T) {
	both := ethernet("a", 5, table("10.0.0.1", "fd00::1")...)
	six := ethernet("b", 5, gid(0, "fe80::2", v2), gid(1, "fd00::2", v1), gid(2, "fd00::2", v2))
	old := ethernet("b", 5, gid(0, "10.0.0.2", v1))
	for _, c := range []struct {
		name     string
		a, b     verbs.Device
		from, to int
		global   bool
		reason   string
	}{
		{"RoCE v2 with IPv4 wins", both, ethernet("b", 5, table("10.0.0.2", "fd00::2")...), 3, 3, true, ""},
		{"the peer has IPv6 only", both, six, 5, 2, true, ""},
		{"the peer has RoCE v1 only", both, old, 2, 0, true, ""},
		{"nothing in common", six, old, 0, 0, false, "rail 0 (b here, b there): no kind of address in common: RoCE v2 with IPv6 and RoCE v1 with IPv6 here, RoCE v1 with IPv4 there"},
		{"Ethernet and InfiniBand", both, infiniband("b", 3, 5, "fe80::2"), 0, 0, false, "rail 0 (a here, b there): Ethernet here and InfiniBand there"},
		{"InfiniBand, one subnet: by LID", infiniband("a", 2, 5, "fe80::1"), infiniband("b", 3, 4, "fe80::2"), 0, 0, false, ""},
		{"InfiniBand, two subnets: by GID", infiniband("a", 2, 5, "fec0:0:0:1::1"), infiniband("b", 3, 4, "fec0:0:0:2::2"), 0, 0, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, reason := pair(t, c.a, c.b)
			if reason != c.reason || reason == "" && (p.Source.Index != c.from || p.Destination.Index != c.to || p.Global != c.global) {
				t.Errorf("%+v, %q", p, reason)
			}
		})
	}
}

// TestMatchStranger: what a peer sends may be anything.
func TestMatchStranger(t *testing.T) {
	l, _ := Local([]verbs.Device{ethernet("a", 5, table("10.0.0.1", "fd00::1")...)}, Want{})
	for name, r := range map[string]Rail{
		"nothing":    {},
		"no MTU":     {Link: verbs.LinkEthernet, Addresses: table("10.0.0.2", "fd00::2")},
		"loopback":   {Link: verbs.LinkEthernet, MTU: 5, Addresses: []verbs.GID{gid(0, "127.0.0.1", v2)}},
		"link-local": {Link: verbs.LinkEthernet, MTU: 5, Addresses: []verbs.GID{gid(0, "fe80::7", v2)}},
		"no GID":     {Link: verbs.LinkEthernet, MTU: 5, Addresses: []verbs.GID{{}}},
	} {
		if pairs, reason := Match(l, []Rail{r}, Want{}); len(pairs) > 0 || reason == "" {
			t.Errorf("%s: %+v", name, pairs)
		}
	}
}

// rails makes n devices, all well, on one host.
func rails(host, n int) []verbs.Device {
	var out []verbs.Device
	for i := range n {
		out = append(out, ethernet(fmt.Sprintf("mlx5_%d", i), 5, table(fmt.Sprintf("10.%d.0.%d", i, host), fmt.Sprintf("fd00:%x::%d", i, host))...))
	}
	return out
}

// TestK58Names is case K58: names of cards that the peer does not have, and cards that
// stand idle.
func TestK58Names(t *testing.T) {
	l, _ := Local(rails(1, 4), Want{})
	there := rails(2, 4)
	for i := range there {
		there[i].Name = fmt.Sprintf("rocep%ds0", i)
	}
	r, _ := Local(there, Want{})
	pairs, reason := Match(l, r, Want{})
	if len(pairs) != 4 || reason != "" {
		t.Fatalf("other names than here: %d pairs, %q", len(pairs), reason)
	}
	want := Want{Devices: []string{"mlx5_1", "mlx5_3"}}
	l, why := Local(rails(1, 4), want)
	if len(l) != 2 || len(why) > 0 {
		t.Fatalf("%+v, %q", l, why)
	}
	if pairs, reason := Match(l, r, want); len(pairs) != 0 || reason != "the peer has no RDMA device called mlx5_1 or mlx5_3: it has rocep0s0, rocep1s0, rocep2s0, rocep3s0" {
		t.Errorf("%+v, %q", pairs, reason)
	}
	if l, why := Local(rails(1, 2), Want{Devices: []string{"mlx5_9"}}); len(l) > 0 || !slices.Equal(why, []string{"this host has no RDMA device called mlx5_9: it has mlx5_0, mlx5_1"}) {
		t.Errorf("%+v, %q", l, why)
	}
	if l, why := Local(nil, Want{}); len(l) > 0 || !slices.Equal(why, []string{"this host has no RDMA device"}) {
		t.Errorf("%+v, %q", l, why)
	}
	for _, c := range [][2][]Rail{{nil, r}, {r, nil}} {
		if pairs, reason := Match(c[0], c[1], Want{}); len(pairs) > 0 || !strings.HasSuffix(reason, "has no RDMA port that can be used") {
			t.Errorf("%+v, %q", pairs, reason)
		}
	}
}

// TestK58RailToRail: all cards work, rail i with rail i, in the order of numbers and
// not of letters, and also where one host has fewer.
func TestK58RailToRail(t *testing.T) {
	mine := rails(1, 12)
	slices.Reverse(mine)
	l, _ := Local(mine, Want{})
	r, _ := Local(rails(2, 11), Want{})
	pairs, reason := Match(l, r, Want{})
	if len(pairs) != 11 || reason != "" {
		t.Fatalf("%d pairs, %q", len(pairs), reason)
	}
	for i, p := range pairs {
		want := fmt.Sprintf("mlx5_%d", i)
		if p.Local.Device != want || p.Remote.Device != want {
			t.Errorf("rail %d: %s with %s", i, p.Local.Device, p.Remote.Device)
		}
	}
	// One rail that can't talk does not shift the others.
	r[3].Addresses = nil
	pairs, reason = Match(l, r, Want{})
	if len(pairs) != 10 || pairs[3].Local.Device != "mlx5_4" || pairs[3].Remote.Device != "mlx5_4" || !strings.HasPrefix(reason, "rail 3 (mlx5_3 here, mlx5_3 there): ") {
		t.Errorf("%d pairs, %q", len(pairs), reason)
	}
}

// TestMatchIsMutual: both ends decide for themselves and must come to the same.
func TestMatchIsMutual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := func(n int) []Rail {
			var devices []verbs.Device
			for i := range rapid.IntRange(0, 3).Draw(t, "devices") {
				var gids []verbs.GID
				for j := range rapid.IntRange(0, 6).Draw(t, "gids") {
					addr := rapid.SampledFrom([]string{"fe80::%d", "10.0.0.%d", "fd00::%d", "127.0.0.1", "::"}).Draw(t, "addr")
					if strings.Contains(addr, "%d") {
						addr = fmt.Sprintf(addr, n+j)
					}
					gids = append(gids, gid(j, addr, verbs.GIDType(rapid.IntRange(1, 2).Draw(t, "type"))))
				}
				d := ethernet(fmt.Sprintf("d%d", i), verbs.MTU(rapid.IntRange(1, 5).Draw(t, "mtu")), gids...)
				if rapid.Bool().Draw(t, "InfiniBand") {
					d = infiniband(d.Name, uint16(n+1), d.Ports[0].MTU, fmt.Sprintf("fe80::%d", n+1))
				}
				devices = append(devices, d)
			}
			out, _ := Local(devices, Want{})
			return out
		}
		a, b := host(10), host(20)
		there, reasonThere := Match(a, b, Want{})
		back, reasonBack := Match(b, a, Want{})
		if len(there) != len(back) || len(there) == 0 && (reasonThere == "" || reasonBack == "") {
			t.Fatalf("%+v (%q) and %+v (%q)", there, reasonThere, back, reasonBack)
		}
		for i, p := range there {
			q := back[i]
			if p.MTU != q.MTU || p.Global != q.Global || p.Source.Type != p.Destination.Type || p.Source.Addr.Is4In6() != p.Destination.Addr.Is4In6() ||
				classOf(p.Local.Link, p.Source) != classOf(q.Local.Link, q.Source) || p.Source != q.Destination || p.Destination != q.Source {
				t.Fatalf("%+v\n%+v", p, q)
			}
		}
	})
}
