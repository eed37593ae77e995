package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/kevlard/kevlard/internal/bench"
)

// printFailover shows bench failover to people.
func printFailover(w io.Writer, r bench.FailoverReport) error {
	fmt.Fprintf(w, "%d faults (%s), %d requests at %g/s, %d recoveries, %d errors, %d mismatches\n\n",
		r.Faults, r.Fault, r.Requests, r.RPS, r.Recoveries, r.Kevlard.Errors, r.Kevlard.Mismatches)
	number := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	t := newTable("MS", "P50", "P99")
	m := r.RecoveryMS
	t.row("recovery", number(m.P50), number(m.P99))
	t.row("detect", number(m.DetectP50), number(m.DetectP99))
	t.row("re-route", number(m.ReroutP50), number(m.ReroutP99))
	t.row("restore", number(m.RestoreP50), number(m.RestoreP99))
	if err := t.write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable("CONTEXT", "RECOVERIES", "P50 MS", "P99 MS", "RESTORE P50 MS")
	for _, g := range r.ByContext {
		t.row(fmt.Sprintf("%d-%d", g.Above+1, g.UpTo), strconv.Itoa(g.Recoveries), number(g.P50), number(g.P99), number(g.RestoreP50))
	}
	if err := t.write(w); err != nil {
		return err
	}
	if r.Fault == bench.Slow {
		fmt.Fprintf(w, "\n%d of %d streams left the slow host; recovery is the longest pause while it was slow\n", r.Moved, r.Recoveries)
	}
	if r.Unrecorded > 0 {
		fmt.Fprintf(w, "\n%d streams through a victim have no recovery recorded\n", r.Unrecorded)
	}
	fmt.Fprintln(w)
	if err := printComparison(w, r); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nprocessors busy: %.0f %% while hosts broke, %.0f %% kevlard, %.0f %% fail-stop\n",
		r.BusyPct.Recoveries, r.BusyPct.Kevlard, r.BusyPct.Failstop)
	return err
}

func printComparison(w io.Writer, r bench.FailoverReport) error {
	t := newTable("MS", "FIRST TOKEN MEAN", "P99", "WHOLE STREAM MEAN", "P99", "ERRORS", "RESTARTS")
	row := func(name string, o bench.Outcome) {
		t.row(name, fmt.Sprintf("%.1f", o.TTFT.Mean), fmt.Sprintf("%.1f", o.TTFT.P99), fmt.Sprintf("%.0f", o.Latency.Mean), fmt.Sprintf("%.0f", o.Latency.P99),
			strconv.Itoa(o.Errors), strconv.Itoa(o.Restarts))
	}
	row("kevlard", r.Kevlard)
	if r.Failstop == nil {
		return t.write(w)
	}
	row("fail-stop", *r.Failstop)
	t.row("ratio", fmt.Sprintf("%.2f", r.Ratio.TTFTMean), fmt.Sprintf("%.2f", r.Ratio.TTFTP99), fmt.Sprintf("%.2f", r.Ratio.LatencyMean), fmt.Sprintf("%.2f", r.Ratio.LatencyP99), "", "")
	if err := t.write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "(both under the same %d faults, each out for %g s; fail-stop answers that began anew show their text after %.0f ms mean, %.0f p99)\n",
		r.CompareFaults, r.RestartS, r.Failstop.TTFTAnswer.Mean, r.Failstop.TTFTAnswer.P99)
	return err
}
