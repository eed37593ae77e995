package main

import (
	"errors"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

func TestCheckFaultNamesWhatIsAllowed(t *testing.T) {
	for _, good := range []string{faultKill, faultStop, faultEngineKill} {
		if err := checkFault(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"drop": "--fault drop is not built yet: want kill, stop or engine-kill",
		"x":    "--fault x: want kill, stop or engine-kill",
	} {
		if err := checkFault(bad); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", bad, err, want)
		}
	}
}

// ms is a time so many milliseconds after an arbitrary start.
func ms(n int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(n)) }

func pieces(at ...int) []load.Piece {
	var out []load.Piece
	for i, n := range at {
		out = append(out, load.Piece{At: ms(n), Text: "x", IDs: []int32{int32(i)}})
	}
	return out
}

// TestCheckComplete wants gaps found, except before the first fault.
func TestCheckComplete(t *testing.T) {
	broken := []breakage{{at: ms(100)}, {at: ms(200)}}
	for name, c := range map[string]struct {
		events []report.Event
		ok     bool
	}{
		"none":             {nil, true},
		"all":              {[]report.Event{{Seq: 1, At: ms(101)}, {Seq: 2, At: ms(102)}}, true},
		"forgotten before": {[]report.Event{{Seq: 7, At: ms(99)}, {Seq: 8, At: ms(300)}}, true},
		"forgotten after":  {[]report.Event{{Seq: 7, At: ms(101)}, {Seq: 8, At: ms(300)}}, false},
		"gap":              {[]report.Event{{Seq: 1, At: ms(1)}, {Seq: 3, At: ms(300)}}, false},
	} {
		if err := checkComplete(c.events, broken); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJudge has two streams through the victim, one of which ended before it
// missed the host, and one elsewhere that differs from its reference.
func TestJudge(t *testing.T) {
	right := load.Result{Session: "a", Sent: ms(0), Ended: ms(300), Pieces: pieces(10, 20, 220, 300), Finish: "length", Tokens: 4}
	done := load.Result{Session: "b", Sent: ms(0), Ended: ms(101), Pieces: pieces(50, 60, 70, 101), Finish: "length", Tokens: 4}
	wrong := load.Result{Session: "c", Sent: ms(0), Ended: ms(100), Pieces: pieces(10, 20), Finish: "length", Tokens: 2}
	failed := load.Result{Session: "d", Sent: ms(0), Ended: ms(100), Err: errors.New("cut")}
	b := failoverBench{references: []load.Result{right}, say: func(string, ...any) {}}
	r := b.judge(
		[]arrival{{0, right}, {0, done}, {0, wrong}, {0, failed}},
		[]breakage{{victim: "node-3", at: ms(100), sessions: []string{"a", "b"}}},
		[]report.Event{
			{At: ms(5), Type: "failover", Session: "a"}, // before the fault
			{At: ms(107), Type: "failover", Session: "a", Cause: "reset"},
			{At: ms(110), Type: "failover", Session: "c"},
			{At: ms(220), Type: "recovered", Session: "a", Failover: &report.Failover{AtToken: 2, DetectMS: 87, RerouteMS: 13, RestoreMS: 100}},
		},
	)
	if r.Requests != 4 || r.Kevlard.Errors != 1 || r.Kevlard.Mismatches != 1 || r.Recoveries != 1 || r.Unrecorded != 1 {
		t.Fatalf("requests %d, errors %d, mismatches %d, recoveries %d, unrecorded %d", r.Requests, r.Kevlard.Errors, r.Kevlard.Mismatches, r.Recoveries, r.Unrecorded)
	}
	want := recoveryOf{Victim: "node-3", Cause: "reset", AtToken: 2, GapMS: 200, DetectMS: 7, RerouteMS: 13, RestoreMS: 100}
	if r.Each[0] != want {
		t.Errorf("got %+v, want %+v", r.Each[0], want)
	}
	if r.RecoveryMS.P50 != 200 || r.RecoveryMS.DetectP50 != 7 || r.RecoveryMS.ReroutP50 != 13 || r.RecoveryMS.RestoreP50 != 100 {
		t.Errorf("quantiles %+v", r.RecoveryMS)
	}
	if r.Kevlard.Latency.P99 != 300 {
		t.Errorf("latency %+v", r.Kevlard.Latency)
	}
}
