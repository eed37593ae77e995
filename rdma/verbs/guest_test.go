package verbs

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// guestPatience is how long a test waits for what must come. It only bounds a failure:
// an emulated guest on a busy machine may need seconds for anything.
const guestPatience = 20 * time.Minute

// Times to an acknowledgement. A peer that lives may not run for seconds on a busy
// machine: patientTimeout is 4.3 s, and there are six more tries. Where the peer does
// not answer, briefTimeout (67 ms) brings that about.
const (
	patientTimeout = 20
	briefTimeout   = 14
)

// loaded returns the library and its devices; where there are none the test misses.
func loaded(t testing.TB) (*Library, []Device) {
	t.Helper()
	l, err := Load()
	if err != nil {
		miss(t, "runs in make test-rdma: %v", err)
	}
	d, err := l.Devices()
	if err != nil || len(d) == 0 {
		miss(t, "runs in make test-rdma: devices %v, %v", d, err)
	}
	return l, d
}

// miss skips a test, or in the guest, where RDMA_REQUIRED says that nothing may be
// missing, fails it.
func miss(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("RDMA_REQUIRED") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// patient ends with the test, or when it has waited for too long.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guestPatience)
	t.Cleanup(cancel)
	return ctx
}

// opened is a device that is closed at the end of the test, when all else is.
func opened(t testing.TB, l *Library, name string) *Context {
	t.Helper()
	c, err := l.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	closedAtEnd(t, c.Close)
	return c
}

func closedAtEnd(t testing.TB, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

// end is one end of a connection: a queue pair, its queues, a slab.
type end struct {
	c        *Context
	sends    *Queue
	receives *Queue
	pair     *QueuePair
	slab     *Region
	address  address
}

// address is what the other end must know.
type address struct {
	QP, PSN, Key uint32
	Memory       uint64
	GID          netip.Addr
	Index        int // of GID in the own table
	MTU          MTU
}

// newEnd makes an end with a slab of n bytes that the peer may write to.
func newEnd(t testing.TB, l *Library, device string, n int) *end {
	t.Helper()
	e := &end{c: opened(t, l, device)}
	var err error
	for _, q := range []**Queue{&e.sends, &e.receives} {
		if *q, err = e.c.NewQueue(256); err != nil {
			t.Fatal(err)
		}
		closedAtEnd(t, (*q).Close)
	}
	if e.slab, err = e.c.NewSlab(n, PeerWrites); err != nil {
		t.Fatal(err)
	}
	closedAtEnd(t, e.slab.Close)
	e.newPair(t)
	return e
}

// newPair gives the end a queue pair, instead of the one that it has.
func (e *end) newPair(t testing.TB) {
	t.Helper()
	if e.pair != nil {
		if err := e.pair.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	e.pair, err = e.c.NewQueuePair(PairConfig{Port: 1, Sends: e.sends, Receives: e.receives, SendDepth: 128, ReceiveDepth: 128, Inline: 64})
	if err != nil {
		t.Fatal(err)
	}
	closedAtEnd(t, e.pair.Close)
	p, err := e.c.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(p.GIDs, func(g GID) bool { return g.Type == GIDRoCEv2 && g.Addr.Is4In6() })
	if i < 0 {
		t.Fatalf("no RoCE v2 GID with IPv4 in %+v", p)
	}
	// Random, for guests are alike to the last bit: fields that were swapped must not fit.
	e.address = address{
		QP: e.pair.Number, PSN: rand.Uint32() & 0xffffff, Key: e.slab.RemoteKey, Memory: e.slab.Addr, GID: p.GIDs[i].Addr,
		Index: p.GIDs[i].Index, MTU: p.MTU,
	}
}

// path leads to a peer.
func (e *end) path(to address) Path {
	return Path{
		Port: 1, MTU: min(e.address.MTU, to.MTU), QP: to.QP, SendPSN: e.address.PSN, ReceivePSN: to.PSN, Global: true, GID: to.GID,
		SourceGID: e.address.Index, Timeout: patientTimeout, Retries: MaxRetries, NotReadyTimer: 12, NotReadyRetries: MaxRetries,
	}
}

func (e *end) connect(t testing.TB, to address) {
	t.Helper()
	if err := e.pair.Connect(e.path(to)); err != nil {
		t.Fatal(err)
	}
}

// connectBriefly connects to a peer that is not going to answer.
func (e *end) connectBriefly(t testing.TB, to address) {
	t.Helper()
	p := e.path(to)
	p.Timeout = briefTimeout
	if err := e.pair.Connect(p); err != nil {
		t.Fatal(err)
	}
}

// connected are two ends of one connection on one device.
func connected(t testing.TB, l *Library, device string, n int) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, l, device, n), newEnd(t, l, device, n)
	a.connect(t, b.address)
	b.connect(t, a.address)
	return a, b
}

// write is a request to write the bytes [off, off+n) of e's slab to the same place
// at the peer.
func (e *end) write(id uint64, to address, off, n int) Work {
	return Work{
		ID: id, Local: e.slab.Addr + uint64(off), Remote: to.Memory + uint64(off), Bytes: uint32(n), LocalKey: e.slab.LocalKey, RemoteKey: to.Key,
		Op: OpWrite, Flags: Signaled,
	}
}

func send(t testing.TB, e *end, w ...Work) {
	t.Helper()
	if n, err := e.pair.PostSend(w); n != len(w) || err != nil {
		t.Fatalf("%d of %d posted: %v", n, len(w), err)
	}
}

func receive(t testing.TB, e *end, w ...Work) {
	t.Helper()
	if n, err := e.pair.PostReceive(w); n != len(w) || err != nil {
		t.Fatalf("%d of %d posted: %v", n, len(w), err)
	}
}

// next waits for one completion.
func next(t testing.TB, ctx context.Context, q *Queue) Completion {
	t.Helper()
	var out [1]Completion
	if n, err := q.Wait(ctx, out[:]); n != 1 || err != nil {
		t.Fatalf("%d completions: %v", n, err)
	}
	return out[0]
}

// ends waits for a completion that must have a status.
func ends(t testing.TB, ctx context.Context, q *Queue, want Status) Completion {
	t.Helper()
	c := next(t, ctx, q)
	if c.Status != want || !errors.Is(c.Err(), want) && want != StatusSuccess {
		t.Fatalf("ended with %+v: %v, want status %d", c, c.Err(), want)
	}
	return c
}

// fill makes the bytes of a slab differ from place to place.
func fill(mem []byte, seed byte) {
	for i := range mem {
		mem[i] = byte(i>>8) ^ byte(i*7) ^ seed
	}
}
