package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/kevlard/kevlard/rdma/flow"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// fabric is cards in memory: what the protocol may rely on, and nothing more. Writes of a
// queue pair happen in order and in a goroutine of their own.
type fabric struct {
	mu     sync.Mutex
	queues map[uint32]*fakeQueue
	keys   map[uint32][]byte
	last   uint32
	lock   int // bytes that may be registered; 0: any
}

func newFabric() *fabric {
	return &fabric{queues: map[uint32]*fakeQueue{}, keys: map[uint32][]byte{}}
}

// limit says how many bytes may be registered at once from now on.
func (f *fabric) limit(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lock = n
}

func (f *fabric) number() uint32 {
	f.last += 7
	return f.last
}

// fakeDevice is a card on a fabric.
type fakeDevice struct {
	fabric *fabric
	name   string
	// spoil, if set, may change what a queue is about to do, or fail it.
	spoil func(q *fakeQueue, w *Work) error
	// register and release, if set, are called before memory is given to the card, and back.
	register, release func(mem []byte)
	down, dead        atomic.Bool

	mu     sync.Mutex
	queues map[*fakeQueue]bool
}

func (f *fabric) device(name string) *fakeDevice {
	return &fakeDevice{fabric: f, name: name, queues: map[*fakeQueue]bool{}}
}

func (d *fakeDevice) Name() string { return d.name }

func (d *fakeDevice) Register(mem []byte) (Region, error) {
	if d.register != nil {
		d.register(mem)
	}
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock > 0 && len(mem) > f.lock {
		return Region{}, fmt.Errorf("this process may lock %d bytes", f.lock)
	}
	key := f.number()
	f.keys[key] = mem
	return Region{Addr: addrOf(mem), LKey: key, RKey: key, Release: func() error {
		if d.release != nil {
			d.release(mem)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.keys, key)
		return nil
	}}, nil
}

func addrOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// at returns registered memory.
func (f *fabric) at(key uint32, addr uint64, n uint32) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mem, ok := f.keys[key]
	if !ok || addr < addrOf(mem) || addr+uint64(n) > addrOf(mem)+uint64(len(mem)) {
		return nil, fmt.Errorf("key %d does not open %d bytes at %#x", key, n, addr)
	}
	return mem[addr-addrOf(mem):][:n], nil
}

type fakeQueue struct {
	device *fakeDevice
	qpn    uint32
	depth  int

	mu        sync.Mutex
	cond      *sync.Cond // works, or closed
	remote    uint32
	broken    error
	silent    bool // swallows what comes in
	closed    bool
	receives  int
	most      int // receives that were ever used without being posted again
	posted    int
	works     []Work
	dones     []Done
	wake      chan struct{}
	ended     chan struct{}
	connected bool
}

// address is every card's: a queue pair is found by its number.
func address() verbs.GID {
	return verbs.GID{Index: 1, Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Type: verbs.GIDRoCEv2}
}

func (d *fakeDevice) Rail() (rail.Rail, error) {
	if d.dead.Load() {
		return rail.Rail{}, errors.New("input/output error")
	}
	r := rail.Rail{Device: "fake0", Port: 1, Link: verbs.LinkEthernet, MTU: 3}
	if !d.down.Load() {
		r.Addresses = []verbs.GID{address()}
	}
	return r, nil
}

func (d *fakeDevice) Queue(send, receive int, source Source) (Queue, error) {
	if source.GID != address() || !source.Global {
		return nil, fmt.Errorf("source %+v", source)
	}
	q := &fakeQueue{device: d, depth: send, posted: receive, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	q.cond = sync.NewCond(&q.mu)
	d.fabric.mu.Lock()
	q.qpn = d.fabric.number()
	d.fabric.queues[q.qpn] = q
	d.fabric.mu.Unlock()
	d.mu.Lock()
	d.queues[q] = true
	d.mu.Unlock()
	go q.run()
	return q, nil
}

func (q *fakeQueue) Local() flow.Endpoint {
	return flow.Endpoint{Ethernet: true, Routed: true, MTU: 3, GID: [16]byte{15: 1}, QPN: q.qpn, PSN: q.qpn + 1}
}

func (q *fakeQueue) Connect(remote flow.Endpoint) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remote, q.connected = remote.QPN, true
	return nil
}

func (q *fakeQueue) Receive(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.receives += n; q.receives > q.posted {
		return fmt.Errorf("%d receives posted, the queue pair has %d", q.receives, q.posted)
	}
	return nil
}

func (q *fakeQueue) Post(works ...Work) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed || !q.connected:
		return errors.New("not connected")
	case len(q.works)+len(works) > q.depth:
		return errors.New("the queue pair is full")
	}
	q.works = append(q.works, works...)
	q.cond.Signal()
	return nil
}

