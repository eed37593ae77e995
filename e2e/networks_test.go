package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

// host is a network namespace that plays a host of its own.
type host string

// newHost makes a host without networks; it goes with the test. Its resolver maps
// this machine's name to 127.0.1.1, as Debian's installer does.
func newHost(t *testing.T, name string) host {
	t.Helper()
	needRoot(t, "it makes network namespaces")
	h := host(fmt.Sprintf("kv%d%s", os.Getpid(), name))
	system(t, "ip", "netns", "add", string(h))
	t.Cleanup(func() { system(t, "ip", "netns", "del", string(h)) })
	system(t, "ip", "-n", string(h), "link", "set", "lo", "up")
	return h
}

// connect puts a cable between an interface of h and one of o. Addresses are CIDRs.
func (h host) connect(t *testing.T, name, addr string, o host, peer, peerAddr string) {
	t.Helper()
	system(t, "ip", "-n", string(h), "link", "add", name, "type", "veth", "peer", "name", peer, "netns", string(o))
	h.up(t, name, addr)
	o.up(t, peer, peerAddr)
}

// bridge adds an interface as container managers do.
func (h host) bridge(t *testing.T, name, addr string) {
	t.Helper()
	system(t, "ip", "-n", string(h), "link", "add", name, "type", "bridge")
	h.up(t, name, addr)
}

func (h host) up(t *testing.T, name, addr string) {
	t.Helper()
	system(t, "ip", "-n", string(h), "addr", "add", addr, "dev", name)
	system(t, "ip", "-n", string(h), "link", "set", name, "up")
}

// agent prepares an agent on h that binds to all addresses and advertises nothing in
// particular.
func (h host) agent(t *testing.T, name string) *single {
	t.Helper()
	s := newSingle(t, name)
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	hosts := writeFile(t, filepath.Join(s.dir, "hosts"), "127.0.0.1 localhost\n127.0.1.1 "+machine+"\n", 0o644)
	key, line, err := api.NewKey("test")
	if err != nil || key == "" {
		t.Fatal(err)
	}
	s.conf["ring"] = map[string]any{"bind": "0.0.0.0:7946", "secret_file": s.conf["ring"]["secret_file"]}
	s.conf["mesh"] = map[string]any{"bind": "0.0.0.0:7947"}
	s.conf["api"] = map[string]any{"listen": "0.0.0.0:8080", "keys_file": writeFile(t, filepath.Join(s.dir, "keys"), line+"\n", 0o600)}
	// Each `ip netns exec` has its own mounts.
	s.wrap = []string{"ip", "netns", "exec", string(h), "sh", "-c", `mount --bind '` + hosts + `' /etc/hosts && exec "$@"`, "sh"}
	return s
}

// endpoints are the addresses that one node knows of another.
type endpoints struct{ gossip, mesh, bulk, api string }

// at returns the endpoints of a node with the default ports on one address.
func at(ip string) endpoints {
	return endpoints{ip + ":7946", ip + ":7947", ip + ":7948", "http://" + ip + ":8080"}
}

// seen waits until both nodes see each other alive, over gossip and the mesh, and
// returns the endpoints by observer and node.
func seen(t *testing.T, nodes ...*single) map[string]map[string]endpoints {
	t.Helper()
	out := map[string]map[string]endpoints{}
	for _, s := range nodes {
		client := api.NewClient(s.socket())
		var members report.Members
		eventually(t, readyWithin, func() error {
			var err error
			if members, err = client.Members(t.Context()); err != nil {
				return err
			}
			if len(members.Nodes) != len(nodes) {
				return fmt.Errorf("%s sees %d members", s.name, len(members.Nodes))
			}
			for _, m := range members.Nodes {
				if m.State != "alive" || m.Name != s.name && !m.Ready {
					return fmt.Errorf("%s sees %s %s: %s", s.name, m.Name, m.State, m.Reason)
				}
			}
			return nil
		})
		out[s.name] = map[string]endpoints{}
		for _, m := range members.Nodes {
			out[s.name][m.Name] = endpoints{m.Addr, m.MeshAddr, m.BulkAddr, m.API}
		}
		text, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		for _, never := range []string{"0.0.0.0", "[::]", "127.0.", "172.17."} {
			if strings.Contains(string(text), never) {
				t.Errorf("%s knows an address %s...: %s", s.name, never, text)
			}
		}
	}
	return out
}

