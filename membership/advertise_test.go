package membership

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func iface(name string, addrs ...string) Interface {
	i := Interface{Name: name}
	for _, a := range addrs {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
	}
	return i
}

func TestAdvertise(t *testing.T) {
	lo := iface("lo", "127.0.0.1/8", "::1/128")
	eth0 := iface("eth0", "10.0.0.5/24", "fe80::5/64")
	eth1 := iface("eth1", "192.168.7.5/24", "fd00:7::5/64")
	ib0 := iface("ib0", "10.9.0.5/16")
	docker := iface("docker0", "172.17.0.1/16")
	bridge := iface("br-0123456789ab", "172.18.0.1/16")
	v6only := iface("eth2", "fd00::5/64", "fe80::6/64")
	llOnly := iface("eth3", "169.254.3.4/16")
	for _, c := range []struct {
		name, explicit, bind string
		dev                  bool
		have                 []Interface
		want                 string   // "" wants an error
		says                 []string // in the error
		passing              bool     // another start may do better
	}{
		{name: "one routable address", bind: "0.0.0.0:18081", have: []Interface{lo, eth0, docker, bridge}, want: "10.0.0.5:18081"},
		{name: "any of IPv6", bind: "[::]:18081", have: []Interface{lo, eth0}, want: "10.0.0.5:18081"},
		{name: "IPv6 alone", bind: "[::]:1", have: []Interface{lo, v6only}, want: "[fd00::5]:1"},
		{name: "bound address", bind: "10.0.0.5:1", have: []Interface{lo, eth0, eth1}, want: "10.0.0.5:1"},
		{
			name: "K34: docker and a second network", bind: "0.0.0.0:1", have: []Interface{lo, docker, eth0, ib0},
			says: []string{"2 addresses", "10.0.0.5 (eth0)", "10.9.0.5 (ib0)"},
		},
		{name: "K34: nothing routable", bind: "0.0.0.0:1", have: []Interface{lo, docker, llOnly}, says: []string{"has no address", "none"}, passing: true},
		{name: "K34: a host name", explicit: "myhost", bind: "0.0.0.0:1", have: []Interface{lo, eth0}, says: []string{`"myhost"`, "127.0.1.1", "10.0.0.5 (eth0)"}, passing: true},
		{name: "K35: by interface", explicit: "eth1", bind: "0.0.0.0:1", have: []Interface{lo, eth0, eth1}, want: "192.168.7.5:1"},
		{name: "K35: by address", explicit: "192.168.7.5", bind: "0.0.0.0:1", have: []Interface{lo, eth0, eth1}, want: "192.168.7.5:1"},
		{name: "K35: by CIDR", explicit: "192.168.0.0/16", bind: "0.0.0.0:1", have: []Interface{lo, eth0, eth1}, want: "192.168.7.5:1"},
		{name: "IPv6 CIDR", explicit: "fd00:7::/32", bind: "0.0.0.0:1", have: []Interface{lo, eth0, eth1}, want: "[fd00:7::5]:1"},
		{name: "with port", explicit: "10.0.0.5:77", bind: "0.0.0.0:1", have: []Interface{eth0}, want: "10.0.0.5:77"},
		{name: "interface with port", explicit: "eth0:77", bind: "0.0.0.0:1", have: []Interface{eth0}, want: "10.0.0.5:77"},
		{name: "CIDR with port", explicit: "10.0.0.0/8:77", bind: "0.0.0.0:1", have: []Interface{eth0}, want: "10.0.0.5:77"},
		{name: "IPv6 with port", explicit: "[fd00::5]:77", bind: "0.0.0.0:1", have: []Interface{v6only}, want: "[fd00::5]:77"},
		{name: "not ours, as behind NAT", explicit: "203.0.113.9", bind: "10.0.0.5:1", have: []Interface{eth0}, want: "203.0.113.9:1"},
		{name: "K38: unspecified", explicit: "0.0.0.0", bind: "0.0.0.0:1", have: []Interface{eth0}, says: []string{"0.0.0.0", "10.0.0.5 (eth0)"}},
		{name: "K38: unspecified IPv6, even in dev", explicit: "::", bind: "0.0.0.0:1", dev: true, have: []Interface{eth0}, says: []string{"::"}},
		{name: "loopback", explicit: "127.0.0.1", bind: "0.0.0.0:1", have: []Interface{lo, eth0}, says: []string{"loopback", "10.0.0.5 (eth0)"}},
		{name: "loopback interface", explicit: "lo", bind: "0.0.0.0:1", have: []Interface{lo, eth0}, says: []string{"interface lo has no address"}, passing: true},
		{name: "bound to loopback", bind: "127.0.0.1:1", have: []Interface{lo, eth0}, says: []string{"loopback"}},
		{name: "link-local", explicit: "eth3", bind: "0.0.0.0:1", have: []Interface{llOnly}, says: []string{"interface eth3"}, passing: true},
		{name: "link-local address", explicit: "fe80::5", bind: "0.0.0.0:1", have: []Interface{eth0}, says: []string{"link-local"}},
		{name: "docker address", explicit: "172.17.0.1", bind: "0.0.0.0:1", have: []Interface{docker, eth0}, says: []string{"docker0"}},
		{name: "docker interface", explicit: "docker0", bind: "0.0.0.0:1", have: []Interface{docker, eth0}, says: []string{"docker0", "10.0.0.5 (eth0)"}, passing: true},
		{name: "empty CIDR", explicit: "10.8.0.0/16", bind: "0.0.0.0:1", have: []Interface{eth0}, says: []string{"10.8.0.0/16"}, passing: true},
		{name: "bad CIDR", explicit: "10.8.0.0/99", bind: "0.0.0.0:1", have: []Interface{eth0}, says: []string{"10.8.0.0/99"}},
		{name: "bad port", explicit: "eth0:99999", bind: "0.0.0.0:1", have: []Interface{eth0}, says: []string{"99999"}},
		{name: "bad bind", bind: "everywhere", have: []Interface{eth0}, says: []string{"everywhere"}},
		{name: "dev", bind: "0.0.0.0:1", dev: true, have: []Interface{lo, eth0, eth1}, want: "127.0.0.1:1"},
		{name: "dev, bound to loopback", bind: "127.0.0.11:18081", dev: true, have: []Interface{lo}, want: "127.0.0.11:18081"},
		{name: "dev, IPv6 loopback", explicit: "::1", bind: "[::1]:1", dev: true, have: []Interface{lo}, want: "[::1]:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Advertise(c.explicit, c.bind, c.dev, func() ([]Interface, error) { return c.have, nil })
			if got != c.want || (err == nil) != (c.want != "") {
				t.Fatalf("got %q, %v, want %q", got, err, c.want)
			}
			if e, ok := errors.AsType[*AdvertiseError](err); ok && e.Passing != c.passing {
				t.Errorf("passing is %t: %v", e.Passing, err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
		})
	}
}

func TestSystemInterfaces(t *testing.T) {
	have, err := SystemInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range have {
		for _, p := range i.Addrs {
			if p.Addr() == netip.MustParseAddr("127.0.0.1") {
				return
			}
		}
	}
	t.Errorf("no interface has 127.0.0.1: %v", have)
}