func (q *fakeQueue) stir() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *fakeQueue) Wake() { q.stir() }

func (q *fakeQueue) Wait(until time.Time, out []Done) (int, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for first := true; ; first = false {
		q.mu.Lock()
		n := copy(out, q.dones)
		q.dones = q.dones[n:]
		q.mu.Unlock()
		if n > 0 || !first {
			return n, nil
		}
		select {
		case <-q.wake:
		case <-timer.C:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

var errFlushed = errors.New("flushed")

func (q *fakeQueue) Fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(errFlushed)
	return nil
}

func (q *fakeQueue) failLocked(err error) {
	if q.broken != nil || q.closed {
		return
	}
	q.broken = err
	q.dones = append(q.dones, Done{Err: err})
	q.cond.Broadcast()
	q.stir()
}

func (q *fakeQueue) Close() error {
	q.mu.Lock()
	already := q.closed
	q.closed = true
	q.cond.Broadcast()
	q.mu.Unlock()
	if already {
		return nil
	}
	<-q.ended
	f := q.device.fabric
	f.mu.Lock()
	delete(f.queues, q.qpn)
	f.mu.Unlock()
	q.device.mu.Lock()
	delete(q.device.queues, q)
	q.device.mu.Unlock()
	return nil
}

// run does the works, one after the other.
func (q *fakeQueue) run() {
	defer close(q.ended)
	for {
		q.mu.Lock()
		for !q.closed && (len(q.works) == 0 || q.broken != nil) {
			q.cond.Wait()
		}
		if q.closed {
			q.mu.Unlock()
			return
		}
		w, remote := q.works[0], q.remote
		q.mu.Unlock()
		err := q.do(w, remote)
		q.mu.Lock()
		switch {
		case err != nil:
			q.failLocked(err)
		case q.broken == nil:
			q.works = q.works[1:]
			q.dones = append(q.dones, Done{ID: w.ID})
			q.stir()
		}
		q.mu.Unlock()
	}
}

// errNoAnswer is what a card says that has tried often enough.
var errNoAnswer = errors.New("no answer from the peer's card")

// do writes to the peer.
func (q *fakeQueue) do(w Work, remote uint32) error {
	if q.device.spoil != nil {
		if err := q.device.spoil(q, &w); err != nil {
			return err
		}
	}
	f := q.device.fabric
	f.mu.Lock()
	peer := f.queues[remote]
	f.mu.Unlock()
	if peer == nil {
		return errNoAnswer
	}
	var from, to []byte
	if w.Bytes > 0 {
		var err error
		if from, err = f.at(w.LKey, w.Local, w.Bytes); err != nil {
			return err
		}
		if to, err = f.at(w.RKey, w.Addr, w.Bytes); err != nil {
			return err
		}
	}
	peer.mu.Lock()
	defer peer.mu.Unlock()
	switch {
	case peer.closed || peer.broken != nil || peer.silent || !peer.connected:
		return errNoAnswer
	case w.Imm != 0 && peer.receives == 0:
		return errors.New("the peer has posted no receive")
	}
	copy(to, from)
	if w.Imm != 0 {
		peer.receives--
		peer.most = max(peer.most, peer.posted-peer.receives)
		peer.dones = append(peer.dones, Done{Receive: true, Imm: w.Imm, Bytes: w.Bytes})
		peer.stir()
	}
	return nil
}

// silence makes a queue pair swallow what comes in.
func (q *fakeQueue) silence() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.silent = true
}

func TestFakeCard(t *testing.T) {
	f := newFabric()
	a, b := f.device("a"), f.device("b")
	one, _ := a.Queue(4, 4, Source{address(), true})
	two, _ := b.Queue(4, 4, Source{address(), true})
	for _, err := range []error{one.Connect(two.Local()), two.Connect(one.Local()), two.Receive(1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := one.Post(Work{ID: 1, Imm: 5}, Work{ID: 2, Imm: 6}); err != nil {
		t.Fatal(err)
	}
	var d [4]Done
	if n, err := two.Wait(time.Now().Add(time.Minute), d[:]); n != 1 || err != nil || d[0].Imm != 5 {
		t.Errorf("got %d %v %+v", n, err, d)
	}
	for got := 0; got < 2; {
		n, err := one.Wait(time.Now().Add(time.Minute), d[:])
		if err != nil {
			t.Fatal(err)
		}
		if got += n; got == 2 && d[n-1].Err == nil {
			t.Error("a write for which no receive was posted went through")
		}
	}
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Error(err)
	}
}
