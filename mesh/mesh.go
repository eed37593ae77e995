package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/kevlard/kevlard"
)

// Peer is an admitted peer: what it proved to be.
type Peer struct {
	Node kevlard.NodeID
	ID   string // libp2p peer ID, "12D3Koo..."
	Boot kevlard.BootID
}

// Address says where a peer is. Dialling requires Node and ID to be proved. The
// boot that the peer proves counts; Boot here only says when to dial again.
type Address struct {
	Node kevlard.NodeID
	ID   string
	Boot kevlard.BootID
	Addr string // host:port
}

// PeerStatus is one peer of the set and the state of its link.
type PeerStatus struct {
	Peer      Peer // as proved by the last link, else as in the Address
	Addr      string
	Connected bool
	Since     time.Time     // when the link came up; zero while it is not
	Inbound   bool          // the peer has dialled this node and is connected
	RTT       time.Duration // of the control connection, smoothed; 0 if not yet measured
	LastError string        // why the last link broke or the last dial failed, "" if neither
}

// Versions is an inclusive range of protocol versions, from 1.
type Versions struct{ Min, Max uint8 }

// String returns "min..max".
func (v Versions) String() string { return fmt.Sprintf("%d..%d", v.Min, v.Max) }

// Meets reports whether some version is in both ranges.
func (v Versions) Meets(o Versions) bool { return v.Min <= o.Max && o.Min <= v.Max }

// clash says why the two ends of a connection cannot speak, or returns "". Both read it.
func clash(dialler, acceptor Versions) string {
	if dialler.Meets(acceptor) {
		return ""
	}
	return fmt.Sprintf("protocol versions do not overlap: who dials speaks %s, who answers %s", dialler, acceptor)
}

// Handler receives what arrives. Nil functions ignore. Control and Data are called
// by connection readers, one at a time per connection, and hold up that connection
// while they run; they may be called for a peer before its Up and after its Down.
// Up and Down of one node are called in turn, from one goroutine.
type Handler struct {
	Control func(from Peer, msg []byte)          // owns msg
	Data    func(from Peer, header, body []byte) // owns both
	// Call answers a call; calls run concurrently. The context ends when the caller
	// gives up or its connection breaks; Run waits for Call to return.
	Call func(ctx context.Context, from Peer, method string, body []byte) ([]byte, error)
	// Up reports that both connections to a peer of the set are admitted.
	Up func(Peer)
	// Down reports that a connection to or from a peer that was up broke, or that
	// SetPeers dropped it, once per loss. If only connections from the peer broke, the
	// link is probed and Up follows if it answers. The end of Run itself calls nothing.
	Down func(Peer, error)
	// Refused reports a refusal by either side. Node is what the other side claims to
	// be, or whom we dialled, "" if unknown. Equal refusals are reported once a minute.
	Refused func(node, addr, reason string)
}

// Config is what New needs.
type Config struct {
	Key    crypto.PrivKey // from LoadOrCreateKey
	Self   kevlard.NodeID // 1 to 255 bytes
	Boot   kevlard.BootID // 1 to 255 bytes, new each start
	Ring   string         // 1 to 255 bytes
	Secret []byte         // the cluster secret, at least 16 bytes
	// OldSecrets are accepted too, while the ring's secret is being changed. See SetSecrets.
	OldSecrets [][]byte
	Listen     string   // host:port; the host is an IP address; port 0 picks one
	Versions   Versions // zero is 1..1
	Handler    Handler
	Log        *slog.Logger // nil discards
}

