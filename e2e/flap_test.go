package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/internal/measure"
)

// TestFlappingNode has a host down for three seconds and up for three, 20 times
// (KEVLARD_E2E_FLAPS): its process is killed, or its cable is pulled. What it holds may be
// taken on by others once; nothing else is loaded or dropped, and clients of the others
// notice nothing.
func TestFlappingNode(t *testing.T) {
	needLong(t, "six minutes")
	needRoot(t, "it makes network namespaces")
	times := setting(t, "KEVLARD_E2E_FLAPS", 20, strconv.Atoi)
	const up, down = 3 * time.Second, 3 * time.Second
	for _, how := range []string{"killed", "cable"} {
		t.Run(how, func(t *testing.T) {
			n := newSplitNet(t, splitLayout{hosts: 6})
			m := n.full(t, 1)
			n.rest(t)
			victim, held := 0, map[string]bool{}
			for i := 2; i <= len(n.nodes) && victim == 0; i++ {
				s, err := api.NewClient(n.nodes[i-1].socket()).Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, st := range s.Stages {
					victim = i
					held[fmt.Sprintf("[%d,%d)", st.Lo, st.Hi)] = true
				}
			}
			var steady []int
			for i := range n.nodes {
				if i+1 != victim {
					steady = append(steady, i+1)
				}
			}
			load := n.load(t, m.Name, steady[0], steady[2])
			began := time.Now()
			node := n.nodes[victim-1]
			for range times {
				if how == "killed" {
					node.kill()
				} else {
					n.unplug(t, victim)
				}
				time.Sleep(down) // the flapping is what is tested
				if how == "killed" {
					node.start(t)
				} else {
					n.heal(t)
				}
				time.Sleep(up)
			}
			load.end(t)
			covered := map[string]int{}
			for _, m := range n.moves(t, began, victim) {
				t.Log(m)
				_, rest, _ := strings.Cut(m.what, "[")
				layers, _, _ := strings.Cut(rest, ")")
				layers = "[" + layers + ")"
				verb, _, _ := strings.Cut(m.what, " ")
				switch {
				case verb == "announce" || verb == "retain":
					continue // it means to give up what is held twice while the host is there, and thinks better of it
				case verb != "adopt" || !held[layers] || m.cause != "death":
					t.Errorf("something else moves: %v", m)
				}
				if covered[layers]++; covered[layers] > 1 {
					t.Errorf("layers %s are taken on again: %v", layers, m)
				}
			}
			for _, d := range n.deaths(t, began, victim) {
				if !strings.Contains(d, node.name) {
					t.Error(d)
				}
			}
			t.Logf("%s, which held %d ranges, flapped %d times: %d were taken on by others; its death was seen %d times by %d others",
				node.name, len(held), times, len(covered), len(n.deaths(t, began, victim)), len(steady))
			n.whole(t)
		})
	}
}

// rest waits until no stage has moved for longer than the plan's longest settle time.
func (n *splitNet) rest(t *testing.T) {
	t.Helper()
	const quiet = 35 * time.Second
	eventually(t, healWithin+quiet, func() error {
		if m := n.moves(t, time.Now().Add(-quiet)); len(m) > 0 {
			return fmt.Errorf("stages still move: %v", m[0])
		}
		return nil
	})
}

// unplug lets nothing in or out of host i, without a word to anybody.
func (n *splitNet) unplug(t *testing.T, i int) {
	t.Helper()
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		direction := map[string]string{"INPUT": "-i", "OUTPUT": "-o"}[chain]
		n.iptables(t, i, "-I", chain, direction, "eth0", "-j", "DROP")
	}
}

// TestSilentHost drops every packet of one host after the other, 30 times
// (KEVLARD_E2E_DROPS) on an idle ring and as often under load, and prints how soon the
// first other member and all others show it as dead.
func TestSilentHost(t *testing.T) {
	needLong(t, "a quarter of an hour")
	needRoot(t, "it makes network namespaces")
	trials := setting(t, "KEVLARD_E2E_DROPS", 30, strconv.Atoi)
	n := newSplitNet(t, splitLayout{hosts: 8})
	m := n.full(t, 1)
	n.rest(t)
	for _, busy := range []bool{false, true} {
		t.Run(map[bool]string{false: "idle", true: "load"}[busy], func(t *testing.T) {
			var load *ringLoad
			if busy {
				load = n.load(t, m.Name, 1, 1)
			}
			var first, all []float64
			for k := range trials {
				victim := 2 + k%(len(n.nodes)-1)
				began := time.Now()
				n.unplug(t, victim)
				f, a := n.buried(t, victim, began)
				first, all = append(first, f), append(all, a)
				n.heal(t)
				n.whole(t)
			}
			if busy {
				load.end(t)
			}
			t.Logf("%d hosts dropped: shown dead by the first after p50 %.0f, p99 %.0f, max %.0f ms, by all after p50 %.0f, p99 %.0f, max %.0f ms", trials,
				measure.Quantile(first, 0.5), measure.Quantile(first, 0.99), slices.Max(first), measure.Quantile(all, 0.5), measure.Quantile(all, 0.99), slices.Max(all))
		})
	}
}

// buried waits until all others show host i as dead, and returns how many milliseconds
// after an instant the first and the last did.
func (n *splitNet) buried(t *testing.T, i int, since time.Time) (first, last float64) {
	t.Helper()
	eventually(t, healWithin, func() error {
		var at []float64
		for o := range n.nodes {
			if o+1 == i {
				continue
			}
			seen := false
			for _, e := range n.nodes[o].events(t, since) {
				if e.Type == "node-dead" && e.At.After(since) && e.Peer == n.nodes[i-1].name && !seen {
					seen = true
					at = append(at, float64(e.At.Sub(since).Microseconds())/1e3)
				}
			}
			if !seen {
				return fmt.Errorf("%s does not show %s as dead", n.nodes[o].name, n.nodes[i-1].name)
			}
		}
		first, last = slices.Min(at), slices.Max(at)
		return nil
	})
	return first, last
}
