package prefer

import (
	"context"
	"errors"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// heard is a handler that notes headers.
type heard struct{ received, aborted []string }

func (h *heard) Buffer(_ kevlard.NodeID, _ []byte, n int) []byte { return make([]byte, n) }
func (h *heard) Received(_ kevlard.NodeID, header, _ []byte) {
	h.received = append(h.received, string(header))
}

func (h *heard) Aborted(_ kevlard.NodeID, header, _ []byte) {
	h.aborted = append(h.aborted, string(header))
}
func (h *heard) Lost(kevlard.NodeID, error) {}

// TestGate: what comes late from before a change is dropped, and its buffer given back.
func TestGate(t *testing.T) {
	h := &heard{}
	g := NewGate(h)
	header := func(t tag, s string) []byte { return append(t.append(nil), s...) }
	g.Received("a", []byte("untagged"), nil)
	g.Received("a", header(tag{1, 5}, "tcp"), nil)
	b := g.Buffer("a", header(tag{1, 5}, "late"), 3)
	g.Received("a", header(tag{1, 6}, "rdma"), nil)
	g.Received("a", header(tag{1, 5}, "late"), b)
	if g.Buffer("a", header(tag{1, 5}, "later"), 3) != nil {
		t.Error("there is a buffer for a piece from before the change")
	}
	g.Received("a", header(tag{2, 1}, "another life"), nil)
	want := []string{"untagged", "tcp", "rdma", "another life"}
	if len(h.received) != len(want) || len(h.aborted) != 1 || h.aborted[0] != "late" {
		t.Fatalf("received %q, aborted %q", h.received, h.aborted)
	}
	for i := range want {
		if h.received[i] != want[i] {
			t.Errorf("received %q, want %q", h.received, want)
		}
	}
}

// puppet is a mover whose sends end as they are told.
type puppet struct {
	send func() error
	n    int
}

func (p *puppet) Send(context.Context, kevlard.NodeID, mover.Lane, []byte, ...[]byte) error {
	p.n++
	return p.send()
}
func (p *puppet) Stats() mover.Stats { return mover.Stats{} }
func (p *puppet) Close() error       { return nil }

// TestThereAndBack: TCP, RDMA once it is reached, TCP when it fails, RDMA again; each
// change is told once, and a piece that was not sent goes the other way at once.
func TestThereAndBack(t *testing.T) {
	probes, changes := make(chan error), make(chan Change, 10)
	var fail error
	better, other := &puppet{send: func() error { return fail }}, &puppet{send: func() error { return nil }}
	m := New(Config{
		Better: Choice{"rdma", better}, Other: Choice{"tcp-tls", other}, Handler: &heard{}, Changed: func(c Change) { changes <- c },
		Probe: func(ctx context.Context, _ kevlard.NodeID) error {
			select {
			case err := <-probes:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	send := func() {
		t.Helper()
		if err := m.Send(t.Context(), "b", 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(using string, why error) {
		t.Helper()
		if c := <-changes; c.Using != using || !errors.Is(c.Why, why) || c.Peer != "b" {
			t.Fatalf("%+v, want %s because of %v", c, using, why)
		}
	}
	none := errors.New("no port in common")
	send()
	probes <- none
	expect("tcp-tls", none)
	probes <- none // told once
	probes <- nil
	expect("rdma", nil)
	send()
	fail = mover.ErrUnreachable
	send()
	expect("tcp-tls", mover.ErrUnreachable)
	fail = nil
	m.mu.Lock()
	if p := m.peers["b"]; p.wait != minWait {
		t.Errorf("waits %v before it probes again, want %v: it failed soon", p.wait, minWait)
	}
	m.mu.Unlock()
	probes <- nil
	expect("rdma", nil)
	send()
	if better.n != 3 || other.n != 2 || len(changes) != 0 {
		t.Errorf("%d over RDMA, %d over TCP, want 3 and 2; %d changes more", better.n, other.n, len(changes))
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
