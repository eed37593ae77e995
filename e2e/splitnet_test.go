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
)

// splitNet is hosts on one switch, whose links a test cuts. Clients stand at the switch:
// they reach every host at all times.
type splitNet struct {
	hosts []host // host i has 10.78.0.i
	nodes []*single
	http  *http.Client // dials from the switch
	key   string       // good at every node
}

// ipOf is the address of host i, counted from 1.
func ipOf(i int) string { return fmt.Sprintf("10.78.0.%d", i) }

// newSplitNet starts so many hosts, which hold the stages in turn, and waits until they
// serve.
func newSplitNet(t *testing.T, hosts int, stages [][2]int) *splitNet {
	t.Helper()
	sw := newHost(t, "s")
	sw.bridge(t, "br0", "10.78.0.254/24")
	key, line, err := api.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	n := &splitNet{key: key, http: &http.Client{Transport: &http.Transport{DialContext: sw.dial, DisableKeepAlives: true}}}
	for i := 1; i <= hosts; i++ {
		h, port := newHost(t, strconv.Itoa(i)), fmt.Sprintf("port%d", i)
		system(t, "ip", "-n", string(h), "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", string(sw))
		h.up(t, "eth0", ipOf(i)+"/24")
		system(t, "ip", "-n", string(sw), "link", "set", port, "master", "br0", "up")
		n.hosts = append(n.hosts, h)
	}
	var secret any
	for i, h := range n.hosts {
		s := h.agent(t, fmt.Sprintf("node-%d", i+1))
		stage := stages[i%len(stages)]
		s.holds(t, stage[0], stage[1], nil)
		if secret == nil {
			secret = s.conf["ring"]["secret_file"]
		}
		s.set("ring", "secret_file", secret)
		s.set("ring", "join", []string{ipOf(1) + ":7946", ipOf(4) + ":7946", ipOf(7) + ":7946"})
		s.set("api", "keys_file", writeFile(t, filepath.Join(s.dir, "keys"), line+"\n", 0o600))
		s.start(t)
		n.nodes = append(n.nodes, s)
	}
	for _, s := range n.nodes {
		s.up(t)
	}
	n.whole(t)
	return n
}

// dial opens a connection from within h. No other goroutine may get a thread that changed
// its namespace: it stays locked and ends with this one.
func (h host) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open("/var/run/netns/" + string(h))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err != nil {
			done <- result{nil, fmt.Errorf("enter the network of %s: %w", h, err)}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
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

// heal undoes what deafen did.
func (n *splitNet) heal(t *testing.T) {
	t.Helper()
	for i := range n.hosts {
		n.iptables(t, i+1, "-F", "INPUT")
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

// watch asks all nodes for the sessions that they own, until ctx ends, and returns every
// owner of every epoch.
func (n *splitNet) watch(ctx context.Context) map[string]map[string]bool {
	owners := map[string]map[string]bool{}
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, s := range n.nodes {
			all, err := api.NewClient(s.socket()).Sessions(ctx, false)
			if err != nil {
				continue // ctx has ended, or the machine is loaded: the next round is soon
			}
			for _, x := range all.Sessions {
				epoch := fmt.Sprintf("%s, epoch %d", x.ID, x.Epoch)
				if owners[epoch] == nil {
					owners[epoch] = map[string]bool{}
				}
				owners[epoch][x.Owner] = true
			}
		}
		select {
		case <-ctx.Done():
			return owners
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
