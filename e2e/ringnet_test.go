package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/model"
)

// ringCells are the KV positions of each stage in these tests.
const ringCells = 4096

// cramp lets a host that takes the stages of the plan use share percent of the memory that
// the whole bundled model takes.
func (s *single) cramp(t *testing.T, share int64) {
	t.Helper()
	m, err := model.Load(filepath.Join(s.dir, "models", "m.gguf"), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	all := m.Bytes() + int64(ringCells*m.KVRowBytes(4)*m.Layers)
	s.set("engine", "cells", ringCells)
	s.set("engine", "memory_bytes", all*share/100)
}

// full waits until node 1 shows so many full pipelines of the one model, and returns it.
func (n *splitNet) full(t *testing.T, pipelines int) report.Model {
	t.Helper()
	var m report.Model
	eventually(t, healWithin, func() error {
		top, err := api.NewClient(n.nodes[0].socket()).Topology(t.Context())
		if err != nil {
			return err
		}
		if len(top.Models) != 1 {
			return fmt.Errorf("%d models, want 1", len(top.Models))
		}
		m = top.Models[0]
		if m.Degraded || len(m.Pipelines) < pipelines {
			return fmt.Errorf("degraded %v, %d pipelines, want %d: %+v", m.Degraded, len(m.Pipelines), pipelines, m.Pipelines)
		}
		for _, p := range m.Pipelines {
			for _, s := range p.Stages {
				if s.State != "ready" {
					return fmt.Errorf("pipeline %s: %+v", p.ID, p.Stages)
				}
			}
		}
		return nil
	})
	return m
}

// complete asks node i, from 1, for a greedy answer.
func (n *splitNet) complete(ctx context.Context, i int, model, prompt string, tokens int) (string, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
	if err != nil {
		return "", err
	}
	resp, err := n.ask(ctx, http.MethodPost, i, "/v1/completions", "", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct{ Text string }
		Error   struct{ Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 {
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, answer.Error.Message)
	}
	return answer.Choices[0].Text, nil
}

// ringLoad are clients that ask some nodes, one request after the other.
type ringLoad struct {
	stop    context.CancelFunc
	clients sync.WaitGroup
	answers atomic.Int64

	mu  sync.Mutex
	bad error
}

// load starts a client at each of some nodes, counted from 1.
func (n *splitNet) load(t *testing.T, model string, at ...int) *ringLoad {
	t.Helper()
	const prompt, tokens = "Once upon a time there was", 60
	want, err := n.complete(t.Context(), at[0], model, prompt, tokens)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	l := &ringLoad{stop: stop}
	for _, i := range at {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				got, err := n.complete(ctx, i, model, prompt, tokens)
				if ctx.Err() != nil {
					return
				}
				if err == nil && got != want {
					err = fmt.Errorf("got %q, want %q", got, want)
				}
				if err != nil {
					l.mu.Lock()
					l.bad = errors.Join(l.bad, fmt.Errorf("node %d: %w", i, err))
					l.mu.Unlock()
				}
				l.answers.Add(1)
			}
		})
	}
	return l
}

// end stops the clients and fails the test if an answer was wrong or missing.
func (l *ringLoad) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.clients.Wait()
	if l.bad != nil {
		t.Error(l.bad)
	}
	t.Logf("%d answers meanwhile", l.answers.Load())
	if l.answers.Load() == 0 {
		t.Error("no answers: it proves nothing of a mesh under load")
	}
}

// deaths lists what nodes but some say since an instant of others that died.
func (n *splitNet) deaths(t *testing.T, since time.Time, except ...int) (out []string) {
	t.Helper()
	for i, s := range n.nodes {
		if slices.Contains(except, i+1) {
			continue
		}
		for _, e := range s.events(t, since) {
			if e.Type == "node-dead" && e.At.After(since) {
				out = append(out, fmt.Sprintf("%s says at %s that %s is dead", e.Node, e.At.Format(time.TimeOnly), e.Peer))
			}
		}
	}
	return out
}

