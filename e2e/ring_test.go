package e2e

import (
	"bufio"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
)

func residentOf(t *testing.T, pid int) int64 {
	t.Helper()
	u, err := devmesh.UsageOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return u.RSS
}

// TestRestartedTenTimes is K26: whoever asks, the members are exactly the nodes
// that live, each once and with its newest boot.
func TestRestartedTenTimes(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 1, Gateways: 1})
	victim := m.Node(2)
	boots := map[string]bool{}
	for range 10 {
		m.chaos(t, "kill", victim.Name())
		m.restart(t, victim)
		boot := ""
		for _, n := range m.All() {
			c, err := n.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, member := range c.Nodes {
				names = append(names, member.Name)
				if member.State != "alive" {
					t.Errorf("%s sees %s as %s", n.Name(), member.Name, member.State)
				}
				if member.Name != victim.Name() {
					continue
				}
				if boot != "" && boot != member.Boot {
					t.Errorf("%s knows boot %s of %s, another node %s", n.Name(), member.Boot, victim.Name(), boot)
				}
				boot = member.Boot
			}
			slices.Sort(names)
			if want := []string{"gateway-1", "node-1", "node-2"}; !slices.Equal(names, want) {
				t.Errorf("%s lists %v, want %v", n.Name(), names, want)
			}
		}
		if boots[boot] {
			t.Errorf("boot %q of %s was seen before", boot, victim.Name())
		}
		boots[boot] = true
	}
}

// TestHeadKilled is K07 and the rest of K06: the node that owns the sessions dies.
// The others stay up and take requests; it comes back.
func TestHeadKilled(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	requests := storyRequests(m, 3, 400)
	head := m.Gateway(1)
	others := m.pids(head)
	s := m.storm(t.Context(), requests)
	s.reach(t, 20)
	m.chaos(t, "kill", head.Name())
	for i, r := range s.wait(t) {
		if r.Err == nil || r.Finish != "" {
			t.Errorf("stream %d of a dead owner ended with %q and %v", i, r.Finish, r.Err)
		}
	}
	if now := m.pids(head); !maps.Equal(now, others) {
		t.Errorf("other daemons were %v, now %v", others, now)
	}
	for _, n := range []*devmesh.Node{m.Gateway(2), m.Node(1), m.Node(2)} {
		other := &mesh{m.Mesh, clientOf(n)}
		if got := other.unbroken(t, storyRequests(m, 1, 30)); len(got) != 1 {
			t.Errorf("%s served %d streams", n.Name(), len(got))
		}
	}
	// The stages let go of the dead owner's sessions.
	for _, n := range m.Hosts() {
		eventually(t, 30*time.Second, func() error {
			st, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			if st.Sessions.Hosted != 0 {
				return fmt.Errorf("%s still holds %d sessions of a dead owner", n.Name(), st.Sessions.Hosted)
			}
			return nil
		})
	}
	m.restart(t, head)
}

// TestWrongSecret starts a ring of one with another secret and tells it to join.
func TestWrongSecret(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2})
	stranger := start(t, devmesh.Options{Nodes: 1, Stages: 1})
	seed := strings.TrimPrefix(m.Node(1).APIURL(), "http://")
	host, port, _ := strings.Cut(seed, ":")
	var api int
	if _, err := fmt.Sscan(port, &api); err != nil {
		t.Fatal(err)
	}
	out, errs, code := kevlard(t, "--control", stranger.Node(1).Control(), "join", fmt.Sprintf("%s:%d", host, api+1))
	if code == 0 || !strings.Contains(out+errs, "secret") {
		t.Errorf("join with the wrong secret: exit %d, stdout %q, stderr %q: want a refusal that names the secret", code, out, errs)
	}
	for _, r := range []struct {
		m    *mesh
		want int
	}{{m, 2}, {stranger, 1}} {
		c, err := r.m.Node(1).Members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Nodes) != r.want {
			t.Errorf("%d members, want %d: %+v", len(c.Nodes), r.want, c.Nodes)
		}
	}
	eventually(t, 10*time.Second, func() error {
		text, err := os.ReadFile(m.Node(1).LogFile())
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "secret") {
			return fmt.Errorf("the log of the node that was asked does not say why: %s", m.Node(1).LogFile())
		}
		return nil
	})
}

// TestExposure checks that a mesh on loopback is reachable from loopback only, and
// its control sockets and secret by their owner only.
func TestExposure(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 1, Stages: 1, Gateways: 1})
	for _, n := range m.All() {
		for _, path := range []string{n.Control(), filepath.Join(m.Dir(), "secret"), filepath.Join(n.Dir(), "node.key")} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if perm := info.Mode().Perm(); perm != 0o600 {
				t.Errorf("%s has mode %s, want 0600", path, fs.FileMode(perm))
			}
		}
		addrs := listeners(t, n.PID())
		if len(addrs) < 3 {
			t.Errorf("%s listens on %v: want API, gossip and mesh at least", n.Name(), addrs)
		}
		for _, a := range addrs {
			if !strings.HasPrefix(a, "127.") {
				t.Errorf("%s listens on %s", n.Name(), a)
			}
		}
	}
}

// listeners returns the TCP addresses on which a process listens, of both families.
func listeners(t *testing.T, pid int) []string {
	t.Helper()
	mine := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			mine[to] = true
		}
	}
	var out []string
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // no IPv6 on this machine
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if col := strings.Fields(lines.Text()); len(col) > 9 && col[3] == "0A" && mine["socket:["+col[9]+"]"] {
				out = append(out, dotted(col[1]))
			}
		}
		f.Close()
	}
	return out
}

// dotted turns the kernel's little-endian hex address into the usual form; an IPv6
// address stays hex, which is no loopback here.
func dotted(hexa string) string {
	var b [4]byte
	var port int
	if n, _ := fmt.Sscanf(hexa, "%2x%2x%2x%2x:%4x", &b[3], &b[2], &b[1], &b[0], &port); n == 5 && len(hexa) == 13 {
		return fmt.Sprintf("%d.%d.%d.%d:%d", b[0], b[1], b[2], b[3], port)
	}
	return hexa
}
