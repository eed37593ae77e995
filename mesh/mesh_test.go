package mesh

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
)

// patience bounds every wait in these tests; it is reached only by a failure.
const patience = 20 * time.Second

// event is one call of a handler.
type event struct {
	what string // up, down, control, data, refused
	peer Peer
	head []byte
	body []byte
	err  error
	text string // of a refusal
}

// testNode is a running mesh with its events.
type testNode struct {
	*Mesh
	events chan event
	cancel context.CancelFunc
	done   chan error
}

// testConfig is a node of ring "test" on loopback.
func testConfig(t testing.TB, name string) Config {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Key: key, Self: kevlard.NodeID(name), Boot: kevlard.BootID(name + "-boot-1"), Ring: "test",
		Secret: []byte("0123456789abcdef0123456789abcdef"), Listen: "127.0.0.1:0",
	}
}

// start runs a mesh until the test ends. Handlers that cfg leaves nil record events.
func start(t testing.TB, cfg Config) *testNode {
	t.Helper()
	n := &testNode{events: make(chan event, 1<<16), done: make(chan error, 1)}
	h := &cfg.Handler
	if h.Control == nil {
		h.Control = func(p Peer, m []byte) { n.events <- event{what: "control", peer: p, body: m} }
	}
	if h.Data == nil {
		h.Data = func(p Peer, head, body []byte) { n.events <- event{what: "data", peer: p, head: head, body: body} }
	}
	h.Up = func(p Peer) { n.events <- event{what: "up", peer: p} }
	h.Down = func(p Peer, err error) { n.events <- event{what: "down", peer: p, err: err} }
	h.Refused = func(node, addr, reason string) {
		n.events <- event{what: "refused", peer: Peer{Node: kevlard.NodeID(node)}, text: reason}
	}
	if os.Getenv("MESH_TEST_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("self", cfg.Self)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.Mesh = m
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() { n.done <- m.Run(ctx) }()
	t.Cleanup(func() { n.stop(t) })
	return n
}

// stop ends the mesh as a crash would look to its peers: without a bye.
func (n *testNode) stop(t testing.TB) {
	t.Helper()
	if n.cancel == nil {
		return
	}
	n.cancel()
	n.cancel = nil
	select {
	case err := <-n.done:
		if err != nil {
			t.Errorf("run %s: %v", n.cfg.Self, err)
		}
	case <-time.After(patience):
		t.Fatalf("run %s does not end:\n%s", n.cfg.Self, stacks())
	}
}

func (n *testNode) at() Address {
	return Address{Node: n.cfg.Self, ID: n.PeerID(), Boot: n.cfg.Boot, Addr: n.Addr()}
}

// next returns the next event of one of the kinds, passing over others.
func (n *testNode) next(t testing.TB, what ...string) event {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case e := <-n.events:
			if slices.Contains(what, e.what) {
				return e
			}
		case <-limit:
			t.Fatalf("%s: no %v within %v; peers: %+v", n.cfg.Self, what, patience, n.Peers())
		}
	}
}