func (c Config) withDefaults() Config {
	if c.Versions == (Versions{}) {
		c.Versions = Versions{Min: 1, Max: 1}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	h := &c.Handler
	if h.Control == nil {
		h.Control = func(Peer, []byte) {}
	}
	if h.Data == nil {
		h.Data = func(Peer, []byte, []byte) {}
	}
	if h.Call == nil {
		h.Call = func(context.Context, Peer, string, []byte) ([]byte, error) {
			return nil, errors.New("this node answers no calls")
		}
	}
	if h.Up == nil {
		h.Up = func(Peer) {}
	}
	if h.Down == nil {
		h.Down = func(Peer, error) {}
	}
	if h.Refused == nil {
		h.Refused = func(string, string, string) {}
	}
	return c
}

// Validate returns all problems of c, joined.
func (c Config) Validate() error {
	var problems []error
	if c.Key == nil {
		problems = append(problems, errors.New("mesh key: missing, want one from LoadOrCreateKey"))
	}
	for _, f := range []struct{ field, value string }{{"node name", string(c.Self)}, {"boot ID", string(c.Boot)}, {"ring name", c.Ring}} {
		if len(f.value) == 0 || len(f.value) > maxName || !utf8.ValidString(f.value) {
			problems = append(problems, fmt.Errorf("%s %q: want 1 to %d bytes of UTF-8", f.field, f.value, maxName))
		}
	}
	if len(c.Secret) < minSecret {
		problems = append(problems, fmt.Errorf("cluster secret: %d bytes, want at least %d: make one with `kevlard keygen`", len(c.Secret), minSecret))
	}
	if v := c.Versions; v != (Versions{}) && (v.Min == 0 || v.Max < v.Min) {
		problems = append(problems, fmt.Errorf("protocol versions %s: want 1 <= min <= max", v))
	}
	return errors.Join(problems...)
}

// Mesh is one node's end of the mesh. Its methods may be called by any goroutine.
type Mesh struct {
	admitter
	cfg      Config
	log      *slog.Logger
	gate     *gate
	dialler  *tcp.TcpTransport
	upgrader transport.Upgrader
	listener manet.Listener
	changed  chan struct{} // capacity 1: the set of links changed
	dials    atomic.Uint64 // links numbered so far
	guests   guests
	refusals refusals
	accepted sync.WaitGroup // goroutines of accepted connections; Run waits for them
	ended    sync.WaitGroup // goroutines of links; Run waits for them next

	mu    sync.RWMutex
	ran   bool
	links map[kevlard.NodeID]*link
}

// New checks cfg and listens at once, so that a port in use shows early. Only Run
// accepts, and only Run closes the listener.
func New(cfg Config) (*Mesh, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	id, err := peer.IDFromPrivateKey(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("peer ID of the node key: %w", err)
	}
	keys, err := newKeys(append([][]byte{cfg.Secret}, cfg.OldSecrets...))
	if err != nil {
		return nil, err
	}
	m := &Mesh{
		admitter: admitter{
			id:       id,
			names:    names{ring: cfg.Ring, node: cfg.Self, boot: cfg.Boot},
			keys:     keys,
			versions: cfg.Versions,
		},
		cfg:      cfg,
		log:      cfg.Log,
		gate:     &gate{},
		changed:  make(chan struct{}, 1),
		guests:   guests{byID: make(map[string]*guest)},
		refusals: refusals{last: make(map[refusal]time.Time)},
		links:    make(map[kevlard.NodeID]*link),
	}
	if m.dialler, m.upgrader, err = newTransport(cfg.Key, m.gate); err != nil {
		return nil, err
	}
	if m.listener, err = listen(cfg.Listen); err != nil {
		return nil, err
	}
	return m, nil
}

// listen opens the mesh port.
func listen(addr string) (manet.Listener, error) {
	raw, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the mesh on TCP %s: %w: choose another [mesh] bind or stop what uses the port", addr, err)
	}
	l, err := manet.WrapNetListener(raw)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the mesh on TCP %s: %w", addr, err), raw.Close())
	}
	return l, nil
}

// Addr returns the address listened on, host:port.
func (m *Mesh) Addr() string { return m.listener.Addr().String() }

// PeerID returns the peer ID that the node key proves.
func (m *Mesh) PeerID() string { return m.id.String() }

// SetSecrets replaces the cluster secrets: this node proves the first when it dials,
// and takes the proof of any. Connections that are up stay.
func (m *Mesh) SetSecrets(secrets [][]byte) error { return m.keys.set(secrets) }

// SetPeers sets the peers to keep connected. Peers not in the list are closed,
// politely; a changed Addr, ID or Boot drops the link and dials at once, unless the
// link has already proved that boot. This node itself is skipped. It does not block.
func (m *Mesh) SetPeers(list []Address) {
	want := make(map[kevlard.NodeID]Address, len(list))
	for _, a := range slices.SortedStableFunc(slices.Values(list), func(a, b Address) int { return cmp.Compare(a.Node, b.Node) }) {
		if _, again := want[a.Node]; !again && len(want) == maxPeers {
			m.log.Error("mesh set is full, further peers are ignored", "max", maxPeers, "first_ignored", a.Node)
			break
		}
		if a.Node != m.cfg.Self {
			want[a.Node] = a
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for node := range m.links {
		if _, ok := want[node]; !ok {
			delete(m.links, node)
		}
	}
	for node, a := range want {
		if l := m.links[node]; l != nil {
			l.move(a)
		} else {
			m.links[node] = newLink(m, a)
		}
	}
	select {
	case m.changed <- struct{}{}:
	default: // Run has not yet looked at the last change
	}
}

// Peers returns the set with the state of each link, by node name.
func (m *Mesh) Peers() []PeerStatus {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]PeerStatus, 0, len(m.links))
	for _, l := range m.links {
		s := l.status()
		s.Inbound = m.guests.whole(s.Peer.ID)
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b PeerStatus) int { return cmp.Compare(a.Peer.Node, b.Peer.Node) })
	return out
}

// Admitted returns the node that is connected under a peer ID now, in whichever
// direction: it has proved the cluster secret. Other transports may let it in.
func (m *Mesh) Admitted(id string) (kevlard.NodeID, bool) {
	if n, ok := m.guests.node(id); ok {
		return n, true
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, l := range m.links {
		if s := l.status(); s.Connected && s.Peer.ID == id {
			return s.Peer.Node, true
		}
	}
	return "", false
}

// link returns the link to a node of the set.
func (m *Mesh) link(node kevlard.NodeID) (*link, error) {
	if node == m.cfg.Self {
		return nil, ErrSelf
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	l := m.links[node]
	if l == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoPeer, node)
	}
	return l, nil
}
