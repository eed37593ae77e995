package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxOnWire is how many bytes are under way in one direction of a wire; more are lost.
	maxOnWire  = 64 << 20
	maxFrames  = 1 << 16
	frameBytes = 10 + 18 + 64<<10 // with the kernel's header, the link's, and of segments that are not cut yet
)

// longWire carries frames one way, each a time after it came in.
type longWire struct {
	from, to *os.File
	takes    time.Duration
	frames   chan onWire
	bytes    atomic.Int64 // under way
	lost     atomic.Int64 // frames
}

type onWire struct {
	due   time.Time
	frame []byte
}

// joinEnds makes a cable between two interfaces of h through which every frame takes so
// long, both ways. It lasts as long as the test.
func (h host) joinEnds(t *testing.T, a, b string, takes time.Duration) {
	t.Helper()
	x, y := h.rawSocket(t, a), h.rawSocket(t, b)
	var done sync.WaitGroup
	wires := []*longWire{{from: x, to: y, takes: takes}, {from: y, to: x, takes: takes}}
	for _, w := range wires {
		w.frames = make(chan onWire, maxFrames)
		done.Go(w.receive)
		done.Go(w.send)
	}
	t.Cleanup(func() {
		x.Close()
		y.Close()
		done.Wait()
		for _, w := range wires {
			if n := w.lost.Load(); n > 0 {
				t.Logf("the wire between %s and %s lost %d frames", a, b, n)
			}
		}
	})
}

// rawSocket returns a socket on which frames of an interface come and go with the kernel's
// notes on what hardware would do to them: checksums that are not computed, segments that
// are not cut.
func (h host) rawSocket(t *testing.T, name string) *os.File {
	t.Helper()
	var file *os.File
	err := h.inside(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		const every = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, maxOnWire),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, maxOnWire),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: i.Index}),
		)
		if file = os.NewFile(uintptr(fd), name); err != nil {
			file.Close()
		}
		return err
	})
	if err != nil {
		t.Fatalf("open %s of %s: %v", name, h, err)
	}
	return file
}

// receive puts frames on the wire until its end is closed.
func (w *longWire) receive() {
	defer close(w.frames)
	buf := make([]byte, frameBytes)
	for {
		n, err := w.from.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			continue // the interface was down for a moment
		}
		x := onWire{time.Now().Add(w.takes), append([]byte(nil), buf[:n]...)}
		if w.bytes.Load()+int64(n) > maxOnWire {
			w.lost.Add(1)
			continue
		}
		select {
		case w.frames <- x:
			w.bytes.Add(int64(n))
		default:
			w.lost.Add(1)
		}
	}
}

// send takes them off.
func (w *longWire) send() {
	for x := range w.frames {
		time.Sleep(time.Until(x.due))
		w.bytes.Add(-int64(len(x.frame)))
		if _, err := w.to.Write(x.frame); err != nil && !errors.Is(err, os.ErrClosed) {
			w.lost.Add(1)
		}
	}
}

// TestLongWire: what goes through the wire that other tests put between zones arrives as
// it was sent, and not earlier.
func TestLongWire(t *testing.T) {
	const takes = 40 * time.Millisecond
	a, b, w := newHost(t, "a"), newHost(t, "b"), newHost(t, "w")
	for i, h := range []host{a, b} {
		end := fmt.Sprintf("end%d", i)
		system(t, "ip", "-n", string(h), "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", string(w))
		system(t, "ip", "-n", string(w), "link", "set", end, "up")
		h.up(t, "eth0", fmt.Sprintf("10.77.0.%d/24", i+1))
	}
	w.joinEnds(t, "end0", "end1", takes)
	var l net.Listener
	if err := b.inside(func() (err error) {
		l, err = net.Listen("tcp", "10.77.0.2:7000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c) // what is missing, the other end misses
			c.Close()
		}
	}()
	c, err := a.dial(t.Context(), "tcp", "10.77.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	for _, n := range []int{1, len(want)} {
		began := time.Now()
		go func() { _, _ = c.Write(want[:n]) }()
		got := make([]byte, n)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*takes || string(got) != string(want[:n]) {
			t.Errorf("%d bytes were back after %v, right: %v", n, took, string(got) == string(want[:n]))
		} else {
			t.Logf("%d bytes were back after %v", n, took.Round(time.Millisecond))
		}
	}
}
