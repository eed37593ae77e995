//go:build rdma

package rdma

import (
	"context"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/prefer"
	"github.com/kevlard/kevlard/kvstream/tcp"
	"github.com/kevlard/kevlard/rdma/rail"
)

// flap is how long the rails are down, as in the case, and longer than the longest wait
// between two tries.
const flap = 60 * time.Second

// ordered is a Handler that wants numbered pieces of one lane in order, each at most once.
type ordered struct {
	t *testing.T

	mu   sync.Mutex
	next uint64
	lost int // numbers that never came
}

func (o *ordered) Buffer(_ kevlard.NodeID, _ []byte, n int) []byte { return make([]byte, n) }
func (o *ordered) Aborted(kevlard.NodeID, []byte, []byte)          {}
func (o *ordered) Lost(kevlard.NodeID, error)                      {}
func (o *ordered) Received(_ kevlard.NodeID, header, body []byte) {
	seq := binary.BigEndian.Uint64(header)
	if got := binary.BigEndian.Uint64(body[len(body)-8:]); got != seq {
		o.t.Errorf("piece %d has the body of piece %d", seq, got)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if seq < o.next {
		o.t.Errorf("piece %d after piece %d", seq, o.next-1)
	}
	o.lost += int(seq - o.next)
	o.next = seq + 1
}

// question and reply are what the two hosts say to each other beside the movers.
type question struct {
	Exchange []byte // of a mover
	Link     string // of a's rails: up, down
	Through  uint64 // wait for this piece
}

type reply struct {
	Exchange []byte
	Error    string
}

// peerHost is what a test of two hosts has on its own.
type peerHost struct {
	t       *testing.T
	arrived *ordered
	rdma    *Mover
	both    *prefer.Mover
	changes atomic.Int64 // of what carries pieces
}

// newPeerHost makes host a or b: a takes in, b sends and asks by ask.
func newPeerHost(t *testing.T, role string, ask func(question) reply) *peerHost {
	h := &peerHost{t: t, arrived: &ordered{t: t}}
	gate := prefer.NewGate(h.arrived)
	cards, err := Open(rail.Want{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cards.Close(); err != nil {
			t.Error(err)
		}
	})
	h.rdma, err = New(Config{
		Self: kevlard.NodeID(role), Devices: cards.Devices, Handler: lostTo{gate, func(to kevlard.NodeID, err error) { h.both.Lost(to, err) }},
		Known: func(kevlard.NodeID) bool { return true },
		Exchange: func(_ context.Context, _ kevlard.NodeID, request []byte) ([]byte, error) {
			r := ask(question{Exchange: request})
			if r.Error != "" {
				return nil, fmt.Errorf("%s", r.Error)
			}
			return r.Exchange, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	overTCP, err := tcp.New(tcp.Config{
		Self: kevlard.NodeID(role), Listen: ":7002", Plain: true, Handler: gate,
		Resolve: func(kevlard.NodeID) (tcp.Peer, bool) { return tcp.Peer{Addr: os.Getenv("RDMA_PEER") + ":7002"}, true },
		Secret:  func(context.Context, kevlard.NodeID) ([]byte, error) { return []byte("sixteen bytes or more"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	h.both = prefer.New(prefer.Config{
		Better: prefer.Choice{Name: "rdma", Mover: h.rdma}, Other: prefer.Choice{Name: "tcp", Mover: overTCP},
		Probe: h.rdma.Probe, Handler: gate, Changed: func(c prefer.Change) { t.Log(c.Using, c.Why); h.changes.Add(1) },
	})
	t.Cleanup(func() {
		if err := h.both.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// lostTo tells somebody else first.
type lostTo struct {
	mover.Handler
	lost func(kevlard.NodeID, error)
}

func (l lostTo) Lost(to kevlard.NodeID, err error) {
	l.lost(to, err)
	l.Handler.Lost(to, err)
}

// TestPeerFlap takes both rails of a down while b sends to it, and up again (case K27): the
// pieces go over TCP meanwhile and over RDMA afterwards, in order, and no slower than before.
func TestPeerFlap(t *testing.T) {
	role := os.Getenv("RDMA_ROLE")
	if role == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("needs two hosts: RDMA_GUESTS=2")
		}
		t.Skip("needs two hosts: make test-rdma runs it with RDMA_GUESTS=2")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if role == "a" {
		answerFlap(ctx, t)
		return
	}
	conn := dialPeer(ctx, t, os.Getenv("RDMA_PEER")+":7001")
	defer conn.Close()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	var mu sync.Mutex
	ask := func(q question) (r reply) {
		mu.Lock()
		defer mu.Unlock()
		if err := out.Encode(q); err != nil {
			return reply{Error: err.Error()}
		}
		if err := in.Decode(&r); err != nil {
			return reply{Error: err.Error()}
		}
		return r
	}
	h := newPeerHost(t, role, ask)
	const size = 256 << 10
	body, sent := make([]byte, size), uint64(0)
	send := func() {
		binary.BigEndian.PutUint64(body[size-8:], sent)
		err := h.both.Send(ctx, "a", 1, binary.BigEndian.AppendUint64(nil, sent), body)
		sent++ // what has failed may have arrived
		if err != nil {
			t.Logf("piece %d: %v", sent-1, err)
		}
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
	}
	// until sends until pieces go by a mover, and says how long that took.
	until := func(name string) time.Duration {
		t.Helper()
		for start := time.Now(); ; send() {
			if using, _ := h.both.Using("a"); using == name {
				return time.Since(start)
			}
		}
	}
	// rate sends pieces until a has them and returns MB/s.
	rate := func() float64 {
		t.Helper()
		const n = 160
		start := time.Now()
		for range n {
			send()
		}
		if r := ask(question{Through: sent - 1}); r.Error != "" {
			t.Fatal(r.Error)
		}
		return n * size / 1e6 / time.Since(start).Seconds()
	}
	link := func(state string) {
		t.Helper()
		if r := ask(question{Link: state}); r.Error != "" {
			t.Fatal(r.Error)
		}
	}
	until("rdma")
	before := rate()
	link("down")
	until("tcp")
	meanwhile := 0.0
	for end := time.Now().Add(flap); time.Now().Before(end); {
		meanwhile = rate()
	}
	link("up")
	back := until("rdma")
	after := rate()
	if n := h.changes.Load(); n != 3 {
		t.Errorf("what carries pieces changed %d times, want 3: to RDMA, to TCP, and back", n)
	}
	t.Logf("RDMA before %.1f MB/s, TCP meanwhile %.1f, RDMA after %.1f: %.2f of before, %v after the link came back; RDMA/TCP %.2f",
		before, meanwhile, after, after/before, back.Round(time.Millisecond), before/meanwhile)
}

// dialPeer connects to the other host as soon as it listens.
func dialPeer(ctx context.Context, t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond): // its test may not have begun
		}
	}
}

// answerFlap is a's part: it does what b asks until b has ended.
func answerFlap(ctx context.Context, t *testing.T) {
	l, err := net.Listen("tcp", ":7001")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	h := newPeerHost(t, "a", func(question) reply { return reply{Error: "a only takes in"} })
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var q question
		if in.Decode(&q) != nil {
			break // b has ended
		}
		if err := out.Encode(h.answer(ctx, q)); err != nil {
			t.Fatal(err)
		}
	}
	h.arrived.mu.Lock()
	defer h.arrived.mu.Unlock()
	if h.arrived.next == 0 || h.arrived.lost > int(h.arrived.next)/4 {
		t.Errorf("%d of %d pieces were lost", h.arrived.lost, h.arrived.next)
	}
	t.Logf("%d of %d pieces were lost", h.arrived.lost, h.arrived.next)
}

func (h *peerHost) answer(ctx context.Context, q question) (r reply) {
	switch {
	case q.Exchange != nil:
		out, err := h.rdma.Answer(ctx, "b", q.Exchange)
		if err != nil {
			return reply{Error: err.Error()}
		}
		return reply{Exchange: out}
	case q.Link != "":
		for _, rail := range []string{"eth1", "eth2"} {
			if out, err := exec.CommandContext(ctx, "ip", "link", "set", rail, q.Link).CombinedOutput(); err != nil {
				return reply{Error: fmt.Sprintf("%v: %s", err, out)}
			}
		}
		return reply{}
	}
	for ctx.Err() == nil {
		h.arrived.mu.Lock()
		there := h.arrived.next > q.Through
		h.arrived.mu.Unlock()
		if there {
			return reply{}
		}
		time.Sleep(time.Millisecond)
	}
	return reply{Error: ctx.Err().Error()}
}
