package audit

import "time"

// Timing says when to audit. Zero fields take the default.
type Timing struct {
	// Every is the mean time between two audits of one claim. Default 10 min; negative: no
	// audits are made. Shorter finds a change sooner and costs 16 rows of compute each time.
	Every time.Duration
	// First is the most that a new claim waits. Default 1 s.
	First time.Duration
	// Answer is how long both stages may take in all before there is no verdict. Default 5 s.
	Answer time.Duration
	// Retry is the wait after that, and doubles up to Every. It is also the wait while there
	// is too much to do. Default 2 s.
	Retry time.Duration
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Every, 10*time.Minute)
	set(&t.First, time.Second)
	set(&t.Answer, 5*time.Second)
	set(&t.Retry, 2*time.Second)
	return t
}

const (
	// positions is the most of one audit: enough for attention to matter.
	positions = 8
	// maxBytes bounds its rows: they go in one frame.
	maxBytes = 256 << 10
	// neighbours is how many holders of the same layers one audits. With more holders each
	// is still audited by as many.
	neighbours = 8
	// grace is how long others are waited for that could stand for a disputed node: that of
	// First, two audits, and what a record takes to reach all.
	grace = 3 * time.Second
	// looks is how often a difference is looked into, at once: if one of these audits differs
	// too, it is a dispute. As many must agree in a row to end a dispute. A slight fault, such
	// as a flipped bit of one weight, shows only in some inputs.
	looks = 8
	// maxClaims is how many claims are remembered; further ones are not audited.
	maxClaims = 1024
	// MaxNames is how many holders one node names in its verdicts, over all its stages: 33
	// KiB of the longest names. Disputes go first; those beyond count at this node only.
	MaxNames = 256
)
