package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/rdma/flow"
)

// liar is a sender that holds the secret and keeps no protocol: it has a queue pair, a
// ring of its own and what the receiver has told.
type liar struct {
	t     *testing.T
	queue Queue
	mem   *block
	peer  flow.Endpoint
	works uint64
}

func newLiar(t *testing.T, net *testNet, m *Mover) *liar {
	t.Helper()
	d := net.fabric.device("card of liar")
	mem, err := newBlock(flow.RingBytes+flow.Window*flow.GrantBytes, d)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.Queue(sendDepth, sendDepth, Source{address(), true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if err := mem.close(); err != nil {
			t.Error(err)
		}
	})
	own := flow.Setup{Summed: !m.cfg.Unsummed, To: address().Addr.As16(), ToType: uint8(address().Type), Number: 1, Endpoint: q.Local()}
	own.Endpoint.Addr, own.Endpoint.RKey, own.Endpoint.Size = mem.regions[0].Addr+flow.RingBytes, mem.regions[0].RKey, flow.Window*flow.GrantBytes
	answer, err := m.Answer(t.Context(), "liar", own.Encode())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := flow.DecodeSetup(answer, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Receive(sendDepth); err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(peer.Endpoint); err != nil {
		t.Fatal(err)
	}
	return &liar{t: t, queue: q, mem: mem, peer: peer.Endpoint}
}

// write writes n bytes of its ring at an offset to the same place of the receiver's, and
// says an immediate. What fails is the receiver's refusal.
func (l *liar) write(offset, n int, i flow.Imm) {
	l.works++
	own := l.mem.regions[0]
	_ = l.queue.Post(Work{
		ID: l.works, Local: own.Addr + uint64(offset), LKey: own.LKey, Bytes: uint32(n),
		Addr: l.peer.Addr + uint64(offset), RKey: l.peer.RKey, Imm: i,
	})
}

// message writes a well-formed message at a unit of the ring.
func (l *liar) message(unit int, header string, size int, m message) {
	n := messageLen(len(header), size, m.ask)
	var body [][]byte
	if !m.ask {
		body = [][]byte{make([]byte, size)}
	}
	putMessage(l.mem.mem[unit*flow.UnitBytes:][:n], []byte(header), body, size, m)
	l.write(unit*flow.UnitBytes, n, flow.Say(flow.Piece, uint32(unit)))
}

// gone waits until the receiver has ended the connection, and checks that all buffers and
// all staging memory came back.
func (l *liar) gone(m *Mover, h *counter) {
	l.t.Helper()
	until(l.t, "the connection ends", func() bool { return m.conns.Len() == 0 })
	if h.buffers.Load() != h.received.Load()-h.empty.Load()+h.aborted.Load() {
		l.t.Errorf("%d buffers, %d received, %d of them empty, %d aborted", h.buffers.Load(), h.received.Load(), h.empty.Load(), h.aborted.Load())
	}
	if n := m.inco.used(); n != 0 {
		l.t.Errorf("%d bytes of staging memory are missing", n)
	}
}

// TestHeaderIsCopied: what a handler sees cannot be changed by the peer between the check
// and the use.
func TestHeaderIsCopied(t *testing.T) {
	ring := make([]byte, messageLen(3, 4, false))
	putMessage(ring, []byte("abc"), [][]byte{[]byte("body")}, 4, message{})
	m, err := decodeMessage(ring, len(ring))
	if err != nil {
		t.Fatal(err)
	}
	clear(ring)
	if string(m.header) != "abc" {
		t.Errorf("header %q", m.header)
	}
}

// TestAskedTwice: a peer that asks with the number of an ask whose body has come, and
// waits its turn, ends its connection, and each buffer comes back once.
func TestAskedTwice(t *testing.T) {
	net, h := newTestNet(t), &counter{}
	b := net.start("b", h)
	l := newLiar(t, net, b)
	const size = 100_000
	l.message(0, "h", size, message{ask: true, number: 1}) // its body never comes, so that those behind it wait
	l.message(1, "h", size, message{ask: true, number: 2})
	until(t, "places are granted", func() bool { return h.buffers.Load() == 2 })
	l.write(0, 0, flow.Say(flow.Body, 2))
	l.message(2, "h", size, message{ask: true, number: 2})
	l.message(3, "h", 10, message{})
	l.write(0, 0, flow.Say(flow.Withdraw, 1)) // lets the others be handed on
	l.gone(b, h)
}

// TestWithdrawnTooLate: a peer that takes an ask back whose body has come and waits its turn
// takes nothing back.
func TestWithdrawnTooLate(t *testing.T) {
	net, h := newTestNet(t), &counter{}
	b := net.start("b", h)
	l := newLiar(t, net, b)
	const size = 100_000
	l.message(0, "h", size, message{ask: true, number: 1})
	l.message(1, "h", size, message{ask: true, number: 2})
	until(t, "places are granted", func() bool { return h.buffers.Load() == 2 })
	l.write(0, 0, flow.Say(flow.Body, 2))
	l.write(0, 0, flow.Say(flow.Withdraw, 2))
	l.write(0, 0, flow.Say(flow.Withdraw, 1))
	until(t, "the second is handed on", func() bool { return h.received.Load() == 1 })
	b.Forget("liar")
	l.gone(b, h)
}

// TestLies: whatever a peer writes and says, its connection ends at the latest when it
// falls silent, everything comes back, and the node serves others.
func TestLies(t *testing.T) {
	kinds := []flow.Kind{flow.Piece, flow.Body, flow.Withdraw, flow.Bye, flow.Hello, flow.Credit, flow.Grant, flow.Refuse, flow.Parted, flow.Gone, 0, 77}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		net, h := newTestNet(t), &counter{}
		net.tune = func(c *Config) { c.Stall = conns.MinStall }
		b := net.start("b", h)
		l := newLiar(t, net, b)
		if r.IntN(4) > 0 {
			l.write(0, 0, flow.Say(flow.Hello, 0))
		}
		unit, number := 0, uint32(0)
		for range r.IntN(40) {
			switch r.IntN(6) {
			case 0, 1: // in the protocol
				size := r.IntN(60_000)
				l.message(unit%flow.RingUnits, "header", size, message{})
				unit += (messageLen(6, size, false) + flow.UnitBytes - 1) / flow.UnitBytes
			case 2:
				l.message(unit%flow.RingUnits, "header", 1+r.IntN(1<<20), message{ask: true, number: number})
				unit++
				number += uint32(r.IntN(2))
			case 3:
				l.write(0, 0, flow.Say(flow.Body, uint32(r.IntN(int(number)+1))))
			case 4:
				l.write(0, 0, flow.Say(flow.Withdraw, uint32(r.IntN(int(number)+1))))
			default:
				at := r.IntN(flow.RingBytes - flow.UnitBytes)
				for i := range 64 {
					l.mem.mem[at+i] = byte(r.Uint32())
				}
				l.write(at, r.IntN(flow.UnitBytes), flow.Say(kinds[r.IntN(len(kinds))], uint32(r.IntN(2*flow.RingUnits))))
			}
		}
		if err := l.queue.Fail(); err != nil {
			t.Fatal(err)
		}
		b.Forget("liar")
		l.gone(b, h)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSetupLies: a peer that says in a set-up what is not so gets an error, and leaves
// nothing behind.
func TestSetupLies(t *testing.T) {
	net := newTestNet(t)
	b := net.start("b", &counter{})
	d := net.fabric.device("card of liar")
	q, err := d.Queue(1, 1, Source{address(), true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	good := flow.Setup{Summed: true, To: address().Addr.As16(), ToType: uint8(address().Type), Number: 5, Endpoint: q.Local()}
	good.Endpoint.Size = flow.Window * flow.GrantBytes
	for name, lie := range map[string]func(*flow.Setup){
		"a rail that is not there":    func(s *flow.Setup) { s.Rail = 1 },
		"an address that is not ours": func(s *flow.Setup) { s.To[15]++ },
		"another kind of address":     func(s *flow.Setup) { s.ToType-- },
		"no routed path":              func(s *flow.Setup) { s.Endpoint.Routed = false },
		"other sums":                  func(s *flow.Setup) { s.Summed = false },
		"an answer":                   func(s *flow.Setup) { s.Answer = true },
		"a slot beyond all":           func(s *flow.Setup) { s.Slot = flow.MaxSlots },
		"no MTU":                      func(s *flow.Setup) { s.Endpoint.MTU = 0 },
		"a number too long":           func(s *flow.Setup) { s.Endpoint.QPN = 1 << 24 },
		"memory of another size":      func(s *flow.Setup) { s.Endpoint.Size++ },
	} {
		s := good
		lie(&s)
		if _, err := b.Answer(t.Context(), "liar", s.Encode()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := b.Answer(t.Context(), "liar", good.Encode()); err != nil {
		t.Errorf("the truth: %v", err)
	}
	if _, err := b.Answer(t.Context(), "liar", good.Encode()); err == nil {
		t.Error("the same connection twice: accepted")
	}
	b.Forget("liar")
	until(t, "nothing is left", func() bool {
		net.fabric.mu.Lock()
		defer net.fabric.mu.Unlock()
		return len(net.fabric.queues) == 1 && len(net.fabric.keys) == 2 // the liar's queue, b's staging memory
	})
}