// setting reads a duration or a number from the environment, for tests that the issue
// wants to last for minutes.
func setting[T any](t *testing.T, name string, fallback T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// TestLossyLinks is K30 without its jitter: each packet is lost with 5 % for five minutes
// (KEVLARD_E2E_LOSS), while clients get answers. No node is ever taken for dead, and no
// stage moves. What jitter does to the ring is tested in package membership.
func TestLossyLinks(t *testing.T) {
	needLong(t, "six minutes")
	needRoot(t, "it makes network namespaces")
	lasts := setting(t, "KEVLARD_E2E_LOSS", 5*time.Minute, time.ParseDuration)
	n := newSplitNet(t, splitLayout{hosts: 6})
	m := n.full(t, 1)
	n.rest(t)
	began := time.Now()
	for i := range n.hosts {
		n.iptables(t, i+1, "-A", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP")
	}
	load := n.load(t, m.Name, 1, 2, 5)
	time.Sleep(lasts) // how long it lasts is what is tested
	load.end(t)
	n.heal(t)
	for _, d := range n.deaths(t, began) {
		t.Error(d)
	}
	for _, m := range n.moves(t, began) {
		t.Errorf("moved: %v", m)
	}
	n.whole(t)
}

// TestUDPBlocked is K37: a firewall lets only TCP to and from one host. It is alive to all
// and they to it, its stage serves, and warnings of both sides name UDP and the port.
func TestUDPBlocked(t *testing.T) {
	needLong(t, "a minute and a half")
	needRoot(t, "it makes network namespaces")
	lasts := setting(t, "KEVLARD_E2E_UDP", time.Minute, time.ParseDuration) // twice the flapping that others report
	n := newSplitNet(t, splitLayout{hosts: 4, prepare: func(s *single) { s.cramp(t, 70) }})
	m := n.full(t, 1)
	n.rest(t)
	began := time.Now()
	const blocked = 3
	n.iptables(t, blocked, "-A", "INPUT", "-p", "udp", "--dport", "7946", "-j", "DROP")
	n.iptables(t, blocked, "-A", "OUTPUT", "-p", "udp", "--dport", "7946", "-j", "DROP")
	load := n.load(t, m.Name, 1, blocked)
	time.Sleep(lasts) // how long it lasts is what is tested
	load.end(t)
	for _, d := range n.deaths(t, began) {
		t.Error(d)
	}
	for _, m := range n.moves(t, began) {
		t.Errorf("moved: %v", m)
	}
	n.whole(t)
	for _, w := range []struct {
		node int
		of   string
	}{{1, ipOf(blocked) + ":7946"}, {blocked, ":7946"}} {
		warned := false
		for line := range strings.Lines(n.nodes[w.node-1].stderr.String()) {
			warned = warned || strings.Contains(line, "level=WARN") && strings.Contains(line, "UDP") && strings.Contains(line, w.of)
		}
		if !warned {
			t.Errorf("no warning of node %d names UDP and %s", w.node, w.of)
		}
	}
}

// TestNoMulticast is K41: nothing but unicast passes, and no node knows an address until
// it is told one.
func TestNoMulticast(t *testing.T) {
	needRoot(t, "it makes network namespaces")
	sw := newHost(t, "s")
	sw.bridge(t, "br0", "10.78.0.254/24")
	n := &splitNet{http: &http.Client{Transport: &http.Transport{DialContext: sw.dial, DisableKeepAlives: true}}}
	for i := 1; i <= 2; i++ {
		h := newHost(t, strconv.Itoa(i))
		sw.plug(t, fmt.Sprintf("port%d", i), "br0", h, "eth0")
		h.up(t, "eth0", ipOf(i)+"/24")
		n.hosts = append(n.hosts, h)
		system(t, "ip", "-n", string(h), "link", "set", "eth0", "multicast", "off")
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			n.iptables(t, i, "-A", chain, "-m", "addrtype", "--dst-type", "MULTICAST,BROADCAST", "-j", "DROP")
		}
	}
	n.start(t, func(_ int, s *single) {
		s.isGiven(t)
		s.cramp(t, 70)
		s.set("ring", "join", []string{})
	})
	out, errs, code := kevlard(t, "--control", n.nodes[1].socket(), "join", ipOf(1)+":7946")
	if code != 0 {
		t.Fatalf("join: exit %d: %s%s", code, out, errs)
	}
	n.whole(t)
	m := n.full(t, 1)
	for i := 1; i <= 2; i++ {
		if _, err := n.complete(t.Context(), i, m.Name, "The fox said", 20); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
}

// TestDefaultRouteElsewhere is K03: the default route of both hosts leads to a network on
// which they do not reach each other; the fabric has no default route. Each holds what the
// other has no memory for, and 100 requests run over the fabric.
func TestDefaultRouteElsewhere(t *testing.T) {
	needRoot(t, "it makes network namespaces")
	requests := 10
	if long() {
		requests = 100
	}
	a, b, site := newHost(t, "a"), newHost(t, "b"), newHost(t, "c")
	a.connect(t, "eth0", "10.77.1.2/24", site, "port1", "10.77.1.1/24")
	b.connect(t, "eth0", "10.77.2.2/24", site, "port2", "10.77.2.1/24") // which routes nothing
	system(t, "ip", "-n", string(a), "route", "add", "default", "via", "10.77.1.1")
	system(t, "ip", "-n", string(b), "route", "add", "default", "via", "10.77.2.1")
	a.connect(t, "hsn0", "10.78.0.1/24", b, "hsn0", "10.78.0.2/24")
	n := &splitNet{hosts: []host{a, b}, http: &http.Client{Transport: &http.Transport{DialContext: a.dial, DisableKeepAlives: true}}}
	n.start(t, func(_ int, s *single) {
		s.isGiven(t)
		s.cramp(t, 70)
		s.set("ring", "advertise", "10.78.0.0/24")
		s.set("ring", "join", []string{ipOf(1) + ":7946"})
	})
	n.whole(t)
	m := n.full(t, 1)
	over := map[string]bool{}
	for _, s := range m.Pipelines[0].Stages {
		over[s.Node] = true
	}
	if len(over) != 2 {
		t.Fatalf("the pipeline is not on both hosts: %+v", m.Pipelines)
	}
	before := [2]int{n.sent(t, a, "eth0"), n.sent(t, a, "hsn0")}
	for i := range requests {
		if _, err := n.complete(t.Context(), 1+i%2, m.Name, fmt.Sprintf("Story %d: there was", i), 20); err != nil {
			t.Fatalf("request %d: %v", i+1, err)
		}
	}
	other, fabric := n.sent(t, a, "eth0")-before[0], n.sent(t, a, "hsn0")-before[1]
	t.Logf("%d requests: %d bytes sent over the fabric, %d where the default route leads", requests, fabric, other)
	if fabric < 100*requests || other > fabric/100 {
		t.Error("the fabric is not what carried them")
	}
}

// sent is how many bytes an interface has sent.
func (n *splitNet) sent(t *testing.T, h host, name string) int {
	t.Helper()
	text := system(t, "ip", "netns", "exec", string(h), "cat", "/proc/net/dev")
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 9 && fields[0] == name+":" {
			v, err := strconv.Atoi(fields[9])
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no interface %s: %s", name, text)
	return 0
}
