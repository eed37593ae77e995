package conns

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// conn is a connection that does nothing until it is ended.
type conn struct {
	once   sync.Once
	ended  chan struct{}
	gone   chan struct{}
	broken error // set before ended is closed
}

func newConn() *conn                  { return &conn{ended: make(chan struct{}), gone: make(chan struct{})} }
func (c *conn) Run()                  { <-c.ended; close(c.gone) }
func (c *conn) Ready() error          { return nil }
func (c *conn) Gone() <-chan struct{} { return c.gone }
func (c *conn) Broke() error          { return c.broken }
func (c *conn) End(error)             { c.once.Do(func() { close(c.ended) }) }
func (c *conn) Fail(err error) {
	c.once.Do(func() {
		c.broken = err
		close(c.ended)
	})
}

func (c *conn) Open() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// newSet returns a set whose dials end as dial says.
func newSet(t *testing.T, dial func(slot int) (*conn, error)) *Set[*conn] {
	s := New(Config[*conn]{
		Options: Options{Conns: 2}.WithDefaults(1), Name: "test", MaxGuests: 2, Counts: &Counts{},
		Known: func(n kevlard.NodeID) bool { return n == "b" },
		Dial:  func(_ kevlard.NodeID, slot int) (*conn, error) { return dial(slot) },
	})
	t.Cleanup(func() {
		_ = s.Close(func() error { return nil }, func() error { return nil }) // TestClose looks at the error
	})
	return s
}

// TestSlots: a lane keeps to its slot; one that ends in peace is dialled again at once, one
// that breaks after a pause, with the reason.
func TestSlots(t *testing.T) {
	dials := 0
	s := newSet(t, func(int) (*conn, error) { dials++; return newConn(), nil })
	get := func(lane mover.Lane) *conn {
		t.Helper()
		c, err := s.Get(t.Context(), "b", lane)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get(0)
	if get(2) != first || get(1) == first || dials != 2 || s.Len() != 2 {
		t.Errorf("%d dials, %d connections", dials, s.Len())
	}
	first.End(nil)
	second := get(0)
	if second == first || dials != 3 {
		t.Errorf("%d dials after a connection has ended", dials)
	}
	why := errors.New("it broke")
	second.Fail(why)
	<-second.Gone()
	if _, err := s.Get(t.Context(), "b", 0); !errors.Is(err, mover.ErrUnreachable) || !errors.Is(err, why) {
		t.Errorf("after a break: %v", err)
	}
	if _, err := s.Get(t.Context(), "c", 0); !errors.Is(err, mover.ErrUnknownPeer) {
		t.Errorf("an unknown node: %v", err)
	}
}

// TestBackoff: pauses double to the most, a fifth of jitter either way, and begin anew
// after a steady connection.
func TestBackoff(t *testing.T) {
	var b backoff
	for want := BackoffMin; want < 4*backoffMax; want *= 2 {
		most := min(want, backoffMax)
		if got := b.next(); got < most*4/5 || got > most*6/5 {
			t.Errorf("waits %v, want about %v", got, most)
		}
	}
	b.reset(false)
	if got := b.next(); got < backoffMax*4/5 {
		t.Errorf("waits %v after a connection that did not last", got)
	}
	b.reset(true)
	if got := b.next(); got > BackoffMin*6/5 {
		t.Errorf("waits %v after a steady connection", got)
	}
}

// TestGuests: a newer connection of a slot replaces the one before when that is gone, an
// older one does not, and there is a bound.
func TestGuests(t *testing.T) {
	s := newSet(t, nil)
	guest := func(slot uint8, number uint64) (g *Guest, ended chan error) {
		ended = make(chan error, 2)
		return &Guest{Node: "a", Slot: slot, Number: number, End: func(err error) { ended <- err }}, ended
	}
	old, ended := guest(0, 5)
	if err := s.Register(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	older, _ := guest(0, 5)
	if err := s.Register(t.Context(), older); err == nil || !strings.Contains(err.Error(), "came after") {
		t.Errorf("the same number again: %v", err)
	}
	next, _ := guest(0, 6)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Register(ctx, next); err == nil || !strings.Contains(err.Error(), "handler is slow") {
		t.Errorf("before the old one is gone: %v", err)
	}
	<-ended
	go func() {
		<-ended
		s.Depart(old)
	}()
	if err := s.Register(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	other, _ := guest(1, 1)
	third, _ := guest(2, 1)
	if err := s.Register(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := s.Register(t.Context(), third); err == nil || !strings.Contains(err.Error(), "too many connections (2)") {
		t.Errorf("one too many: %v", err)
	}
}

// TestClose: calls that entered are waited for, later ones refused, and a second Close
// returns when the first does.
func TestClose(t *testing.T) {
	s := newSet(t, func(int) (*conn, error) { return newConn(), nil })
	c, err := s.Get(t.Context(), "b", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Enter() {
		t.Fatal("an open set cannot be entered")
	}
	why := errors.New("end")
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s.Close(func() error { return nil }, func() error { return why }) }()
	}
	<-s.Life().Done()
	<-c.Gone()
	if s.Enter() || s.Spawn(func() {}) {
		t.Error("a closing set can be entered")
	}
	if _, err := s.Get(t.Context(), "b", 0); !errors.Is(err, mover.ErrClosed) {
		t.Errorf("a connection of a closing set: %v", err)
	}
	select {
	case <-closed:
		t.Error("Close did not wait for who had entered")
	default:
	}
	s.Leave()
	for range 2 {
		if err := <-closed; !errors.Is(err, why) {
			t.Errorf("Close: %v", err)
		}
	}
}
