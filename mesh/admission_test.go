package mesh

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
)

// stranger dials by hand, with whatever it knows.
type stranger struct {
	admitter
	dialler transport.Transport
}

func newStranger(t testing.TB, cfg Config) *stranger {
	t.Helper()
	dialler, _, err := newTransport(cfg.Key, &gate{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(cfg.Key)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := newKeys([][]byte{cfg.Secret})
	if err != nil {
		t.Fatal(err)
	}
	return &stranger{dialler: dialler, admitter: admitter{
		id: id, keys: keys, versions: Versions{1, 1},
		names: names{ring: cfg.Ring, node: cfg.Self, boot: cfg.Boot},
	}}
}

// open returns a secured connection that has said nothing yet.
func (s *stranger) open(t testing.TB, to *testNode) (transport.CapableConn, network.MuxedStream) {
	t.Helper()
	addr, err := resolve(t.Context(), to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.dialler.Dial(t.Context(), addr, to.id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	placeOf(conn).admit(classControl) // the stranger's own gate, for streams as it likes
	stream, err := conn.OpenStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn, stream
}

// Each pair cannot admit each other, and both learn the same reason.
func TestRefusedOnBothSides(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*Config)
		want []string
	}{
		"secret":   {func(c *Config) { c.Secret = []byte("another secret of the right size") }, []string{"secret mismatch"}},
		"ring":     {func(c *Config) { c.Ring = "other" }, []string{"ring mismatch", `"other"`, `"test"`}},
		"versions": {func(c *Config) { c.Versions = Versions{2, 3} }, []string{"versions", "2..3", "1..1"}},
		"own name": {func(c *Config) { c.Self = "b" }, []string{"name mismatch"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, "a")
			c.edit(&cfg)
			a, b := start(t, cfg), start(t, testConfig(t, "b"))
			to := b.at()
			if name == "own name" {
				to.Node = "x" // a mesh does not dial its own name
			}
			a.SetPeers([]Address{to})
			for _, e := range []event{a.next(t, "refused", "up"), b.next(t, "refused", "up")} {
				if e.what != "refused" {
					t.Fatalf("admitted: %+v", e)
				}
				for _, want := range c.want {
					if !strings.Contains(e.text, want) {
						t.Errorf("reason %q does not name %q", e.text, want)
					}
				}
			}
			if s := a.Peers()[0]; s.Connected || !strings.Contains(s.LastError, c.want[0]) {
				t.Errorf("status of the refused peer: %+v", s)
			}
		})
	}
}

func TestOverlappingVersionsAdmit(t *testing.T) {
	ca, cb := testConfig(t, "a"), testConfig(t, "b")
	ca.Versions, cb.Versions = Versions{1, 2}, Versions{2, 5}
	connect(t, start(t, ca), start(t, cb))
}

// The dialler refuses a node that is not the one it dialled.
func TestOtherNodeAtAddress(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	to := b.at()
	to.Node = "c"
	a.SetPeers([]Address{to})
	for _, e := range []event{a.next(t, "refused", "up"), b.next(t, "refused", "up")} {
		if e.what != "refused" || !strings.Contains(e.text, `dialled node "c", met node "b"`) {
			t.Fatalf("got %+v", e)
		}
	}
}

func TestOtherKeyAtAddress(t *testing.T) {
	a, b, c := start(t, testConfig(t, "a")), start(t, testConfig(t, "b")), start(t, testConfig(t, "c"))
	to := b.at()
	to.ID = c.PeerID()
	a.SetPeers([]Address{to})
	until(t, func() bool { return strings.Contains(a.Peers()[0].LastError, "peer id mismatch") })
}

// A name that the set binds to one peer ID is refused to another.
func TestNameBoundToOtherPeer(t *testing.T) {
	a, b := start(t, testConfig(t, "a")), start(t, testConfig(t, "b"))
	connect(t, a, b)
	impostor := start(t, testConfig(t, "b"))
	impostor.SetPeers([]Address{a.at()})
	if e := a.next(t, "refused", "down"); e.what != "refused" || !strings.Contains(e.text, b.PeerID()) {
		t.Fatalf("got %+v", e)
	}
}

// A connected peer ID cannot take a second name.
func TestSecondNameForPeerID(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	cfg := testConfig(t, "b")
	first := newStranger(t, cfg)
	_, stream := first.open(t, a)
	if _, err := first.dial(stream, a.id, classControl, 1); err != nil {
		t.Fatal(err)
	}
	cfg.Self = "c"
	second := newStranger(t, cfg)
	_, stream = second.open(t, a)
	_, err := second.dial(stream, a.id, classControl, 1)
	if err == nil || !strings.Contains(err.Error(), `connected as node "b" and claims to be "c"`) {
		t.Fatalf("second name: %v", err)
	}
}

// Nothing but admission is accepted before it.
func TestNothingBeforeAdmission(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	control, err := newFrame(kindControl, nil, []byte("hi"))
	if err != nil {
		t.Fatal(err)
	}
	s := newStranger(t, testConfig(t, "b"))
	for name, say := range map[string]func(transport.CapableConn, network.MuxedStream) error{
		"control first": func(_ transport.CapableConn, s network.MuxedStream) error {
			_, err := s.Write(control)
			return err
		},
		"control after hello": func(_ transport.CapableConn, s network.MuxedStream) error {
			return errors.Join(send(s, kindHello, newHello(classControl, Versions{1, 1}, 1).encode()), func() error { _, err := s.Write(control); return err }())
		},
		"second stream": func(c transport.CapableConn, _ network.MuxedStream) error {
			_, err := c.OpenStream(context.Background())
			return err
		},
		"no mesh at all": func(_ transport.CapableConn, s network.MuxedStream) error {
			_, err := s.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			return err
		},
	} {
		conn, stream := s.open(t, a)
		if err := say(conn, stream); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		select {
		case <-session(conn).CloseChan():
		case <-time.After(handshakeTimeout / 2):
			t.Fatalf("%s: the connection stays open", name)
		}
	}
	select {
	case e := <-a.events:
		t.Fatalf("the handler was called: %+v", e)
	default:
	}
}

// A data connection has one stream for life.
func TestNoCallsOnDataConnection(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	s := newStranger(t, testConfig(t, "b"))
	conn, stream := s.open(t, a)
	if _, err := s.dial(stream, a.id, classData, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.OpenStream(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-session(conn).CloseChan():
	case <-time.After(patience):
		t.Fatal("the connection stays open")
	}
}

// A stranger is cut off after handshakeTimeout, in TLS as well as after it.
func TestHandshakeDeadline(t *testing.T) {
	t.Parallel()
	a := start(t, testConfig(t, "a"))
	began := time.Now()
	silent, err := net.Dial("tcp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, _ := newStranger(t, testConfig(t, "b")).open(t, a)
	if err := silent.SetReadDeadline(began.Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a silent TCP connection stays open: %v", err)
	}
	select {
	case <-session(conn).CloseChan():
	case <-time.After(patience):
		t.Fatal("a silent secured connection stays open")
	}
}

// Beyond maxUnadmitted newcomers are closed at once, and places come back.
func TestUnadmittedBound(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	var crowd []net.Conn
	for range maxUnadmitted {
		c, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		crowd = append(crowd, c)
	}
	count := func() int {
		a.gate.mu.Lock()
		defer a.gate.mu.Unlock()
		return a.gate.unadmitted
	}
	until(t, func() bool { return count() == maxUnadmitted })
	extra, err := net.Dial("tcp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	if err := extra.SetReadDeadline(time.Now().Add(handshakeTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := extra.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("the connection over the bound stays open: %v", err)
	}
	for _, c := range crowd {
		c.Close()
	}
	until(t, func() bool { return count() == 0 })
	b := start(t, testConfig(t, "b"))
	connect(t, a, b)
	if n := count(); n != 0 {
		t.Fatalf("%d places are held after admission", n)
	}
}

// until polls a condition that no event announces.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within %v:\n%s", patience, stacks())
		}
	}
}
