package verbs

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestDevices(t *testing.T) {
	l, devices := loaded(t)
	for _, d := range devices {
		if len(d.Ports) != 1 || d.MaxQueuePairs == 0 || d.MaxRegions == 0 || d.GUID == 0 {
			t.Errorf("%+v", d)
			continue
		}
		p := d.Ports[0]
		if p.Number != 1 || p.State != PortActive || p.Link != LinkEthernet || p.MTU.Bytes() != 4096 || len(p.GIDs) == 0 {
			t.Errorf("%s: %+v", d.Name, p)
		}
		// Both sources must say the same: older libraries leave it to sysfs.
		for _, g := range p.GIDs {
			other, err := gidAttributes(l.sysfs, d.Name, 1, GID{Index: g.Index, Addr: g.Addr})
			if err != nil || other != g {
				t.Errorf("%s: the library says %+v, the kernel %+v, %v", d.Name, g, other, err)
			}
		}
		if _, err := counters(l.sysfs, d.Name, 1); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Open("nosuch0"); !errors.Is(err, ErrUnknownDevice) {
		t.Errorf("opened what does not exist: %v", err)
	}
}

// TestWrite writes with every device: plain writes, the last with an immediate, which
// takes a receive without memory and tells how many bytes it wrote itself.
func TestWrite(t *testing.T) {
	l, devices := loaded(t)
	for _, d := range devices {
		t.Run(d.Name, func(t *testing.T) {
			ctx := patient(t)
			const n = 1 << 20
			a, b := connected(t, l, d.Name, n)
			for _, e := range []*end{a, b} {
				if s, err := e.pair.State(); s != PairReadyToSend || err != nil {
					t.Errorf("state %v, %v", s, err)
				}
			}
			fill(a.slab.Slab(), 3)
			receive(t, b, Work{ID: 77})
			first, last := a.write(1, b.address, 0, n/2), a.write(2, b.address, n/2, n/2)
			first.Flags = 0 // no completion of its own
			last.Op, last.Immediate = OpWriteImmediate, 0xdeadbeef
			send(t, a, first, last)
			if c := ends(t, ctx, b.receives, StatusSuccess); c.ID != 77 || c.Kind != ReceivedImmediate || !c.HasImmediate || c.Immediate != 0xdeadbeef || c.Bytes != n/2 || c.QP != b.pair.Number {
				t.Errorf("received %+v", c)
			}
			if c := ends(t, ctx, a.sends, StatusSuccess); c.ID != 2 || c.Kind != Written || c.HasImmediate || c.QP != a.pair.Number {
				t.Errorf("written %+v", c)
			}
			if !bytes.Equal(a.slab.Slab(), b.slab.Slab()) {
				t.Error("other bytes arrived")
			}

			// A message fills a receive. It is inline: its memory may change at once.
			copy(a.slab.Slab(), "how are you?")
			receive(t, b, Work{ID: 78, Local: b.slab.Addr, Bytes: 64, LocalKey: b.slab.LocalKey})
			if a.pair.Inline < 12 {
				t.Fatalf("%d bytes inline", a.pair.Inline)
			}
			send(t, a, Work{ID: 3, Local: a.slab.Addr, Bytes: 12, Op: OpSend, Flags: Signaled | Inline})
			clear(a.slab.Slab()[:12])
			if c := ends(t, ctx, b.receives, StatusSuccess); c.Kind != Received || c.HasImmediate || string(b.slab.Slab()[:c.Bytes]) != "how are you?" {
				t.Errorf("received %+v: %q", c, b.slab.Slab()[:12])
			}
			ends(t, ctx, a.sends, StatusSuccess)
		})
	}
}

// TestBatch posts and polls as many as a call may have, in order, and learns that a
// queue pair is full.
func TestBatch(t *testing.T) {
	l, devices := loaded(t)
	ctx := patient(t)
	a, b := connected(t, l, devices[0].Name, 1<<16)
	var w []Work
	for i := range maxBatch {
		x := a.write(uint64(i), b.address, i*64, 64)
		x.Op, x.Immediate = OpWriteImmediate, uint32(i)
		w = append(w, x)
	}
	receive(t, b, make([]Work, maxBatch)...)
	send(t, a, w...)
	for i := 0; i < maxBatch; {
		var out [maxBatch]Completion
		n, err := b.receives.Wait(ctx, out[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range out[:n] {
			if c.Err() != nil || c.Immediate != uint32(i) {
				t.Fatalf("%d: %+v", i, c)
			}
			i++
		}
	}
	if _, err := a.pair.PostSend(make([]Work, maxBatch+1)); err == nil {
		t.Error("too large a batch was posted")
	}
	if n, err := a.pair.PostSend(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	posted := 0
	for {
		n, err := b.pair.PostReceive(make([]Work, maxBatch))
		posted += n
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || posted > 1<<20 {
			t.Fatalf("%d posted: %v", posted, err)
		}
	}
	if posted < 128 {
		t.Errorf("full with %d, made for 128", posted)
	}
}

// TestWait checks how waiting ends: by the context, by Close from another goroutine,
// and that neither spoils the next.
func TestWait(t *testing.T) {
	l, devices := loaded(t)
	c := opened(t, l, devices[0].Name)
	q, err := c.NewQueue(16)
	if err != nil {
		t.Fatal(err)
	}
	var out [1]Completion
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		go cancel(why)
		if n, err := q.Wait(ctx, out[:]); n != 0 || !errors.Is(err, why) {
			t.Fatalf("%d, %v", n, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if _, err := q.Wait(ctx, out[:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Poll(out[:]); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	// Close meets a waiter anywhere on its way: often, so that it meets it everywhere.
	done := make(chan error)
	for range 200 {
		q, err := c.NewQueue(16)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := q.Wait(context.Background(), make([]Completion, 1))
			done <- err
		}()
		runtime.Gosched()
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
	for range 50 {
		c, err := l.Open(devices[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := c.NextEvent(context.Background())
			done <- err
		}()
		runtime.Gosched()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

// TestErrors checks that what goes wrong is told by its status, and that the pair is
// failed and what waits is flushed.
func TestErrors(t *testing.T) {
	l, devices := loaded(t)
	device := devices[0].Name
	t.Run("wrong key at the peer", func(t *testing.T) {
		ctx := patient(t)
		a, b := connected(t, l, device, 4096)
		bad := b.address
		bad.Key ^= 0x5555
		send(t, a, a.write(1, bad, 0, 64), a.write(2, b.address, 0, 64))
		if c := ends(t, ctx, a.sends, StatusRemoteAccess); c.ID != 1 {
			t.Errorf("%+v", c)
		}
		ends(t, ctx, a.sends, StatusFlushed)
		if s, err := a.pair.State(); s != PairFailed || err != nil {
			t.Errorf("state %v, %v", s, err)
		}
	})
	t.Run("beyond the peer's region", func(t *testing.T) {
		ctx := patient(t)
		a, b := connected(t, l, device, 4096)
		to := b.address
		to.Memory += 4096
		send(t, a, a.write(1, to, 0, 64))
		ends(t, ctx, a.sends, StatusRemoteAccess)
	})
	t.Run("a region that was closed", func(t *testing.T) {
		ctx := patient(t)
		a, b := connected(t, l, device, 4096)
		if err := b.slab.Close(); err != nil {
			t.Fatal(err)
		}
		send(t, a, a.write(1, b.address, 0, 64))
		ends(t, ctx, a.sends, StatusRemoteAccess)
	})
	t.Run("a region that is not for peers", func(t *testing.T) {
		ctx := patient(t)
		a, b := connected(t, l, device, 4096)
		own, err := b.c.NewSlab(4096, LocalOnly)
		if err != nil {
			t.Fatal(err)
		}
		closedAtEnd(t, own.Close)
		to := b.address
		to.Memory, to.Key = own.Addr, own.RemoteKey
		send(t, a, a.write(1, to, 0, 64))
		ends(t, ctx, a.sends, StatusRemoteAccess)
	})
	t.Run("no queue pair there", func(t *testing.T) {
		ctx := patient(t)
		a := newEnd(t, l, device, 4096)
		to := a.address
		to.QP = 0xabcdef
		a.connectBriefly(t, to)
		send(t, a, a.write(1, to, 0, 64))
		ends(t, ctx, a.sends, StatusRetryExceeded)
	})
	t.Run("the peer was reset", func(t *testing.T) {
		ctx := patient(t)
		a, b := newEnd(t, l, device, 4096), newEnd(t, l, device, 4096)
		a.connectBriefly(t, b.address)
		b.connect(t, a.address)
		if err := b.pair.Reset(); err != nil {
			t.Fatal(err)
		}
		send(t, a, a.write(1, b.address, 0, 64))
		ends(t, ctx, a.sends, StatusRetryExceeded)
	})
	t.Run("no receive there", func(t *testing.T) {
		ctx := patient(t)
		a, b := connected(t, l, device, 4096)
		w := a.write(1, b.address, 0, 64)
		w.Op = OpWriteImmediate
		send(t, a, w)
		ends(t, ctx, a.sends, StatusNotReady)
	})
	t.Run("failed here", func(t *testing.T) {
		ctx := patient(t)
		a, _ := connected(t, l, device, 4096)
		receive(t, a, Work{ID: 5}, Work{ID: 6})
		if err := a.pair.Fail(); err != nil {
			t.Fatal(err)
		}
		for id := uint64(5); id <= 6; id++ {
			if c := ends(t, ctx, a.receives, StatusFlushed); c.ID != id {
				t.Errorf("%+v", c)
			}
		}
	})
	t.Run("paths that wait for ever", func(t *testing.T) {
		a := newEnd(t, l, device, 4096)
		for _, spoil := range []func(*Path){
			func(p *Path) { p.Retries = 7 }, func(p *Path) { p.Retries = 0 }, func(p *Path) { p.NotReadyRetries = 7 }, func(p *Path) { p.Timeout = 0 },
			func(p *Path) { p.MTU = 0 }, func(p *Path) { p.Global = false }, func(p *Path) { p.NotReadyTimer = 32 },
		} {
			p := a.path(a.address)
			spoil(&p)
			if err := a.pair.Connect(p); err == nil {
				t.Errorf("taken: %+v", p)
			}
		}
		a.connect(t, a.address)
	})
	t.Run("closed", func(t *testing.T) {
		a := newEnd(t, l, device, 4096)
		if err := a.sends.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a queue was closed under its queue pair: %v", err)
		}
		if err := a.pair.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.pair.PostSend([]Work{{}}); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		if err := a.pair.Fail(); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

// TestRegister registers many regions at once, memory that is not there, and looks for
// the ways to a GPU, of which Soft-RoCE has none.
func TestRegister(t *testing.T) {
	l, devices := loaded(t)
	c := opened(t, l, devices[0].Name)
	var all []*Region
	keys := map[uint32]bool{}
	for range 1000 {
		r, err := c.NewSlab(16<<10, PeerWrites)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		keys[r.RemoteKey] = true
	}
	if len(keys) != len(all) {
		t.Errorf("%d keys for %d regions", len(keys), len(all))
	}
	if err := c.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("the device was closed under its regions: %v", err)
	}
	for _, r := range all {
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Fatal(err)
		}
		if r.Slab() != nil {
			t.Error("a closed region has memory")
		}
	}
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Register(mem[4096:], PeerWrites)
	if err != nil || r.Bytes != 4096 || r.Slab() != nil || r.Addr != uint64(uintptr(unsafe.Pointer(&mem[4096]))) {
		t.Errorf("%+v, %v", r, err)
	}
	// As good as unmapped, and nothing else can come to lie there.
	if err := errors.Join(r.Close(), unix.Mprotect(mem, unix.PROT_NONE)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(mem, PeerWrites); !errors.Is(err, syscall.EFAULT) || !strings.Contains(err.Error(), "not mapped") {
		t.Errorf("memory that cannot be touched: %v", err)
	}
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(nil, PeerWrites); err == nil {
		t.Error("nothing was registered")
	}
	g, err := c.ProbeGPUMemory()
	if err != nil || g.DMABuf.Works || g.PeerMemory.Works || g.Path() != PathStaging || g.DMABuf.Why != "the card's driver does not take dma-bufs" {
		t.Errorf("%+v, %v", g, err)
	}
}

// TestFabricGIDs asks for the addresses of this host, wherever it runs.
func TestFabricGIDs(t *testing.T) {
	hw := net.HardwareAddr(slices.Concat([]byte{0x80, 0, 0, 0x48}, make([]byte, 16)))
	copy(hw[4:], []byte{0xfe, 0x80, 15: 9})
	if g, ok := portGID(hw); !ok || g.String() != "fe80::9" {
		t.Errorf("%v, %v", g, ok)
	}
	if g, ok := portGID(hw[:6]); ok {
		t.Errorf("%v of an Ethernet address", g)
	}
}
