package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

// splitNet is hosts on one switch, or on one in each zone, whose links a test cuts.
// Clients stand at the first switch: they reach every host at all times.
type splitNet struct {
	hosts []host // host i has 10.78.0.i
	nodes []*single
	zones []string     // of the hosts; "" without zones
	http  *http.Client // dials from the switch
	key   string       // good at every node
}

// splitLayout is what a splitNet is made of.
type splitLayout struct {
	hosts  int
	stages [][2]int // held in turn; none: those that the plan gives
	// zones are two parts of equal size, each on a switch of its own. What goes from one
	// to the other takes apart longer.
	zones []string
	apart time.Duration
	// prepare, if set, changes how a host's node is configured, before it starts.
	prepare func(s *single)
}

// ipOf is the address of host i, counted from 1.
func ipOf(i int) string { return fmt.Sprintf("10.78.0.%d", i) }

// newSplitNet starts hosts and waits until they serve.
func newSplitNet(t *testing.T, l splitLayout) *splitNet {
	t.Helper()
	sw := newHost(t, "s")
	sw.bridge(t, "br0", "10.78.0.254/24")
	if len(l.zones) > 0 {
		system(t, "ip", "-n", string(sw), "link", "add", "br1", "type", "bridge")
		system(t, "ip", "-n", string(sw), "link", "set", "br1", "up")
		wire := newHost(t, "w")
		for _, k := range []string{"0", "1"} {
			sw.plug(t, "trunk"+k, "br"+k, wire, "end"+k)
			system(t, "ip", "-n", string(wire), "link", "set", "end"+k, "up")
		}
		wire.joinEnds(t, "end0", "end1", l.apart)
	}
	n := &splitNet{http: &http.Client{Transport: &http.Transport{DialContext: sw.dial, DisableKeepAlives: true}}}
	for i := 1; i <= l.hosts; i++ {
		h, bridge, zone := newHost(t, strconv.Itoa(i)), "br0", ""
		if len(l.zones) > 0 {
			half := (i - 1) * len(l.zones) / l.hosts
			bridge, zone = fmt.Sprintf("br%d", half), l.zones[half]
		}
		sw.plug(t, fmt.Sprintf("port%d", i), bridge, h, "eth0")
		h.up(t, "eth0", ipOf(i)+"/24")
		n.hosts, n.zones = append(n.hosts, h), append(n.zones, zone)
	}
	n.start(t, func(i int, s *single) {
		if len(l.stages) > 0 {
			stage := l.stages[i%len(l.stages)]
			s.holds(t, stage[0], stage[1], nil)
		} else {
			s.isGiven(t)
		}
		if n.zones[i] != "" {
			s.set("node", "zone", n.zones[i])
		}
		if l.prepare != nil {
			l.prepare(s)
		}
	})
	n.whole(t)
	return n
}

// start starts a node on each host, after prepare, which gets its index from 0, and waits
// until all answer.
func (n *splitNet) start(t *testing.T, prepare func(i int, s *single)) {
	t.Helper()
	key, line, err := api.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	n.key = key
	var secret any
	for i, h := range n.hosts {
		s := h.agent(t, fmt.Sprintf("node-%d", i+1))
		if secret == nil {
			secret = s.conf["ring"]["secret_file"]
		}
		s.set("ring", "secret_file", secret)
		s.set("ring", "join", []string{ipOf(1) + ":7946", ipOf(4) + ":7946", ipOf(7) + ":7946"})
		s.set("api", "keys_file", writeFile(t, filepath.Join(s.dir, "keys"), line+"\n", 0o600))
		prepare(i, s)
		s.start(t)
		n.nodes = append(n.nodes, s)
	}
	for _, s := range n.nodes {
		s.up(t)
	}
}

// plug puts a cable between a port of a bridge of h and an interface of o.
func (h host) plug(t *testing.T, port, bridge string, o host, name string) {
	t.Helper()
	system(t, "ip", "-n", string(o), "link", "add", name, "type", "veth", "peer", "name", port, "netns", string(h))
	system(t, "ip", "-n", string(h), "link", "set", port, "master", bridge, "up")
}