// connect makes every node dial every other and waits until all are up.
func connect(t testing.TB, nodes ...*testNode) {
	t.Helper()
	for _, n := range nodes {
		var set []Address
		for _, o := range nodes {
			set = append(set, o.at()) // itself too: SetPeers skips it
		}
		n.SetPeers(set)
	}
	for _, n := range nodes {
		for range len(nodes) - 1 {
			n.next(t, "up")
		}
	}
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func TestOrderPerPeerAndClass(t *testing.T) {
	a, b, c := start(t, testConfig(t, "a")), start(t, testConfig(t, "b")), start(t, testConfig(t, "c"))
	connect(t, a, b, c)
	const n = 500
	for i := range n {
		for _, from := range []*testNode{a, b} {
			if err := from.Control("c", fmt.Appendf(nil, "%d", i)); err != nil {
				t.Fatal(err)
			}
			if err := from.Data("c", fmt.Appendf(nil, "%d", i), []byte("x"), []byte("yz")); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := make(map[string]int)
	for range 4 * n {
		e := c.next(t, "control", "data")
		text := string(e.body)
		if e.what == "data" {
			if text != "xyz" {
				t.Fatalf("body %q, want the parts joined", text)
			}
			text = string(e.head)
		}
		from := string(e.peer.Node) + e.what
		if want := fmt.Sprint(seen[from]); text != want {
			t.Fatalf("%s: got message %s, want %s", from, text, want)
		}
		seen[from]++
	}
}

func TestFrameSizes(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	connect(t, a, b)
	head, body := make([]byte, maxDataHeader), make([]byte, maxDataBody)
	rand.Read(head)
	rand.Read(body)
	for _, h := range []int{0, 1, maxDataHeader} {
		for _, size := range []int{0, 1, 8192, coalesceBytes - prefixLen, maxDataBody} {
			if err := a.Data("b", head[:h], body[:size/2], body[size/2:size]); err != nil {
				t.Fatal(err)
			}
			e := b.next(t, "data")
			if !slices.Equal(e.head, head[:h]) || !slices.Equal(e.body, body[:size]) {
				t.Fatalf("header %d, body %d: other bytes arrived", h, size)
			}
		}
	}
	if err := a.Control("b", make([]byte, maxControlBody)); err != nil {
		t.Fatal(err)
	}
	if e := b.next(t, "control"); len(e.body) != maxControlBody {
		t.Fatalf("got %d bytes, want %d", len(e.body), maxControlBody)
	}
	for _, err := range []error{
		a.Data("b", make([]byte, maxDataHeader+1)),
		a.Data("b", nil, body, []byte{1}),
		a.Control("b", make([]byte, maxControlBody+1)),
	} {
		wantError(t, err, ErrTooLarge)
	}
}

func TestSendErrors(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	absent := testConfig(t, "b")
	b, err := New(absent) // listens and never admits
	if err != nil {
		t.Fatal(err)
	}
	defer b.listener.Close()
	a.SetPeers([]Address{{Node: "b", ID: b.PeerID(), Addr: b.Addr()}})
	for _, c := range []struct {
		to   kevlard.NodeID
		want error
	}{{"a", ErrSelf}, {"b", ErrNotConnected}, {"c", ErrNoPeer}} {
		wantError(t, a.Control(c.to, nil), c.want)
		wantError(t, a.Data(c.to, nil), c.want)
		_, err := a.Call(t.Context(), c.to, "m", nil)
		wantError(t, err, c.want)
	}
}

func TestPeersShowsState(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	connect(t, a, b)
	got := a.Peers()
	if len(got) != 1 || !got[0].Connected || got[0].Peer != (Peer{"b", b.PeerID(), "b-boot-1"}) || got[0].Addr != b.Addr() {
		t.Fatalf("peers: %+v", got)
	}
	for _, id := range []string{b.PeerID(), "12D3KooWnobody"} {
		if n, ok := a.Admitted(id); ok != (id == b.PeerID()) || ok && n != "b" {
			t.Errorf("%s is admitted as %q: %v", id, n, ok)
		}
	}
	b.stop(t)
	e := a.next(t, "down")
	until(t, func() bool { // its own connections to us break at about the same time
		_, ok := a.Admitted(b.PeerID())
		return !ok
	})
	if e.peer.Node != "b" || e.err == nil {
		t.Fatalf("down: %+v", e)
	}
	if got := a.Peers(); got[0].Connected || got[0].LastError == "" {
		t.Fatalf("peers after loss: %+v", got)
	}
}

func TestPortInUseShowsInNew(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	cfg := testConfig(t, "b")
	cfg.Listen = a.Addr()
	_, err := New(cfg)
	if err == nil || !strings.Contains(err.Error(), a.Addr()) || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("second listener on %s: %v", a.Addr(), err)
	}
}

func TestConfigValidate(t *testing.T) {
	bad := Config{Versions: Versions{Min: 3, Max: 2}, Secret: []byte("short")}
	_, err := New(bad)
	if err == nil {
		t.Fatal("bad config accepted")
	}
	for _, want := range []string{"mesh key", "node name", "boot ID", "ring name", "cluster secret: 5 bytes", "3..2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q: %v", want, err)
		}
	}
}

func TestRunsOnce(t *testing.T) {
	m, err := New(testConfig(t, "a"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Run(ctx); err == nil {
		t.Fatal("second Run returned no error")
	}
}
