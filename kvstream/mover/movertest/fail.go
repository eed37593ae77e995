package movertest

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// retry sends a piece until it is accepted, as a caller that wants a peer back does.
func retry(t *testing.T, m mover.Mover, to kevlard.NodeID, n note, size int) {
	t.Helper()
	until(t, "a piece is accepted again", func() bool { return send(t.Context(), m, to, n, size) == nil })
}

// testDiesMidPiece cuts the way after the receiver has seen the header of a piece
// that does not fit into what the network holds.
func testDiesMidPiece(t *testing.T, net Network) {
	a, b := newSink(t), newSink(t)
	var once sync.Once
	b.buffer = func(_ kevlard.NodeID, n note) bool {
		if n.seq == 1 {
			once.Do(func() { net.Cut("b") })
		}
		return true
	}
	m := net.Start("a", a)
	net.Start("b", b)
	if err := send(t.Context(), m, "b", note{5, 0}, 100); err != nil {
		t.Fatal(err)
	}
	err := send(t.Context(), m, "b", note{5, 1}, mover.MaxBody)
	if err != nil && !errors.Is(err, mover.ErrBroken) {
		t.Errorf("the piece under way: %v", err)
	}
	until(t, "the buffer comes back", func() bool { return b.account().aborted == 1 })
	until(t, "the sender is told", func() bool { return a.account().lost > 0 })
	retry(t, m, "b", note{5, 2}, 50_000)
	until(t, "it goes on", func() bool { return b.account().received == 2 })
	if got := b.account(); got.gaps != 1 || got.out != 0 {
		t.Errorf("receiver: %v", got)
	}
}

// testOrderOverCuts: whatever is lost, nothing overtakes and nothing comes twice.
func testOrderOverCuts(t *testing.T, net Network) {
	b := newSink(t)
	m := net.Start("a", newSink(t))
	net.Start("b", b)
	var all sync.WaitGroup
	var left atomic.Int64
	const lanes, pieces = 4, 40
	left.Store(lanes)
	for lane := range mover.Lane(lanes) {
		all.Go(func() {
			defer left.Add(-1)
			for seq := range uint64(pieces) {
				retry(t, m, "b", note{lane, seq}, 1000+int(seq)*3000)
			}
		})
	}
	for cuts := 0; left.Load() > 0 && cuts < 6; cuts++ {
		before := b.account().received
		until(t, "pieces arrive between cuts", func() bool { return left.Load() == 0 || b.account().received > before+10 })
		net.Cut("b")
	}
	all.Wait()
	// What was accepted for a connection that is already cut is lost, so each lane goes on
	// until something of it arrives.
	for lane := range mover.Lane(lanes) {
		seq := uint64(pieces)
		until(t, "the lane goes on", func() bool {
			retry(t, m, "b", note{lane, seq}, 10)
			seq++
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.last["a"][lane] > pieces
		})
	}
}

// testBlackhole: a peer that takes nothing holds its senders only so long, and those
// to others not at all.
func testBlackhole(t *testing.T, net Network) {
	a, c := newSink(t), newSink(t)
	m := net.Start("a", a)
	net.Start("b", newSink(t))
	net.Start("c", c)
	if err := send(t.Context(), m, "b", note{1, 0}, 1000); err != nil {
		t.Fatal(err)
	}
	net.Freeze("b")
	ended := make(chan error, 1)
	go func() {
		var err error
		for seq := uint64(1); err == nil; seq++ {
			err = send(t.Context(), m, "b", note{1, seq}, 1<<20)
		}
		ended <- err
	}()
	stream(t, m, "c", 1, 100, 100_000)
	until(t, "the other peer is served", func() bool { return c.account().received == 100 })
	select {
	case err := <-ended:
		if !errors.Is(err, mover.ErrBroken) && !errors.Is(err, mover.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
	case <-time.After(deadline):
		t.Fatalf("a send to a blackholed peer has not ended after %v", deadline)
	}
	until(t, "the sender is told", func() bool { return a.account().lost > 0 })
}

// blocked returns a handler that stops at the first body until open is called.
func blocked(t *testing.T) (s *sink, reached <-chan struct{}, open func()) {
	s = newSink(t)
	here, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.buffer = func(kevlard.NodeID, note) bool {
		once.Do(func() { close(here) })
		<-gate
		return true
	}
	open = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	return s, here, open
}

// testCancelWaiting: a send that has not begun can be taken back, and costs nothing.
func testCancelWaiting(t *testing.T, net Network) {
	b, reached, open := blocked(t)
	a := newSink(t)
	m := net.Start("a", a)
	net.Start("b", b)
	first := make(chan error, 1)
	go func() { first <- send(t.Context(), m, "b", note{0, 0}, mover.MaxBody) }()
	<-reached
	gone, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the session is closed")
	const more = 20
	begun, ended := make(chan struct{}, more), make(chan error, more)
	for range more {
		go func() {
			begun <- struct{}{}
			ended <- send(gone, m, "b", note{0, 1}, 100_000)
		}()
	}
	for range more {
		<-begun
	}
	cancel(why) // some wait behind the first piece, some have not come so far
	for range more {
		if err := <-ended; !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
	}
	open()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), m, "b", note{0, 1}, 1000); err != nil {
		t.Fatal(err)
	}
	until(t, "both arrive", func() bool { return b.account().received == 2 })
	if a.account().lost != 0 {
		t.Errorf("sender: %v", a.account())
	}
}

