package main

import (
	"strings"
	"testing"

	"github.com/kevlard/kevlard/internal/bench"
)

func TestParseContexts(t *testing.T) {
	if got, err := parseContexts("50..900"); err != nil || got != (bench.Contexts{Min: 50, Max: 900}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "50", "50..", "..900", "900..50", "0..5", "a..b"} {
		if _, err := parseContexts(bad); err == nil || err.Error() != "--context "+bad+": want MIN..MAX in tokens, such as 50..900" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestPrintFailover wants every part shown, with the comparison and without.
func TestPrintFailover(t *testing.T) {
	r := bench.FailoverReport{
		Faults: 3, Fault: bench.Slow, Recoveries: 2, Moved: 1, Unrecorded: 4, RestartS: 10,
		ByContext: []bench.Group{{Above: 49, UpTo: 200, Recoveries: 2, P50: 12.5}},
		Kevlard:   bench.Outcome{TTFT: bench.MeanP99{Mean: 7.7}},
	}
	var alone, compared strings.Builder
	if err := printFailover(&alone, r); err != nil {
		t.Fatal(err)
	}
	r.Failstop, r.Ratio = &bench.Outcome{Restarts: 9}, &bench.Ratios{LatencyP99: 3.25}
	if err := printFailover(&compared, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"50-200", "12.5", "1 of 2 streams left the slow host", "4 streams through a victim", "7.7"} {
		if !strings.Contains(alone.String(), want) || !strings.Contains(compared.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(alone.String(), "fail-stop  ") || !strings.Contains(compared.String(), "3.25") {
		t.Errorf("alone:\n%s\ncompared:\n%s", alone.String(), compared.String())
	}
}

func TestPrintOverhead(t *testing.T) {
	var out strings.Builder
	r := bench.OverheadReport{
		LatencyMeanPct: 1.25, LatencyCI95: [2]float64{-0.5, 3}, SaturatedPairs: 1, ReplicatedBytes: 2e9, BytesPerToken: 24576, BytesExpected: 24577,
		CPUSecondsGB: 3.5, CPU: bench.OverheadCPU{Receiver: bench.RoleCPU{Daemon: 0.75}},
	}
	if err := printOverhead(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"+1.25 %", "-0.50 to +3.00 %", "tok/s", "24576", "24577", "3.50 s for each GB", "0.75"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