// dial opens a connection from within h.
func (h host) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = h.inside(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// inside runs f in the network of h. No other goroutine may get a thread that changed
// its namespace: it stays locked and ends with this one.
func (h host) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open("/var/run/netns/" + string(h))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err != nil {
			done <- fmt.Errorf("enter the network of %s: %w", h, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// whole waits until every node sees all others alive and ready.
func (n *splitNet) whole(t *testing.T) {
	t.Helper()
	for _, s := range n.nodes {
		eventually(t, healWithin, func() error {
			m, err := api.NewClient(s.socket()).Members(t.Context())
			if err != nil {
				return err
			}
			if len(m.Nodes) != len(n.nodes) {
				return fmt.Errorf("%s sees %d members", s.name, len(m.Nodes))
			}
			for _, o := range m.Nodes {
				if o.State != "alive" || !o.Ready {
					return fmt.Errorf("%s sees %s %s, ready %v: %s", s.name, o.Name, o.State, o.Ready, o.Reason)
				}
			}
			return nil
		})
	}
}

// deafen lets the listeners hear nothing of the speakers.
func (n *splitNet) deafen(t *testing.T, listeners, speakers []int) {
	t.Helper()
	var from []string
	for _, i := range speakers {
		from = append(from, ipOf(i))
	}
	for _, i := range listeners {
		n.iptables(t, i, "-I", "INPUT", "-s", strings.Join(from, ","), "-j", "DROP")
	}
}

// heal undoes what deafen and unplug did.
func (n *splitNet) heal(t *testing.T) {
	t.Helper()
	for i := range n.hosts {
		n.iptables(t, i+1, "-F", "INPUT")
		n.iptables(t, i+1, "-F", "OUTPUT")
	}
}

func (n *splitNet) iptables(t *testing.T, i int, args ...string) {
	t.Helper()
	system(t, "ip", append([]string{"netns", "exec", string(n.hosts[i-1]), "iptables", "-w"}, args...)...)
}

// takeovers sums what all nodes count.
func (n *splitNet) takeovers(t *testing.T) (sum int) {
	t.Helper()
	for i := range n.hosts {
		resp, err := n.ask(t.Context(), http.MethodGet, i+1, "/metrics", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\nkevlard_takeovers_total ")
		var v int
		if _, err := fmt.Sscan(rest, &v); err != nil {
			t.Fatalf("takeovers of node %d: %v in %.200s", i+1, err, text)
		}
		sum += v
	}
	return sum
}

// ask sends a request to node i.
func (n *splitNet) ask(ctx context.Context, method string, i int, path, last string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:8080%s", ipOf(i), path), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+n.key)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	return n.http.Do(r)
}

// watch asks all nodes for the sessions that they own, until ctx ends, and calls saw with
// each.
func (n *splitNet) watch(ctx context.Context, saw func(report.Session)) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, s := range n.nodes {
			all, err := api.NewClient(s.socket()).Sessions(ctx, false)
			if err != nil {
				continue // ctx has ended, or the machine is loaded: the next round is soon
			}
			for _, x := range all.Sessions {
				saw(x)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// splitRequests are greedy and not, and long enough to be under way when a split begins.
func splitRequests(model string) []map[string]any {
	out := []map[string]any{
		{"prompt": "Once upon a time there was", "max_tokens": 300, "temperature": 0},
		{"prompt": "The old king had", "max_tokens": 300, "temperature": 0.8, "seed": 7},
		{"prompt": "The fox said to the cat", "max_tokens": 150, "temperature": 0.8, "seed": 3, "n": 2},
		{"prompt": "Smile:", "max_tokens": 200, "temperature": 2, "seed": 5, "logit_bias": map[string]int{"172": 100, "253": 100, "246": 100, "222": 100}},
	}
	for _, r := range out {
		r["model"], r["ignore_eos"], r["stream"] = model, true, true
	}
	return out
}
