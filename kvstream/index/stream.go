package index

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Policy says when rows are sent to a standby.
type Policy struct {
	Tokens int           // so many finished positions are worth a piece
	Delay  time.Duration // a finished position waits no longer
	// Gap is between pieces that are not full, within Delay: what a piece costs hardly
	// depends on its size, so a model whose tokens take little must send fewer a second.
	Gap    time.Duration
	Window int           // positions that may be sent and not acknowledged
	Piece  int           // most positions of one piece
	Slow   time.Duration // a standby that acknowledges nothing for so long is given up
}

// Stream is the sender's side of one session's copy at one standby: what it has,
// what is on the way, and when the next piece is due. The zero value has no standby.
type Stream struct {
	To     kevlard.NodeID
	Number uint64 // of the offer

	try    uint64      // of the standby's last word
	open   bool        // the offer was answered
	sent   kevlard.Pos // positions before it were sent
	left   kevlard.Pos // of these, positions before it have left this node
	acked  kevlard.Pos // positions before it are stored there
	held   kevlard.Pos // positions before it are finished here
	oldest kevlard.Instant
	last   kevlard.Instant // when rows were sent last, 0: never
	heard  kevlard.Instant // when the standby last acknowledged something, or was first asked
}

// NewStream returns the stream to a standby to which an offer was just sent.
func NewStream(now kevlard.Instant, to kevlard.NodeID, number uint64) Stream {
	return Stream{To: to, Number: number, oldest: kevlard.Never, heard: now}
}

// Acked returns the watermark: the leading positions that the standby has stored.
func (s *Stream) Acked() kevlard.Pos { return s.acked }

// Computed notes how many leading positions are finished here; after a re-route
// that may be fewer than before.
func (s *Stream) Computed(now kevlard.Instant, held kevlard.Pos) {
	s.held = held
	switch {
	case s.held <= s.sent:
		s.oldest = kevlard.Never
	case s.oldest == kevlard.Never:
		s.oldest = now
	}
}

// Stored takes the standby's word. It reports false if it keeps no copy.
func (s *Stream) Stored(now kevlard.Instant, m protocol.Stored) bool {
	if m.Number != 0 && m.Number != s.Number {
		return true // of an earlier offer to the same node
	}
	if m.Refusal != "" {
		return false
	}
	if m.Try < s.try {
		return true // of before it was asked anew
	}
	if !s.open || m.Again {
		s.open, s.try = true, m.Try
		s.sent, s.left, s.acked = m.Through, m.Through, m.Through
		s.heard = now
		s.Computed(now, s.held)
		return true
	}
	if m.Through > s.acked && m.Through <= s.sent {
		s.acked, s.heard = m.Through, now
	}
	return true
}

// Try returns what the next rows must carry as theirs.
func (s *Stream) Try() uint64 { return s.try }

// Next returns the positions to send now; from == to if there are none.
func (s *Stream) Next(now kevlard.Instant, p Policy) (from, to kevlard.Pos) {
	if !s.open || s.held <= s.sent {
		return 0, 0
	}
	if now < s.ripe(p) {
		return 0, 0
	}
	to = min(s.held, s.sent+p.Piece, s.acked+p.Window)
	if to <= s.sent {
		return 0, 0
	}
	return s.sent, to
}

// ripe returns from when on what is finished here and not sent is worth a piece.
func (s *Stream) ripe(p Policy) kevlard.Instant {
	switch n := s.held - s.sent; {
	case n >= p.Piece, n >= p.Tokens && s.last == 0:
		return 0
	case n >= p.Tokens:
		return min(s.oldest.Add(p.Delay), s.last.Add(p.Gap))
	default:
		return s.oldest.Add(p.Delay)
	}
}

// Due reports whether there is something to send now.
func (s *Stream) Due(now kevlard.Instant, p Policy) bool {
	from, to := s.Next(now, p)
	return from < to
}

// Sent notes that the positions before to were sent.
func (s *Stream) Sent(now kevlard.Instant, to kevlard.Pos) {
	if s.sent == s.acked {
		s.heard = now // nothing was owed until now
	}
	s.sent, s.last = to, now
	s.oldest = kevlard.Never
	s.Computed(now, s.held)
}

// Left notes that what was sent last has left this node: from now on the standby
// owes an answer, unless it did before.
func (s *Stream) Left(now kevlard.Instant) {
	if s.sent > s.acked && s.left <= s.acked {
		s.heard = max(s.heard, now)
	}
	s.left = s.sent
}

// Deadline returns when Next or Overdue may change by time alone.
func (s *Stream) Deadline(p Policy) kevlard.Instant {
	if s.To == "" {
		return kevlard.Never
	}
	at := kevlard.Never
	if !s.open || s.sent > s.acked {
		at = s.heard.Add(p.Slow)
	}
	if s.open && s.held > s.sent && s.sent < s.acked+p.Window {
		at = min(at, s.ripe(p))
	}
	return at
}

// Overdue reports whether the standby is too slow to be waited for.
func (s *Stream) Overdue(now kevlard.Instant, p Policy) bool {
	return s.To != "" && (!s.open || s.sent > s.acked) && now >= s.heard.Add(p.Slow)
}

// Forgive moves what runs against the standby: this node itself was late.
func (s *Stream) Forgive(late time.Duration) { s.heard = s.heard.Add(late) }