// testCancelMidPiece: a send under way can be given up, for the price of the
// connection.
func testCancelMidPiece(t *testing.T, net Network) {
	b, reached, open := blocked(t)
	m := net.Start("a", newSink(t))
	net.Start("b", b)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the peer is given up")
	ended := make(chan error, 1)
	go func() { ended <- send(ctx, m, "b", note{0, 0}, mover.MaxBody) }()
	<-reached
	cancel(why)
	select {
	case err := <-ended:
		if !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
	case <-time.After(deadline):
		t.Fatal("the send has not ended")
	}
	open()
	until(t, "the buffer comes back", func() bool { return b.account().aborted == 1 })
	retry(t, m, "b", note{0, 1}, 100_000)
	until(t, "it goes on", func() bool { return b.account().received == 1 })
}

// testSlowReceiver: a receiver that waits makes senders wait, with bounded memory.
func testSlowReceiver(t *testing.T, net Network) {
	b, reached, open := blocked(t)
	m := net.Start("a", newSink(t))
	net.Start("b", b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var accepted, ended atomic.Int64
	var all sync.WaitGroup
	for lane := range mover.Lane(4) {
		all.Go(func() {
			defer ended.Add(1)
			for seq := uint64(0); send(ctx, m, "b", note{lane, seq}, 20_000) == nil; seq++ {
				accepted.Add(1)
			}
		})
	}
	<-reached
	// When nothing more was accepted for a while, the senders wait.
	last, since := int64(-1), time.Now()
	until(t, "the senders wait", func() bool {
		if n := accepted.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
	if ended.Load() != 0 {
		t.Errorf("%d senders got an error instead of waiting", ended.Load())
	}
	// Most of it lies in the kernels' windows: up to some 10 MiB at each end of each hop.
	if mib := last * 20_000 >> 20; mib > 256 {
		t.Errorf("%d MiB were accepted for a receiver that takes nothing", mib)
	}
	cancel()
	all.Wait()
	open()
}

// testCloseSends: what was accepted before Close arrives when the peer is well.
func testCloseSends(t *testing.T, net Network) {
	b := newSink(t)
	m := net.Start("a", newSink(t))
	net.Start("b", b)
	stream(t, m, "b", 1, 200, 50_000)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "all pieces arrive", func() bool { return b.account().received == 200 })
	if got := b.account(); got.gaps != 0 || got.aborted != 0 {
		t.Errorf("receiver: %v", got)
	}
	if err := m.Send(t.Context(), "b", 1, nil); !errors.Is(err, mover.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
}

func testCloseWhileSending(t *testing.T, net Network) {
	for _, who := range []string{"sender", "receiver"} {
		t.Run(who, func(t *testing.T) {
			a, b := newSink(t), newSink(t)
			nameA, nameB := kevlard.NodeID("a-"+who), kevlard.NodeID("b-"+who)
			from := net.Start(nameA, a)
			to := net.Start(nameB, b)
			var all sync.WaitGroup
			for lane := range mover.Lane(6) {
				all.Go(func() {
					for seq := uint64(0); ; seq++ {
						if err := send(t.Context(), from, nameB, note{lane, seq}, 1+int(lane)*400_000); err != nil {
							if !errors.Is(err, mover.ErrClosed) && !errors.Is(err, mover.ErrBroken) && !errors.Is(err, mover.ErrUnreachable) {
								t.Errorf("lane %d: %v", lane, err)
							}
							return
						}
					}
				})
			}
			until(t, "pieces arrive", func() bool { return b.account().received > 20 })
			closing := from
			if who == "receiver" {
				closing = to
			}
			if err := closing.Close(); err != nil {
				t.Error(err)
			}
			all.Wait()
			until(t, "all buffers come back", func() bool { return b.account().out == 0 })
			if err := errors.Join(from.Close(), to.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// sockets counts this process's, -1 where the system does not tell.
func sockets(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// testLeaks: after cuts, cancels and Close all is as before.
func testLeaks(t *testing.T, newNetwork func(*testing.T) Network) {
	goroutines, socketsBefore := runtime.NumGoroutine(), sockets(t)
	t.Run("round", func(t *testing.T) {
		net := newNetwork(t)
		b := newSink(t)
		m := net.Start("a", newSink(t))
		to := net.Start("b", b)
		for seq := range uint64(4) {
			for lane := range mover.Lane(4) {
				retry(t, m, "b", note{lane, seq}, 200_000)
			}
			net.Cut("b")
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			send(ctx, m, "b", note{9, seq}, mover.MaxBody) // whatever comes of it
			cancel()
		}
		if err := errors.Join(m.Close(), to.Close()); err != nil {
			t.Error(err)
		}
		if n := b.account().out; n != 0 {
			t.Errorf("%d buffers did not come back", n)
		}
	})
	until(t, "goroutines and sockets are gone", func() bool {
		return runtime.NumGoroutine() <= goroutines && sockets(t) <= socketsBefore
	})
}
