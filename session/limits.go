package session

import "time"

// Timing holds the session's deadlines and windows. Zero fields take the default.
type Timing struct {
	// Prepare is how long the stages of a route may take to answer. Default 1 s:
	// a dead node is noticed sooner by other evidence.
	Prepare time.Duration
	// ProgressFloor is the least time without an acknowledgement after which the
	// stages are asked how far they are. Default 400 ms. Asking is cheap; blame
	// needs a gap that stays.
	ProgressFloor time.Duration
	// ProbeEvery is the time between two rounds of asking. Default 200 ms.
	ProbeEvery time.Duration
	// ProgressBudget is how many re-routes for missing progress may be made
	// before ProgressEarn tokens earn the next. Defaults 3 and 16: a mesh that is
	// merely slow must not spend its time replaying.
	ProgressBudget, ProgressEarn int
	// Avoid is how long a blamed node or edge is not chosen, if another route
	// exists. Default 3 s.
	Avoid time.Duration
	// Retry is the pause before a route is wanted again. Default 100 ms; the node
	// also retries when its view changes.
	Retry time.Duration
	// QueueDeadline is how long a session that has shown nothing yet waits for a
	// route. Default 3 s: it must fail before the API sends headers to show that it
	// lives, or the client could not be told by a status.
	QueueDeadline time.Duration
	// RecoverDeadline is how long a session that is under way waits for a new
	// route. Default 15 s.
	RecoverDeadline time.Duration
	// Chunk is the most positions of one prefill item. Default 64.
	Chunk int
	// Window is how many positions may be under way; stages reserve credit for
	// them. Default 256.
	Window int
	// Witness is how long the witnesses may take to acknowledge the record before tokens
	// are shown all the same, if they would be generated alike elsewhere. Default 1.5 s.
	Witness time.Duration
	// Again is the pause before a witness that has not answered is told again. Default
	// 300 ms.
	Again time.Duration
	// Standby is the pause before a missing standby is looked for again. Default 1 s;
	// the node also looks when its view changes.
	Standby time.Duration
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	count := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&t.Prepare, time.Second)
	set(&t.ProgressFloor, 400*time.Millisecond)
	set(&t.ProbeEvery, 200*time.Millisecond)
	count(&t.ProgressBudget, 3)
	count(&t.ProgressEarn, 16)
	set(&t.Avoid, 3*time.Second)
	set(&t.Retry, 100*time.Millisecond)
	set(&t.QueueDeadline, 3*time.Second)
	set(&t.RecoverDeadline, 15*time.Second)
	set(&t.Standby, standbyRetry)
	set(&t.Witness, 1500*time.Millisecond)
	set(&t.Again, 300*time.Millisecond)
	count(&t.Chunk, 64)
	count(&t.Window, 256)
	return t
}

// patientRounds is how many rounds of probes a gap may stand before a session
// whose progress budget is spent re-routes all the same: slower, but not never.
const patientRounds = 16

// maxBarren is how many routes in a row may be prepared and bring nothing before
// the session fails.
const maxBarren = 16

// maxStrikes is how many engines a session may have killed before it counts as
// poisoned: once in a batch with others, once alone.
const maxStrikes = 2

// againWorth is how many positions the first stage must have more than another for that
// to be asked again: fewer are computed as fast.
const againWorth = 32

// loadPosition is what a stage may take to load one position of a copy. A request that has
// shown nothing has no time for more than loadMost in all: it may have to go elsewhere.
const (
	loadPosition = 2 * time.Millisecond
	loadMost     = time.Second
)
