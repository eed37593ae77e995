package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/membership"
)

// TestEndpoints checks what a host of two networks tells the others (K35, K38).
func TestEndpoints(t *testing.T) {
	lo := membership.Interface{Name: "lo", Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}
	eth0 := membership.Interface{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}
	eth1 := membership.Interface{Name: "eth1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}}
	all := Config{GossipBind: "0.0.0.0:7946", BulkListen: "0.0.0.0:7948", APIAddr: "0.0.0.0:8080"}
	with := func(edit func(*Config)) Config { c := all; edit(&c); return c }
	for _, c := range []struct {
		name   string
		cfg    Config
		mesh   string
		ifaces []membership.Interface
		want   endpoints
		says   string // in the error
	}{
		{"one network", all, "0.0.0.0:7947", []membership.Interface{lo, eth0}, endpoints{"10.0.0.5:7946", "10.0.0.5:7947", "10.0.0.5:7948", "10.0.0.5:8080"}, ""},
		{"two networks", all, "0.0.0.0:7947", []membership.Interface{lo, eth0, eth1}, endpoints{}, "[ring] advertise: "},
		{
			"one of two", with(func(c *Config) { c.GossipAdvertise, c.MeshAdvertise = "eth1", "eth1" }), "0.0.0.0:7947",
			[]membership.Interface{lo, eth0, eth1},
			endpoints{"10.1.0.5:7946", "10.1.0.5:7947", "10.1.0.5:7948", "10.1.0.5:8080"},
			"",
		},
		{
			"gossip bound to one", with(func(c *Config) { c.GossipBind = "10.1.0.5:7946" }), "[::]:7947",
			[]membership.Interface{lo, eth0, eth1},
			endpoints{"10.1.0.5:7946", "10.1.0.5:7947", "10.1.0.5:7948", "10.1.0.5:8080"},
			"",
		},
		{
			"a fabric of its own", with(func(c *Config) { c.GossipAdvertise, c.MeshAdvertise = "10.0.0.0/24", "10.1.0.5" }), "0.0.0.0:7947",
			[]membership.Interface{lo, eth0, eth1},
			endpoints{"10.0.0.5:7946", "10.1.0.5:7947", "10.1.0.5:7948", "10.0.0.5:8080"},
			"",
		},
		{
			"an impossible fabric", with(func(c *Config) { c.GossipAdvertise, c.MeshAdvertise = "eth0", "0.0.0.0" }), "0.0.0.0:7947",
			[]membership.Interface{lo, eth0, eth1},
			endpoints{},
			"[mesh] fabric: ",
		},
		{"API of this host only", with(func(c *Config) { c.APIAddr = "127.0.0.1:8080" }), "0.0.0.0:7947", []membership.Interface{lo, eth0}, endpoints{"10.0.0.5:7946", "10.0.0.5:7947", "10.0.0.5:7948", ""}, ""},
		{"API of localhost", with(func(c *Config) { c.APIAddr = "localhost:8080" }), "0.0.0.0:7947", []membership.Interface{lo, eth0}, endpoints{"10.0.0.5:7946", "10.0.0.5:7947", "10.0.0.5:7948", ""}, ""},
		{"API elsewhere", with(func(c *Config) { c.APIAddr = "10.1.0.5:80" }), "0.0.0.0:7947", []membership.Interface{lo, eth0}, endpoints{"10.0.0.5:7946", "10.0.0.5:7947", "10.0.0.5:7948", "10.1.0.5:80"}, ""},
		{"no API, no bulk", with(func(c *Config) { c.APIAddr, c.BulkListen = "", "" }), "0.0.0.0:7947", []membership.Interface{lo, eth0}, endpoints{gossip: "10.0.0.5:7946", mesh: "10.0.0.5:7947"}, ""},
		{
			"one machine", with(func(c *Config) { c.Dev, c.GossipBind, c.APIAddr = true, "127.0.0.11:1", "127.0.0.11:2" }), "127.0.0.11:3",
			[]membership.Interface{lo, eth0, eth1},
			endpoints{"127.0.0.11:1", "127.0.0.11:3", "127.0.0.11:7948", "127.0.0.11:2"},
			"",
		},
		{"nothing to be reached at", all, "0.0.0.0:7947", []membership.Interface{lo}, endpoints{}, "has no address that others can reach"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.cfg.endpoints(c.mesh, c.cfg.BulkListen, func() ([]membership.Interface, error) { return c.ifaces, nil })
			if c.says != "" {
				if _, ok := errors.AsType[*membership.AdvertiseError](err); !ok || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error %v, want an AdvertiseError with %q in it", err, c.says)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// TestAPIURL checks the scheme that others are told.
func TestAPIURL(t *testing.T) {
	for _, c := range []struct {
		addr string
		tls  bool
		want string
	}{{"", true, ""}, {"a:1", false, "http://a:1"}, {"a:1", true, "https://a:1"}} {
		if got := apiURL(c.addr, c.tls); got != c.want {
			t.Errorf("apiURL(%q, %t) = %q, want %q", c.addr, c.tls, got, c.want)
		}
	}
}
