package movertest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// note is the header of the suite's pieces: which piece of which lane it is, and the
// seed of its body.
type note struct {
	lane mover.Lane
	seq  uint64
}

const noteLen = 16

func (n note) header(extra int) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(n.lane))
	b = binary.BigEndian.AppendUint64(b, n.seq)
	return append(b, make([]byte, extra)...)
}

func noteOf(header []byte) note {
	return note{mover.Lane(binary.BigEndian.Uint64(header)), binary.BigEndian.Uint64(header[8:])}
}

// fill writes the body that belongs to the note.
func (n note) fill(b []byte) {
	r := rand.NewPCG(uint64(n.lane), n.seq)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}

// sink is a Handler that checks what arrives and keeps the account of buffers.
type sink struct {
	t *testing.T
	// buffer, if set, is asked first; false refuses.
	buffer func(from kevlard.NodeID, n note) bool

	mu       sync.Mutex
	last     map[kevlard.NodeID]map[mover.Lane]uint64 // seq of the latest piece, plus one
	out      map[*byte]note                           // buffers that the mover has
	received int
	bytes    int
	gaps     int
	aborted  []note
	lost     []error
}

func newSink(t *testing.T) *sink {
	return &sink{t: t, last: make(map[kevlard.NodeID]map[mover.Lane]uint64), out: make(map[*byte]note)}
}

func (s *sink) Buffer(from kevlard.NodeID, header []byte, n int) []byte {
	note := noteOf(header)
	if n <= 0 {
		s.t.Errorf("Buffer for %d bytes", n)
	}
	if s.buffer != nil && !s.buffer(from, note) {
		return nil
	}
	b := make([]byte, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out[&b[0]] = note
	return b
}

func (s *sink) Received(from kevlard.NodeID, header, body []byte) {
	n := noteOf(header)
	want := make([]byte, len(body))
	n.fill(want)
	if string(want) != string(body) {
		s.t.Errorf("piece %+v from %s: a body of %d bytes is damaged", n, from, len(body))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backLocked(n, body)
	lanes := s.last[from]
	if lanes == nil {
		lanes = make(map[mover.Lane]uint64)
		s.last[from] = lanes
	}
	switch next := lanes[n.lane]; {
	case n.seq < next:
		s.t.Errorf("lane %d from %s: piece %d after piece %d", n.lane, from, n.seq, next-1)
	case n.seq > next:
		s.gaps++
	}
	lanes[n.lane] = n.seq + 1
	s.received++
	s.bytes += len(header) + len(body)
}

func (s *sink) Aborted(from kevlard.NodeID, header, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := noteOf(header)
	s.backLocked(n, body)
	s.aborted = append(s.aborted, n)
}

// backLocked takes a buffer back, which must be the one given out for the piece.
func (s *sink) backLocked(n note, body []byte) {
	if len(body) == 0 {
		return
	}
	if got, ok := s.out[&body[0]]; !ok || got != n {
		s.t.Errorf("piece %+v comes back in a buffer of %+v (known: %v)", n, got, ok)
	}
	delete(s.out, &body[0])
}

func (s *sink) Lost(to kevlard.NodeID, err error) {
	if err == nil {
		s.t.Errorf("Lost(%s) without an error", to)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = append(s.lost, err)
}

// account is what a sink has seen so far.
type account struct{ received, bytes, gaps, aborted, lost, out int }

func (s *sink) account() account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return account{s.received, s.bytes, s.gaps, len(s.aborted), len(s.lost), len(s.out)}
}

// String makes failures readable.
func (a account) String() string {
	return fmt.Sprintf("%d received (%d bytes, %d gaps), %d aborted, %d lost, %d buffers out", a.received, a.bytes, a.gaps, a.aborted, a.lost, a.out)
}