// TestOneNetwork is K34 and K38: the host's name is 127.0.1.1, a container bridge and
// one network are there, and all is bound to all addresses. Others are told the
// network's address, and never the bridge's, a loopback or an unspecified one.
func TestOneNetwork(t *testing.T) {
	for _, every := range []string{"0.0.0.0", "[::]"} {
		t.Run(every, func(t *testing.T) {
			a, b := newHost(t, "a"), newHost(t, "b")
			a.bridge(t, "docker0", "172.17.0.1/16")
			b.bridge(t, "docker0", "172.17.0.1/16")
			a.connect(t, "eth0", "10.77.0.1/24", b, "eth0", "10.77.0.2/24")
			one := a.agent(t, "one")
			one.set("ring", "bind", every+":7946")
			one.set("mesh", "bind", every+":7947")
			one.set("api", "listen", every+":8080")
			one.start(t)
			one.up(t)
			two := b.agent(t, "two")
			two.set("ring", "join", []string{"10.77.0.1:7946"})
			two.set("ring", "secret_file", one.conf["ring"]["secret_file"])
			two.start(t)
			two.up(t)
			for observer, know := range seen(t, one, two) {
				if know["one"] != at("10.77.0.1") || know["two"] != at("10.77.0.2") {
					t.Errorf("%s knows %+v", observer, know)
				}
			}
			two.stop(t)
			one.stop(t)
		})
	}
}

// TestTwoNetworks is K35: of two networks, the one that advertise names is used for
// every endpoint, in all ways to name it. The other one leads nowhere.
func TestTwoNetworks(t *testing.T) {
	a, b, elsewhere := newHost(t, "a"), newHost(t, "b"), newHost(t, "c")
	a.connect(t, "eth0", "10.77.0.1/24", elsewhere, "eth0", "10.77.0.9/24")
	a.connect(t, "eth1", "10.88.0.1/24", b, "eth1", "10.88.0.2/24")
	b.connect(t, "eth0", "10.66.0.2/24", elsewhere, "eth1", "10.66.0.9/24")
	for _, c := range []struct{ name, advertise string }{{"interface", "eth1"}, {"address", "10.88.0.1"}, {"CIDR", "10.88.0.0/16"}} {
		t.Run(c.name, func(t *testing.T) {
			one := a.agent(t, "one")
			one.set("ring", "advertise", c.advertise)
			one.start(t)
			one.up(t)
			two := b.agent(t, "two")
			two.set("ring", "advertise", "10.88.0.0/16")
			two.set("ring", "join", []string{"10.88.0.1:7946"})
			two.set("ring", "secret_file", one.conf["ring"]["secret_file"])
			cert, key := certificate(t, two.dir)
			two.set("api", "tls_cert", cert)
			two.set("api", "tls_key", key)
			two.start(t)
			two.up(t)
			secure := at("10.88.0.2")
			secure.api = "https://10.88.0.2:8080"
			for observer, know := range seen(t, one, two) {
				if know["one"] != at("10.88.0.1") || know["two"] != secure {
					t.Errorf("%s knows %+v", observer, know)
				}
			}
			two.stop(t)
			one.stop(t)
		})
	}
}

// TestNoAddressToChoose is the rest of K34: where several addresses would do, or none,
// the agent does not start. It lists the candidates, and no others.
func TestNoAddressToChoose(t *testing.T) {
	a, b := newHost(t, "a"), newHost(t, "b")
	a.bridge(t, "docker0", "172.17.0.1/16")
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(advertise string, code int, want ...string) {
		t.Helper()
		s := a.agent(t, "one")
		if advertise != "" {
			s.set("ring", "advertise", advertise)
		}
		s.start(t)
		got := s.await(t, time.Minute)
		message := lastWords(t, s.stderr.String())
		for _, w := range append(want, "[ring] advertise") {
			if !strings.Contains(message, w) {
				t.Errorf("the message lacks %q: %s", w, message)
			}
		}
		_, candidates, _ := strings.Cut(message, "name one of: ")
		if got != code || strings.Contains(candidates, "docker0") || strings.Contains(candidates, "127.") {
			t.Errorf("exit code %d, want %d: %s", got, code, message)
		}
		for _, left := range s.leftovers(t) {
			if !strings.HasSuffix(left, "/hosts (----------)") {
				t.Errorf("left behind: %s", left)
			}
		}
	}
	const none = "(this host has none: bring an interface up)"
	refused("", 1, "has no address that others can reach", none)
	refused("docker0", 1, `"docker0"`, none)
	refused("172.17.0.1", 2, "172.17.0.1 is on docker0, a bridge that exists on every host", none)
	a.connect(t, "eth0", "10.77.0.1/24", b, "eth0", "10.77.0.2/24")
	a.connect(t, "ib0", "10.99.0.1/24", b, "ib0", "10.99.0.2/24")
	const both = "10.77.0.1 (eth0), 10.99.0.1 (ib0)"
	refused("", 2, "2 addresses", "for you to choose", both)
	refused(machine, 1, machine, "host names are not taken", both)
	refused("127.0.1.1:7946", 2, "127.0.1.1 is loopback", both)
	refused("10.0.0.0/8", 2, "2 addresses", both)
	refused("192.168.0.0/16", 1, "192.168.0.0/16 has no address", both)
}
