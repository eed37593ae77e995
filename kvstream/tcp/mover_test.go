package tcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/mover/movertest"
)

// testNet is a few movers in this process, each behind a proxy.
type testNet struct {
	t     *testing.T
	plain bool
	tune  func(*Config)

	mu      sync.Mutex
	peers   map[kevlard.NodeID]Peer
	ids     map[string]kevlard.NodeID
	proxies map[kevlard.NodeID]*proxy
}

func newTestNet(t *testing.T, plain bool) *testNet {
	return &testNet{
		t: t, plain: plain, tune: func(*Config) {},
		peers: make(map[kevlard.NodeID]Peer), ids: make(map[string]kevlard.NodeID), proxies: make(map[kevlard.NodeID]*proxy),
	}
}

// config is that of a node which knows the network.
func (n *testNet) config(node kevlard.NodeID, h mover.Handler) Config {
	return Config{
		Self: node, Listen: "127.0.0.1:0", Plain: n.plain, Key: newKey(n.t), Handler: h, Options: conns.Options{Stall: 20 * time.Second},
		Resolve: func(to kevlard.NodeID) (Peer, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			p, ok := n.peers[to]
			return p, ok
		},
		Admitted: func(id string) (kevlard.NodeID, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			node, ok := n.ids[id]
			return node, ok
		},
		Secret: func(context.Context, kevlard.NodeID) ([]byte, error) { return []byte("sixteen bytes or more"), nil },
	}
}

func newKey(t testing.TB) crypto.PrivKey {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (n *testNet) start(node kevlard.NodeID, h mover.Handler) *Mover {
	n.t.Helper()
	cfg := n.config(node, h)
	n.tune(&cfg)
	m, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			n.t.Error(err)
		}
	})
	n.publish(node, cfg.Key, startProxy(n.t, m.Addr()))
	return m
}

// publish lets all nodes know where a node is.
func (n *testNet) publish(node kevlard.NodeID, key crypto.PrivKey, p *proxy) {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proxies[node] = p
	n.peers[node] = Peer{ID: id.String(), Addr: p.addr()}
	n.ids[id.String()] = node
}

func (n *testNet) proxy(node kevlard.NodeID) *proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proxies[node]
}

// modes are what the conformance suite runs in.
func modes() map[string]func(*Config) {
	return map[string]func(*Config){
		"tls":      func(*Config) {},
		"plain":    func(c *Config) { c.Plain = true },
		"unsummed": func(c *Config) { c.Plain, c.Unsummed = true, true },
	}
}

// eachMode runs a test with TLS and plain.
func eachMode(t *testing.T, f func(t *testing.T, net *testNet)) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) { f(t, newTestNet(t, plain)) })
	}
}

func TestConformance(t *testing.T) {
	for name, tune := range modes() {
		t.Run(name, func(t *testing.T) {
			movertest.Run(t, func(t *testing.T, stall time.Duration) movertest.Network {
				net := newTestNet(t, false)
				net.tune = func(c *Config) {
					tune(c)
					c.Stall = stall
				}
				return movertest.Network{
					Start:  func(node kevlard.NodeID, h mover.Handler) mover.Mover { return net.start(node, h) },
					Cut:    func(node kevlard.NodeID) { net.proxy(node).cut() },
					Freeze: func(node kevlard.NodeID) { net.proxy(node).freeze() },
				}
			})
		})
	}
}
