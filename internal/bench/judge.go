package bench

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
)

// clientLag is how much later than its owner's log a client may see a token.
const clientLag = 100 * time.Millisecond

// outcome compares every stream with its reference and says what the clients saw.
func outcome(streams []arrival, references []load.Result, say func(string, ...any)) Outcome {
	out := Outcome{Requests: len(streams)}
	var shown, answer, latency []float64
	for _, s := range streams {
		out.Restarts += s.restarts
		if s.result.Err != nil {
			out.Errors++
			say("stream %s: %v", s.result.Session, s.result.Err)
			continue
		}
		if !s.result.Same(references[s.variant]) {
			out.Mismatches++
			say("stream %s differs from its unbroken run", s.result.Session)
		}
		shown = append(shown, load.Millis(s.firstShown))
		answer = append(answer, load.Millis(s.result.FirstToken()))
		latency = append(latency, load.Millis(s.result.Ended.Sub(s.result.Sent)))
	}
	out.TTFT, out.TTFTAnswer, out.Latency = meanP99(shown), meanP99(answer), meanP99(latency)
	return out
}

func meanP99(v []float64) MeanP99 { return MeanP99{measure.Mean(v), measure.Quantile(v, 0.99)} }

// ratios compares how long the clients of two systems waited.
func ratios(kevlard, failstop Outcome) *Ratios {
	return &Ratios{
		TTFTMean: measure.Ratio(kevlard.TTFT.Mean, failstop.TTFT.Mean), TTFTP99: measure.Ratio(kevlard.TTFT.P99, failstop.TTFT.P99),
		LatencyMean: measure.Ratio(kevlard.Latency.Mean, failstop.Latency.Mean), LatencyP99: measure.Ratio(kevlard.Latency.P99, failstop.Latency.P99),
	}
}

// judge measures the recoveries of all streams that ran through a victim.
func judge(r *FailoverReport, c Contexts, streams []arrival, broken []breakage, events []report.Event, say func(string, ...any)) {
	bySession := map[string]load.Result{}
	for _, s := range streams {
		bySession[s.result.Session] = s.result
	}
	var gap, detect, reroute, restore []float64
	gaps, restores := measure.Buckets(measure.ContextEdges(c.Min, c.Max)...), measure.Buckets(measure.ContextEdges(c.Min, c.Max)...)
	for i, fault := range broken {
		until := time.Time{} // of the events that can be of this fault
		if i+1 < len(broken) {
			until = broken[i+1].at
		}
		for _, id := range slices.Sorted(maps.Keys(fault.sessions)) {
			before := fault.sessions[id]
			one, over, ok := recoveryAfter(fault, until, id, events)
			switch {
			case ok:
				// The client sees the first token a little after its owner does.
				one.GapMS = load.Millis(bySession[id].LongestGap(fault.at, over.Add(clientLag)))
				one.Context = before.prompt + one.AtToken
				r.Moved++
				detect, reroute, restore = append(detect, one.DetectMS), append(reroute, one.RerouteMS), append(restore, one.RestoreMS)
				measure.Put(restores, one.Context, one.RestoreMS)
			case r.Fault == Slow:
				// It stayed on the slow host: its pause is the longest of that time.
				one.GapMS = load.Millis(bySession[id].LongestGap(fault.at, fault.lifted))
				one.AtToken, one.Context = before.shown, before.prompt+before.shown
			default:
				r.Unrecorded++
				say("stream %s through %s has no recovery: %s", id, fault.victim, whyUnrecorded(fault, before, bySession[id], one))
				continue
			}
			r.Each = append(r.Each, one)
			gap = append(gap, one.GapMS)
			measure.Put(gaps, one.Context, one.GapMS)
		}
	}
	r.Recoveries = len(gap)
	q := measure.Quantile
	r.RecoveryMS = RecoveryMS{
		P50: q(gap, 0.5), P99: q(gap, 0.99), Max: q(gap, 1),
		DetectP50: q(detect, 0.5), ReroutP50: q(reroute, 0.5), RestoreP50: q(restore, 0.5),
		DetectP99: q(detect, 0.99), ReroutP99: q(reroute, 0.99), RestoreP99: q(restore, 0.99),
	}
	for i, b := range gaps {
		r.ByContext = append(r.ByContext, Group{
			Above: b.Above, UpTo: b.UpTo, Recoveries: len(b.Values), P50: q(b.Values, 0.5), P99: q(b.Values, 0.99),
			RestoreP50: q(restores[i].Values, 0.5),
		})
	}
}

// whyUnrecorded says what is known of a stream through a victim that has no recovery.
func whyUnrecorded(fault breakage, before progress, got load.Result, one Recovery) string {
	ended := got.Ended.Sub(fault.at).Round(time.Millisecond)
	switch {
	case got.Err != nil:
		return fmt.Sprintf("it failed %s after the fault", ended)
	case one.Cause != "":
		return fmt.Sprintf("it left the host (%s), and the log does not say how it went on; it ended %s after the fault", one.Cause, ended)
	}
	return fmt.Sprintf("it never left the host; it had shown %d of %d tokens and ended %s after the fault", before.shown, before.most, ended)
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

// recoveryAfter finds what the owner's event log says of one session's failover
// after a fault and before until, if that is not zero, and when it was over. Detection is counted from the fault, not
// from the last token.
func recoveryAfter(fault breakage, until time.Time, session string, events []report.Event) (out Recovery, over time.Time, ok bool) {
	out = Recovery{Victim: fault.victim, Session: session}
	var acted time.Time
	for _, e := range events {
		if e.Session != session || e.At.Before(fault.at) {
			continue
		}
		switch {
		case e.Type == "failover" && acted.IsZero():
			if !until.IsZero() && !e.At.Before(until) {
				return out, over, false
			}
			acted, out.Cause = e.At, e.Cause
		case e.Type == "refused" && !acted.IsZero() && len(out.Refused) < maxRefused:
			out.Refused = append(out.Refused, e.Peer+" "+e.Cause)
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
