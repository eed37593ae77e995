package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// child returns a command that runs one test of this binary again, as another process
// that is told by RDMA_CHILD what it is for.
func child(t testing.TB, test, what string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), "RDMA_CHILD="+what)
	return cmd
}

func childFor() string { return os.Getenv("RDMA_CHILD") }

// exchange tells the peer our address and returns its. It reads no byte too many: a
// signal may follow at once.
func exchange(t testing.TB, c net.Conn, own address) (peer address) {
	t.Helper()
	text, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)); err != nil {
		t.Fatal(err)
	}
	var n [2]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		t.Fatal(err)
	}
	text = make([]byte, binary.BigEndian.Uint16(n[:]))
	if _, err := io.ReadFull(c, text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &peer); err != nil {
		t.Fatal(err)
	}
	return peer
}

// signal and await keep both sides in step.
func signal(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
}

func await(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// serve takes messages of n bytes and checks each before it lets the next one come.
func serve(t testing.TB, l *Library, device string, c net.Conn, messages, n int) {
	t.Helper()
	ctx := patient(t)
	e := newEnd(t, l, device, n)
	e.connect(t, exchange(t, c, e.address))
	receive(t, e, Work{})
	signal(t, c)
	want := make([]byte, n)
	for i := range messages {
		if d := ends(t, ctx, e.receives, StatusSuccess); d.Immediate != uint32(i) || d.Bytes != uint32(n) {
			t.Fatalf("message %d: %+v", i, d)
		}
		fill(want, byte(i))
		if !bytes.Equal(want, e.slab.Slab()) {
			t.Fatalf("message %d has other bytes", i)
		}
		receive(t, e, Work{})
		signal(t, c)
	}
}

// deliver sends what serve takes.
func deliver(t testing.TB, l *Library, device string, c net.Conn, messages, n int) {
	t.Helper()
	ctx := patient(t)
	e := newEnd(t, l, device, n)
	peer := exchange(t, c, e.address)
	e.connect(t, peer)
	for i := range messages {
		await(t, c)
		fill(e.slab.Slab(), byte(i))
		w := e.write(uint64(i), peer, 0, n)
		w.Op, w.Immediate = OpWriteImmediate, uint32(i)
		send(t, e, w)
		if d := ends(t, ctx, e.sends, StatusSuccess); d.ID != uint64(i) {
			t.Fatalf("message %d: %+v", i, d)
		}
	}
	await(t, c)
}

// TestTwoProcesses: the peer is another process of this host.
func TestTwoProcesses(t *testing.T) {
	l, devices := loaded(t)
	const messages, n = 50, 64 << 10
	if addr := childFor(); addr != "" {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		deliver(t, l, devices[0].Name, c, messages, n)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cmd := child(t, t.Name(), listener.Addr().String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		listener.Close() // so that Accept does not wait for the dead
		ended <- err
	}()
	c, err := listener.Accept()
	if err != nil {
		t.Fatalf("%v: %v\n%s", err, <-ended, out.String())
	}
	defer c.Close()
	serve(t, l, devices[0].Name, c, messages, n)
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

// TestK59MemlockMessage is the other half of case K59: a user that may lock 64 KiB is
// told so, and what to do.
func TestK59MemlockMessage(t *testing.T) {
	l, devices := loaded(t)
	if childFor() == "" {
		if out, err := child(t, t.Name(), "nobody").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const limit = 64 << 10
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Setgid(65534), unix.Setuid(65534)); err != nil {
		t.Fatal(err)
	}
	c := opened(t, l, devices[0].Name)
	small, err := c.NewSlab(16<<10, PeerWrites)
	if err != nil {
		t.Fatalf("within the limit: %v", err)
	}
	closedAtEnd(t, small.Close)
	_, err = c.NewSlab(1<<20, PeerWrites)
	var memlock *MemlockError
	if !errors.As(err, &memlock) || memlock.Limit != limit || memlock.Bytes != 1<<20 || !strings.Contains(err.Error(), "set LimitMEMLOCK=infinity in its unit") {
		t.Errorf("over the limit: %v", err)
	}
}

// TestK60Kills is case K60: processes that hold regions, queues and queue pairs are
// killed, and the card must not run out of keys.
func TestK60Kills(t *testing.T) {
	l, devices := loaded(t)
	device := devices[0].Name
	const regions, bytesEach = 64, 64 << 10
	if childFor() != "" {
		c := opened(t, l, device)
		q, err := c.NewQueue(128)
		if err != nil {
			t.Fatal(err)
		}
		for range regions {
			if _, err := c.NewSlab(bytesEach, PeerWrites); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			if _, err := c.NewQueuePair(PairConfig{Port: 1, Sends: q, Receives: q, SendDepth: 64, ReceiveDepth: 64}); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("holds it all")
		select {} // until it is killed
	}
	kills := 100
	if os.Getenv("RDMA_SMOKE") != "" {
		kills = 10
	}
	for i := range kills {
		holdAndKill(t, i)
	}
	c := opened(t, l, device)
	for range regions {
		r, err := c.NewSlab(bytesEach, PeerWrites)
		if err != nil {
			t.Fatalf("after %d kills: %v", kills, err)
		}
		closedAtEnd(t, r.Close)
	}
	a, b := connected(t, l, device, 4096)
	ctx := patient(t)
	send(t, a, a.write(1, b.address, 0, 4096))
	ends(t, ctx, a.sends, StatusSuccess)
}

// holdAndKill starts a process that takes what it can hold, and kills it then.
func holdAndKill(t *testing.T, i int) {
	t.Helper()
	cmd := child(t, t.Name(), "hold")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	buf := make([]byte, 512)
	for !strings.Contains(said.String(), "holds it all") {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if !strings.Contains(said.String(), "holds it all") {
		t.Fatalf("process %d: %v: %s", i, cmd.Wait(), said.String())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var status *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &status) || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("process %d ended with %v", i, err)
	}
}

// TestWakes checks that one goroutine that waits does not hold the others up: Go's
// poller waits, and no thread.
func TestWakes(t *testing.T) {
	l, devices := loaded(t)
	ctx := patient(t)
	c := opened(t, l, devices[0].Name)
	ctx, cancel := context.WithCancel(ctx)
	const waiters = 200
	done := make(chan error, waiters)
	for range waiters {
		q, err := c.NewQueue(4)
		if err != nil {
			t.Fatal(err)
		}
		closedAtEnd(t, q.Close)
		go func() {
			_, err := q.Wait(ctx, make([]Completion, 1))
			done <- err
		}()
	}
	a, b := connected(t, l, devices[0].Name, 4096)
	send(t, a, a.write(1, b.address, 0, 64))
	ends(t, ctx, a.sends, StatusSuccess)
	cancel()
	for range waiters {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}
