package node

import (
	"time"

	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/session/witness"
	"github.com/kevlard/kevlard/stage"
)

// Timing holds the node's own deadlines and those of its parts. Zero fields take
// the default.
type Timing struct {
	Session session.Timing
	Stage   stage.Timing
	// Ping is the interval of signs of life asked of nodes that own sessions run
	// through. Default 100 ms.
	Ping time.Duration
	// IdlePing is the same for all other connected peers; it carries their load.
	// Default 1 s.
	IdlePing time.Duration
	// Silence is the least time without any byte from a node on a route before
	// its sessions leave it. Slow links raise it to eight smoothed round trips
	// plus four deviations. Default 400 ms.
	Silence time.Duration
	// LateJudge is how late this node's own timer may be before it doubts itself
	// and not the others. Default 50 ms.
	LateJudge time.Duration
	// Seek is how long a new session waits to learn which stages have a part of its
	// prompt. Default 100 ms; most answers come within a round trip.
	Seek time.Duration
	// Renew is the interval of lease renewals. Default 3 s.
	Renew time.Duration
	// Resume is how long a session can be resumed after its client is gone, or after its
	// end. Default 60 s; negative: not at all.
	Resume time.Duration
	// Log is how long generated tokens wait to be sent to the session's witnesses, with
	// those of other sessions. Default 50 ms.
	Log time.Duration
	// Heard is how long ago an owner may have been heard of and still count as alive when
	// another node wants to take its session over. Default 1.5 s, as idle nodes ping each
	// other every second.
	Heard time.Duration
	// Locate is how long nodes may take to say what they know of a session. Default 500 ms.
	Locate time.Duration
	// Round is how long witnesses may take to answer a candidate before it tries again.
	// Default 300 ms.
	Round time.Duration
	// TakeOver is how long a takeover may take in all. Default 5 s.
	TakeOver time.Duration
	// Drain is the wait from the announcement of a drain to the giving up of stages: longer
	// than the news takes to reach the other holders. Default 1 s.
	Drain time.Duration
	Audit audit.Timing
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Ping, 100*time.Millisecond)
	set(&t.IdlePing, time.Second)
	set(&t.Silence, 400*time.Millisecond)
	set(&t.LateJudge, 50*time.Millisecond)
	set(&t.Seek, 100*time.Millisecond)
	set(&t.Renew, 3*time.Second)
	set(&t.Resume, time.Minute)
	set(&t.Log, 50*time.Millisecond)
	set(&t.Heard, 1500*time.Millisecond)
	set(&t.Locate, 500*time.Millisecond)
	set(&t.Round, 300*time.Millisecond)
	set(&t.TakeOver, 5*time.Second)
	set(&t.Drain, time.Second)
	return t
}

// followLease is how long a session goes on whose follower does not say that its client
// is still there.
const followLease = 10 * time.Second

// maxPushed is how many messages of tokens a follower gets before it must ask for more.
const (
	maxPushed = 16
	// seekTokens is how long a prompt must be to ask who has a part of it: shorter ones are
	// computed as fast.
	seekTokens = 16
)

// maxSeek is how many nodes are asked, the least loaded first. What others have is found
// only where they are chosen by chance.
const maxSeek = 256

// seekWorth is how many positions of a prompt, or half of it, make a route better than
// one that is less loaded. Templates let all prompts begin alike.
const seekWorth = 32

// Limits bounds what a node holds. Zero fields take the default.
type Limits struct {
	Stage stage.Limits
	// Sessions is the most sessions owned here; more are refused with 429.
	// Default 1024.
	Sessions int
	// Poisoned is how many requests that crashed engines are remembered. Default
	// 256.
	Poisoned int
	// Fetches is how many pieces of copies are sent at once to nodes that take over;
	// more copies are recomputed there. Default 4096.
	Fetches int
	// Resting is how many sessions wait to be resumed, and RestingBytes what their
	// tokens take; the oldest are forgotten first. Defaults 4096 and 64 MiB.
	Resting, RestingBytes int
	// TakeOvers is how many sessions are being taken over at once; more are refused with
	// 429. Default 256.
	TakeOvers int
	// Stages is the most stages held at once. Default 64.
	Stages  int
	Witness witness.Limits
}

func (l Limits) withDefaults() Limits {
	if l.Sessions == 0 {
		l.Sessions = 1024
	}
	if l.Poisoned == 0 {
		l.Poisoned = 256
	}
	if l.Fetches == 0 {
		l.Fetches = 4096
	}
	if l.Resting == 0 {
		l.Resting = 4096
	}
	if l.TakeOvers == 0 {
		l.TakeOvers = 256
	}
	if l.Stages == 0 {
		l.Stages = 64
	}
	if l.RestingBytes == 0 {
		l.RestingBytes = 64 << 20
	}
	return l
}
