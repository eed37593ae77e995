package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// The faults that bench failover can inject.
const (
	faultKill       = "kill"
	faultStop       = "stop"
	faultEngineKill = "engine-kill"
)

func checkFault(name string) error {
	switch name {
	case faultKill, faultStop, faultEngineKill:
		return nil
	case "drop", "slow":
		return usageError("--fault %s is not built yet: want kill, stop or engine-kill", name)
	}
	return usageError("--fault %s: want kill, stop or engine-kill", name)
}

// breakage is one fault and the streams that ran through the victim.
type breakage struct {
	victim   string
	at       time.Time
	sessions []string
}

const (
	// busyWithin bounds the wait for a stream that runs through the next victim.
	busyWithin = time.Minute
	// settledWithin bounds the wait for the streams of a fault to go on, and for the
	// mesh to be whole again.
	settledWithin = 2 * time.Minute
	// busyEvery is the pause between two looks at the sessions.
	busyEvery = 20 * time.Millisecond
	// breakFrom is how many tokens a stream must have before its host is broken, so
	// that there is something to replay.
	breakFrom = 40
)

// breakOne waits until a stream runs through the victim, breaks it, and heals it. It
// sends the signals itself: scripts/chaos, with which the tests do it, needs longer to
// start than detecting a dead process takes, and out.at must be the instant of the fault.
func (b *failoverBench) breakOne(ctx context.Context, victim *devmesh.Node) (breakage, error) {
	sessions, err := b.running(ctx, victim)
	if err != nil {
		return breakage{}, err
	}
	out := breakage{victim: victim.Name(), sessions: sessions}
	switch b.fault {
	case faultKill:
		out.at = time.Now()
		err = victim.Kill(syscall.SIGKILL)
	case faultStop:
		out.at = time.Now()
		err = victim.Kill(syscall.SIGSTOP)
	case faultEngineKill:
		out.at, err = victim.KillEngine(ctx, syscall.SIGKILL)
	}
	if err != nil {
		return out, err
	}
	select {
	case <-ctx.Done():
		return out, context.Cause(ctx)
	case <-time.After(b.hold): // also so that one fault's recoveries end before the next
	}
	switch b.fault {
	case faultKill:
		err = victim.Restart()
	case faultStop:
		err = victim.Kill(syscall.SIGCONT)
	}
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, settledWithin)
	defer cancel()
	return out, b.mesh.Ready(ctx)
}

// running returns the sessions that decode through the victim, once there is one.
func (b *failoverBench) running(ctx context.Context, victim *devmesh.Node) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, busyWithin)
	defer cancel()
	tick := time.NewTicker(busyEvery)
	defer tick.Stop()
	for {
		all, err := b.mesh.Entry().Sessions(ctx)
		if err != nil {
			return nil, err
		}
		var through []string
		for _, s := range all {
			if s.State == "decode" && s.Tokens >= breakFrom && slices.Contains(s.Route, victim.Name()) {
				through = append(through, s.ID)
			}
		}
		if len(through) > 0 {
			return through, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a stream through %s: none within %s: raise --rps or --tokens", victim.Name(), busyWithin)
		case <-tick.C:
		}
	}
}

// judge compares every stream with its reference and measures the recoveries.
func (b *failoverBench) judge(streams []arrival, broken []breakage, events []report.Event) failoverReport {
	r := failoverReport{Requests: len(streams), Faults: len(broken), Each: []recoveryOf{}}
	var ttft, latency, gap, detect, reroute, restore []time.Duration
	bySession := map[string]load.Result{}
	for _, s := range streams {
		bySession[s.result.Session] = s.result
		if s.result.Err != nil {
			r.Kevlard.Errors++
			b.say("stream %s: %v", s.result.Session, s.result.Err)
			continue
		}
		if !s.result.Same(b.references[s.variant]) {
			r.Kevlard.Mismatches++
		}
		ttft = append(ttft, s.result.FirstToken())
		latency = append(latency, s.result.Ended.Sub(s.result.Sent))
	}
	for _, fault := range broken {
		for _, id := range fault.sessions {
			one, over, ok := recoveryAfter(fault, id, events)
			if !ok {
				r.Unrecorded++ // such as of a stream whose last token was on its way: it never missed the host
				continue
			}
			// The client sees the first token a little after its owner does.
			pause := bySession[id].LongestGap(fault.at, over.Add(clientLag))
			one.GapMS = load.Millis(pause)
			r.Each = append(r.Each, one)
			gap = append(gap, pause)
			detect = append(detect, fromMillis(one.DetectMS))
			reroute = append(reroute, fromMillis(one.RerouteMS))
			restore = append(restore, fromMillis(one.RestoreMS))
		}
	}
	r.Recoveries = len(gap)
	at := func(d []time.Duration, q float64) float64 { return load.Millis(load.Quantile(d, q)) }
	r.RecoveryMS = recoveryMS{
		P50: at(gap, 0.5), P99: at(gap, 0.99), Max: at(gap, 1),
		DetectP50: at(detect, 0.5), ReroutP50: at(reroute, 0.5), RestoreP50: at(restore, 0.5),
		DetectP99: at(detect, 0.99), ReroutP99: at(reroute, 0.99), RestoreP99: at(restore, 0.99),
	}
	r.Kevlard.TTFT = meanP99{load.Millis(load.Mean(ttft)), at(ttft, 0.99)}
	r.Kevlard.Latency = meanP99{load.Millis(load.Mean(latency)), at(latency, 0.99)}
	return r
}

// checkComplete fails when the event log forgot events before they were read, since
// recoveries may be among them. What it forgot of the time before the first fault
// does not matter.
func checkComplete(events []report.Event, broken []breakage) error {
	seq := uint64(0)
	for i, e := range events {
		if e.Seq != seq+1 && (i > 0 || len(broken) > 0 && e.At.After(broken[0].at)) {
			return fmt.Errorf("read the events of the gateway: %d are missing before number %d, and recoveries may be among them: run with fewer --faults or a lower --rps", e.Seq-seq-1, e.Seq)
		}
		seq = e.Seq
	}
	return nil
}

func fromMillis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// clientLag is how much later than its owner's log a client may see a token.
const clientLag = 100 * time.Millisecond

// recoveryAfter finds what the owner's event log says of one session's failover
// after a fault, and when it was over. Detection is counted from the fault, not
// from the last token.
func recoveryAfter(fault breakage, session string, events []report.Event) (out recoveryOf, over time.Time, ok bool) {
	out = recoveryOf{Victim: fault.victim}
	var acted time.Time
	for _, e := range events {
		if e.Session != session || e.At.Before(fault.at) {
			continue
		}
		switch {
		case e.Type == "failover" && acted.IsZero():
			acted, out.Cause = e.At, e.Cause
		case e.Type == "recovered" && !acted.IsZero():
			if e.Failover == nil {
				return out, over, false
			}
			out.AtToken = e.Failover.AtToken
			out.DetectMS = load.Millis(acted.Sub(fault.at))
			out.RerouteMS, out.RestoreMS = e.Failover.RerouteMS, e.Failover.RestoreMS
			return out, e.At, true
		}
	}
	return out, over, false
}
