package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// refused sends from a to b and wants an error that says each of want.
func refused(t *testing.T, m *Mover, want ...string) {
	t.Helper()
	err := m.Send(t.Context(), "b", 0, []byte("x"))
	if !errors.Is(err, mover.ErrUnreachable) {
		t.Fatalf("got %v, want %v", err, mover.ErrUnreachable)
	}
	for _, w := range append(want, "next dial in") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want it to say %q", err, w)
		}
	}
}

func TestStrangerIsRefused(t *testing.T) {
	net := newTestNet(t, false)
	a := net.start("a", &tray{})
	net.start("b", &tray{})
	net.mu.Lock()
	clear(net.ids)
	net.mu.Unlock()
	refused(t, a, "not admitted to the mesh of b")
}

func TestNameOfAnotherIsRefused(t *testing.T) {
	net := newTestNet(t, false)
	a := net.start("a", &tray{})
	net.start("b", &tray{})
	net.mu.Lock()
	for id := range net.ids {
		net.ids[id] = "c"
	}
	net.mu.Unlock()
	refused(t, a, `is node "c" in the mesh, not "a"`)
}

// TestImpostorIsNotSentTo: whoever listens at b's address must prove b's peer ID.
func TestImpostorIsNotSentTo(t *testing.T) {
	net := newTestNet(t, false)
	a := net.start("a", &tray{})
	b := &tray{}
	net.start("b", b)
	net.mu.Lock()
	p := net.peers["b"]
	id, err := peer.IDFromPrivateKey(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	p.ID = id.String()
	net.peers["b"] = p
	net.mu.Unlock()
	refused(t, a, "peer id mismatch")
}

func TestWrongNodeIsRefused(t *testing.T) {
	eachMode(t, func(t *testing.T, net *testNet) {
		a := net.start("a", &tray{})
		net.start("c", &tray{})
		net.mu.Lock()
		net.peers["b"] = net.peers["c"]
		net.mu.Unlock()
		refused(t, a, `this is node "c", not "b"`)
	})
}

func TestTicketOfAnotherSecret(t *testing.T) {
	net := newTestNet(t, true)
	a := net.start("a", &tray{})
	net.tune = func(c *Config) {
		c.Secret = func(context.Context, kevlard.NodeID) ([]byte, error) {
			return []byte("another secret of the right size"), nil
		}
	}
	net.start("b", &tray{})
	refused(t, a, "ticket is not of this pair's secret")
}

func TestSecretIsMissingOrShort(t *testing.T) {
	for want, secret := range map[string]func(context.Context, kevlard.NodeID) ([]byte, error){
		"a has left":                    func(context.Context, kevlard.NodeID) ([]byte, error) { return nil, errors.New("a has left") },
		"has 5 bytes: want at least 16": func(context.Context, kevlard.NodeID) ([]byte, error) { return []byte("short"), nil },
	} {
		net := newTestNet(t, true)
		a := net.start("a", &tray{})
		net.tune = func(c *Config) { c.Secret = secret }
		net.start("b", &tray{})
		refused(t, a, want, "secret shared with a")
	}
}

// TestReplayedProof: a recorded handshake is worth nothing, since nonces are fresh.
func TestReplayedProof(t *testing.T) {
	network := newTestNet(t, true)
	a := network.start("a", &tray{limit: 1})
	b := network.start("b", &tray{limit: 1})
	var tape bytes.Buffer
	p := network.proxy("b")
	p.mu.Lock()
	p.change = func(b []byte) { tape.Write(b) }
	p.mu.Unlock()
	if err := a.Send(t.Context(), "b", 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return b.Stats().Received == 1 })
	p.mu.Lock()
	recorded := bytes.Clone(tape.Bytes())
	p.change = nil
	p.mu.Unlock()
	conn, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(recorded); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(conn) // a reset may cut it short, after the refusal
	if !bytes.Contains(answer, []byte("is not of the secret")) || b.Stats().Received != 1 {
		t.Errorf("answer %q, received %d", answer, b.Stats().Received)
	}
}

func TestModesMustBeEqual(t *testing.T) {
	net := newTestNet(t, false)
	a := net.start("a", &tray{})
	net.tune = func(c *Config) { c.Plain = true }
	net.start("b", &tray{})
	refused(t, a, "mesh.plain")

	net = newTestNet(t, true)
	a = net.start("a", &tray{})
	net.tune = func(c *Config) { c.Unsummed = true }
	net.start("b", &tray{})
	refused(t, a, "the peer uses transport 2 (1 TLS, 2 plain, 3 plain without checksums), this node 3")

	net = newTestNet(t, true)
	a = net.start("a", &tray{})
	net.tune = func(c *Config) { c.Plain = false }
	net.start("b", &tray{})
	refused(t, a, "the peer speaks plain TCP, this node TLS: set mesh.plain alike on both")
}

// TestVersionsAreRefusedByName speaks version 9 to a node, and has a node speak to one
// of version 9.
func TestVersionsAreRefusedByName(t *testing.T) {
	network := newTestNet(t, true)
	a := network.start("a", &tray{})
	conn, err := net.Dial("tcp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(greeting{9, kindOpen, []byte("of the future")}.encode()); err != nil {
		t.Fatal(err)
	}
	g, err := readGreeting(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.expect(kindWelcome); err == nil || !strings.Contains(err.Error(), "speaks version 9 of bulk transfers, this node version 1: run the same release") {
		t.Errorf("got %v", err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		g := refusal("speaks version 1 of bulk transfers, this node version 9: run the same release of kevlard on both")
		g[4] = 9
		c.Write(g)
		io.Copy(io.Discard, c)
		c.Close()
	}()
	network.mu.Lock()
	network.peers["b"] = Peer{Addr: l.Addr().String()}
	network.mu.Unlock()
	refused(t, a, "refused by the peer: speaks version 1 of bulk transfers, this node version 9")
}

// TestSilentStrangers: connections that say nothing hold a place each, and no more
// than there are places.
func TestSilentStrangers(t *testing.T) {
	network := newTestNet(t, false)
	a := network.start("a", &tray{})
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	strangers := func() int {
		return int(a.strangers.Load())
	}
	for range maxStrangers {
		c, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	until(t, func() bool { return strangers() == maxStrangers })
	c, err := net.Dial("tcp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	conns = append(conns, c)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the stranger over the bound got an answer")
	}
	for _, c := range conns[:10] {
		c.Close()
	}
	until(t, func() bool { return strangers() <= maxStrangers-10 })
}

func TestConfigNamesEveryMistake(t *testing.T) {
	_, err := New(Config{Options: conns.Options{Conns: 17, Stall: 1, Idle: -1}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Self", "Listen", "Resolve", "TLS needs Key", "Conns is 17: want 1 to 16", "Stall is 1ns", "Idle is -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := New(Config{Plain: true}); err == nil || !strings.Contains(err.Error(), "Plain needs Secret") {
		t.Errorf("got %v", err)
	}
}
