package stage

import "time"

// Timing holds the stage's deadlines. Zero fields take the default.
type Timing struct {
	// Lease is how long a session stays without work, renewal or prepare. Default 10 s.
	Lease time.Duration
	// Stall is how long a batch may run, at least, before the engine counts as
	// stalled; slow engines get ten times their predicted time. Too small blames a
	// busy machine, too large delays recovery from a frozen engine. Default 600 ms.
	Stall time.Duration
	// StallKill is how long a stalled engine may stay silent before it is killed
	// and started anew. Default 10 s.
	StallKill time.Duration
	// Batch is the predicted time that a batch is filled up to. Default 20 ms.
	Batch time.Duration
	// Prefill is the same while no session here decodes, so that nobody's next token
	// waits: larger batches read the weights less often. Default 100 ms.
	Prefill time.Duration
	// RestartMin and RestartMax bound the back-off of engine restarts. Defaults
	// 100 ms and 30 s.
	RestartMin, RestartMax time.Duration
	// Calm is how long an engine must run for its earlier exits to be forgotten.
	// Default 60 s.
	Calm time.Duration
	// Replicate is how long a finished position waits for more before it is sent to
	// the standby. Default 250 ms.
	Replicate time.Duration
	// ReplicateGap is least between two pieces of a session that are not full, within
	// Replicate. Default 100 ms.
	ReplicateGap time.Duration
	// SlowStandby is how long a standby may acknowledge nothing before it is given
	// up. Default 2 s.
	SlowStandby time.Duration
	// Fetch is how long the holder of a copy may send nothing before the rest is
	// computed. Default 300 ms.
	Fetch time.Duration
	// Await is how long a prepare waits at least for another session that computes the
	// same tokens to get further before the rest is computed a second time. Default 400 ms.
	Await time.Duration
	// Start is the same for one that is to start: longer than owners wait for the other
	// stages. Default 1.2 s.
	Start time.Duration
	// Release is how long a stage that is given up may take to keep what it computed
	// before its engine is killed. Default 5 s.
	Release time.Duration
	// Tempo is the window over which the engine's speed is measured; three of them count.
	// Default 20 s.
	Tempo time.Duration
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Lease, 10*time.Second)
	set(&t.Stall, 600*time.Millisecond)
	set(&t.StallKill, 10*time.Second)
	set(&t.Batch, 20*time.Millisecond)
	set(&t.Prefill, 100*time.Millisecond)
	set(&t.RestartMin, 100*time.Millisecond)
	set(&t.RestartMax, 30*time.Second)
	set(&t.Calm, 60*time.Second)
	set(&t.Replicate, 250*time.Millisecond)
	set(&t.ReplicateGap, 100*time.Millisecond)
	set(&t.SlowStandby, 2*time.Second)
	set(&t.Fetch, 300*time.Millisecond)
	set(&t.Await, 400*time.Millisecond)
	set(&t.Start, 1200*time.Millisecond)
	set(&t.Release, 5*time.Second)
	set(&t.Tempo, 20*time.Second)
	return t
}

// Limits bounds what a stage holds. Zero fields take the default.
type Limits struct {
	// Sessions is the most sessions with room here; the next prepare is refused
	// for capacity. Default 256.
	Sessions int
	// BatchRows and BatchParts bound a batch; the rest waits for the next one.
	// Defaults 512 and 64.
	BatchRows, BatchParts int
	// Tombstones is how many closed sessions are remembered, oldest forgotten
	// first. Default 4096.
	Tombstones int
	// ReplicateTokens is how many finished positions are sent to the standby at once
	// without waiting for more. Default 16.
	ReplicateTokens int
	// PieceBytes is the most of one piece of KV, WindowBytes the most that one session
	// has on its way to its standby. Defaults 1 MiB and 4 MiB.
	PieceBytes, WindowBytes int
}

// maxKeeping is how many pieces may be on their way from the engine to the block memory
// and be known; of the oldest it is forgotten whose they are. The shell has room for fewer.
const maxKeeping = 1024

// maxUnloaded is how many engines in a row may fail to load before the stage counts as
// one that this node can't hold: one more try, for what was an accident.
const maxUnloaded = 2

// transferPosition is what one position may take to be read or written, beyond
// Timing.Stall, before the engine counts as stalled.
const transferPosition = time.Millisecond

func (l Limits) withDefaults() Limits {
	set := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&l.Sessions, 256)
	set(&l.BatchRows, 512)
	set(&l.BatchParts, 64)
	set(&l.Tombstones, 4096)
	set(&l.ReplicateTokens, 16)
	set(&l.PieceBytes, 1<<20)
	set(&l.WindowBytes, 4<<20)
	return l
}
