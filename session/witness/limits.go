package witness

import "time"

// Limits bounds what a node keeps as a witness. Zero fields take the default.
type Limits struct {
	// Records is the most sessions. When there are more, those that have ended go
	// first; then new ones are refused, and their owners choose another witness.
	// Default 8192.
	Records int
	// Bytes is the most that their tokens, log probabilities and envelopes take, with
	// the same consequence. Default 256 MiB.
	Bytes int
	// Tombs is how many forgotten sessions are remembered by the epoch that was promised
	// last. The oldest is forgotten first. Default 8192.
	Tombs int
	// Lease is how long a record is kept after its owner was last heard of: so long may
	// a client take to come back after its owner died. Default 90 s; node sets it.
	Lease time.Duration
	// Ended is the same for a session that has ended. Default 60 s.
	Ended time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Records == 0 {
		l.Records = 8192
	}
	if l.Bytes == 0 {
		l.Bytes = 256 << 20
	}
	if l.Tombs == 0 {
		l.Tombs = 8192
	}
	if l.Lease == 0 {
		l.Lease = 90 * time.Second
	}
	if l.Ended == 0 {
		l.Ended = 60 * time.Second
	}
	return l
}

// sweepEvery is how often leases are looked at: a record may be kept for so much
// longer.
const sweepEvery = 5 * time.Second

// maxLogprobBytes is the most log probabilities in one record, so that it fits a
// message; what was generated before goes without.
const maxLogprobBytes = 256 << 10
