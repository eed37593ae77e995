package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/kevlard/kevlard/internal/bench"
	"github.com/kevlard/kevlard/internal/devmesh/netfault"
)

// TestBenchFailover runs the bench with few faults: both parts, and every figure that
// scripts read is there.
func TestBenchFailover(t *testing.T) {
	faults := []string{"kill", "drop"}
	if long() {
		faults = []string{"kill", "stop", "drop", "engine-kill", "slow"}
	}
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			if fault == "drop" {
				if err := netfault.Available(); err != nil {
					t.Skip(err)
				}
			}
			compared := 1
			if fault == "drop" && !long() {
				compared = 0
			}
			out, errs, code := kevlard(t, "bench", "failover", "--fault", fault, "--nodes", "4", "--stages", "2", "--faults", "2",
				"--compare-faults", strconv.Itoa(compared), "--failstop-restart", "1s", "--calm", "1s", "--hold", "1s", "--context", "50..200", "--tokens", "100", "-o", "json")
			if code != 0 {
				t.Fatalf("exit %d: %s", code, errs)
			}
			var r bench.FailoverReport
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if r.Faults != 2+compared || r.Recoveries < 2 || len(r.Each) != r.Recoveries || r.Unrecorded != 0 {
				t.Errorf("%d faults, %d recoveries, %d unrecorded: %s", r.Faults, r.Recoveries, r.Unrecorded, errs)
			}
			if r.RecoveryMS.P50 <= 0 || r.Kevlard.Latency.Mean <= 0 || r.Kevlard.Errors+r.Kevlard.Mismatches != 0 {
				t.Errorf("figures are missing or wrong: %s", out)
			}
			if compared > 0 && (r.Failstop == nil || r.Failstop.Latency.Mean <= 0 || r.Ratio.LatencyMean <= 0 || r.Failstop.Errors+r.Failstop.Mismatches != 0) {
				t.Errorf("the comparison is missing or wrong: %s", out)
			}
			recoveries := 0
			for _, g := range r.ByContext {
				recoveries += g.Recoveries
			}
			if recoveries != r.Recoveries {
				t.Errorf("%d recoveries by context, %d in all", recoveries, r.Recoveries)
			}
		})
	}
}

// TestBenchFailoverRefusesContexts wants contexts that do not fit refused before
// anything is measured, as bad usage.
func TestBenchFailoverRefusesContexts(t *testing.T) {
	_, errs, code := kevlard(t, "bench", "failover", "--nodes", "4", "--stages", "2", "--context", "50..1020")
	if want := "kevlard: --context: contexts from 50 to 1020: want 12 <= MIN <= MAX <= 1000 (the model's context is 1024, and 24 tokens must still fit)\n"; code != 2 || errs != want {
		t.Errorf("exit %d, %q, want 2, %q", code, errs, want)
	}
}

// TestBenchDropNeedsRights wants the missing thing named.
func TestBenchDropNeedsRights(t *testing.T) {
	err := netfault.Available()
	if err == nil {
		if os.Geteuid() != 0 {
			t.Fatal("available without root")
		}
		t.Skip("root with iptables: nothing is missing here")
	}
	_, errs, code := kevlard(t, "bench", "failover", "--fault", "drop")
	want := 1
	if errors.Is(err, netfault.ErrNotPermitted) {
		want = 5
	}
	if code != want || errs != "kevlard: --fault drop: "+err.Error()+"\n" {
		t.Errorf("exit %d, %q, want %d", code, errs, want)
	}
}

// TestBenchOverhead measures nothing against nothing.
func TestBenchOverhead(t *testing.T) {
	out, errs, code := kevlard(t, "bench", "overhead", "--model", "fairy", "--nodes", "2", "--stages", "2", "--standbys", "0", "--pairs", "3",
		"--streams", "1", "--interval", "500ms", "--tokens", "20", "--saturated-pairs", "1", "--concurrency", "2", "-o", "json")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var r bench.OverheadReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.BytesExpected != 8*2*4*32*4 || r.ReplicatedBytes != 0 {
		t.Errorf("%d bytes a token expected, %v replicated", r.BytesExpected, r.ReplicatedBytes)
	}
	if r.Off.LatencyMS.Mean <= 0 || r.On.LatencyMS.Mean <= 0 || r.On.TokPerSec <= 0 || r.Off.TokPerSec <= 0 || r.LatencyCI95[0] > r.LatencyCI95[1] {
		t.Errorf("figures are missing: %s", out)
	}
}
