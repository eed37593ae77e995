package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/kevlard/kevlard/protocol"
)

// Options are what a run is asked for besides its scenario.
type Options struct {
	Trace io.Writer // one line for each event; nil: none
	Plant Plant
}

// Result is what a run yields.
type Result struct {
	Seed       uint64
	Hash       uint64   // of everything that happened: equal seeds give equal hashes
	Violations []string // what must not be; empty when all is well
	Stats      Stats
	Ended      time.Duration // virtual time
}

// Run plays a scenario to its end: load and faults until the horizon, then
// healing, then until every session has ended and leases have passed. A panic
// of a machine is a violation.
func Run(s Scenario, o Options) (r Result) {
	w := newWorld(s, o)
	defer func() {
		if p := recover(); p != nil {
			w.judge.fail("panic: %v\n%s", p, debug.Stack())
			r = w.result()
		}
	}()
	for _, h := range w.hosts {
		w.after(w.between(0, 50*time.Millisecond), h.start)
	}
	w.submits()
	w.faults()
	w.after(surveyEvery, w.judge.survey)
	horizon := w.now.Add(s.Horizon)
	w.run(horizon, nil)
	// Faults are over when their own ends have come, at the latest now.
	w.heal()
	w.run(w.now.Add(endWithin), w.judge.idle)
	w.run(w.now.Add(quietFor), nil)
	for w.now.Sub(w.lastRows) < quietFor { // what a link held for long renews leases too
		w.run(w.lastRows.Add(quietFor), nil)
	}
	w.run(w.now.Add(engineWithin), w.judge.enginesAnswer)
	w.judge.ended()
	return w.result()
}

func (w *world) result() Result {
	s := w.judge.stats
	s.Sessions, s.Events = len(w.judge.order), w.events
	return Result{Seed: w.sc.Seed, Hash: w.digest, Violations: w.judge.violations, Stats: s, Ended: time.Duration(w.now)}
}

// String names the run and how to see it again.
func (r Result) String() string {
	return fmt.Sprintf("seed %d: %d violations, %d sessions (%d finished, %d failed, %d cancelled, %d lost), %d tokens, %d failovers\n"+
		"replay: go test ./internal/sim -run TestSeeds -seed %d -show -v",
		r.Seed, len(r.Violations), r.Stats.Sessions, r.Stats.Finished, r.Stats.Failed, r.Stats.Cancelled, r.Stats.Lost, r.Stats.Tokens, r.Stats.Failovers, r.Seed)
}

func newCodec() *protocol.Codec { return protocol.NewCodec() }
