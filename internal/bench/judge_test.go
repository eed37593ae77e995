package bench

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

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

// result is a stream that showed a token at each of the times.
func result(session string, at ...int) load.Result {
	return load.Result{Session: session, Sent: ms(0), Ended: ms(at[len(at)-1]), Pieces: pieces(at...), Finish: "length", Tokens: len(at)}
}

func arrivals(results ...load.Result) []arrival {
	var out []arrival
	for _, r := range results {
		out = append(out, arrival{result: r, firstShown: r.FirstToken()})
	}
	return out
}

// TestOutcome has a stream that is right, one that differs, one that failed and one
// that began anew.
func TestOutcome(t *testing.T) {
	right := result("a", 10, 20, 220, 300)
	failed := load.Result{Session: "c", Sent: ms(0), Ended: ms(100), Err: errors.New("cut")}
	again := result("d", 400, 410, 420, 500)
	streams := arrivals(right, result("b", 10, 20), failed, again)
	streams[3].firstShown, streams[3].restarts = 30*time.Millisecond, 2
	var said []string
	got := outcome(streams, []load.Result{right}, func(f string, a ...any) { said = append(said, fmt.Sprintf(f, a...)) })
	want := Outcome{
		Requests: 4, Errors: 1, Mismatches: 1, Restarts: 2,
		TTFT: MeanP99{50.0 / 3, 30}, TTFTAnswer: MeanP99{140, 400}, Latency: MeanP99{820.0 / 3, 500},
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s := strings.Join(said, "; "); s != "stream b differs from its unbroken run; stream c: cut" {
		t.Errorf("said %q", s)
	}
}

func TestRatiosAreOfKevlardToFailStop(t *testing.T) {
	got := ratios(Outcome{TTFT: MeanP99{1, 2}, Latency: MeanP99{3, 4}}, Outcome{TTFT: MeanP99{2, 8}, Latency: MeanP99{4, 0}})
	if want := (Ratios{0.5, 0.25, 0.75, 0}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// TestJudge has two faults. Through the first victim ran one stream that went on, one
// that ended without having missed it, and one that only the second fault hit.
func TestJudge(t *testing.T) {
	broken := []breakage{
		{victim: "node-3", at: ms(100), sessions: map[string]progress{"a": {prompt: 300, shown: 2}, "b": {shown: 3, most: 4}, "c": {shown: 1, most: 50}}},
		{victim: "node-4", at: ms(500), sessions: map[string]progress{"c": {prompt: 40, shown: 5}}},
	}
	events := []report.Event{
		{At: ms(5), Type: "failover", Session: "a"}, // before the fault
		{At: ms(107), Type: "failover", Session: "a", Cause: "reset"},
		{At: ms(110), Type: "failover", Session: "x"},
		{At: ms(111), Type: "refused", Session: "a", Peer: "node-7", Cause: "link"},
		{At: ms(220), Type: "recovered", Session: "a", Failover: &report.Failover{AtToken: 2, DetectMS: 87, RerouteMS: 13, RestoreMS: 100}},
		{At: ms(510), Type: "failover", Session: "c", Cause: "silence"},
		{At: ms(540), Type: "recovered", Session: "c", Failover: &report.Failover{AtToken: 6, RerouteMS: 10, RestoreMS: 20}},
	}
	var said []string
	r := FailoverReport{Fault: Kill}
	judge(&r, Contexts{50, 900}, arrivals(result("a", 10, 20, 220, 300), result("b", 50, 60, 70, 101), result("c", 480, 545, 600)),
		broken, events, func(f string, a ...any) { said = append(said, fmt.Sprintf(f, a...)) })
	want := []Recovery{
		{Victim: "node-3", Session: "a", Cause: "reset", AtToken: 2, Context: 302, GapMS: 200, DetectMS: 7, RerouteMS: 13, RestoreMS: 100, Refused: []string{"node-7 link"}},
		{Victim: "node-4", Session: "c", Cause: "silence", AtToken: 6, Context: 46, GapMS: 65, DetectMS: 10, RerouteMS: 10, RestoreMS: 20},
	}
	if !reflect.DeepEqual(r.Each, want) {
		t.Fatalf("got %+v, want %+v", r.Each, want)
	}
	if r.Recoveries != 2 || r.Moved != 2 || r.Unrecorded != 2 || len(said) != 2 {
		t.Errorf("recoveries %d, moved %d, unrecorded %d: %q", r.Recoveries, r.Moved, r.Unrecorded, said)
	}
	if r.RecoveryMS.P50 != 65 || r.RecoveryMS.Max != 200 || r.RecoveryMS.RestoreP50 != 20 || r.RecoveryMS.DetectP99 != 10 {
		t.Errorf("quantiles %+v", r.RecoveryMS)
	}
	groups := []Group{{49, 200, 1, 65, 65, 20}, {200, 500, 1, 200, 200, 100}, {500, 900, 0, 0, 0, 0}}
	for i, g := range groups {
		if r.ByContext[i] != g {
			t.Errorf("group %d is %+v, want %+v", i, r.ByContext[i], g)
		}
	}
}

// TestJudgeSlow counts streams that stayed on the slow host by their longest pause.
func TestJudgeSlow(t *testing.T) {
	broken := []breakage{{victim: "node-1", at: ms(100), lifted: ms(400), sessions: map[string]progress{"a": {prompt: 90, shown: 20}}}}
	r := FailoverReport{Fault: Slow}
	judge(&r, Contexts{50, 900}, arrivals(result("a", 10, 110, 160, 250, 390, 900)), broken, nil, t.Errorf)
	want := Recovery{Victim: "node-1", Session: "a", AtToken: 20, Context: 110, GapMS: 140}
	if r.Recoveries != 1 || r.Moved != 0 || r.Unrecorded != 0 || !reflect.DeepEqual(r.Each, []Recovery{want}) {
		t.Errorf("got %+v", r)
	}
}

func TestWhyUnrecorded(t *testing.T) {
	fault := breakage{at: ms(100)}
	for want, c := range map[string]struct {
		got load.Result
		one Recovery
	}{
		"it failed 50ms after the fault": {load.Result{Err: errors.New("x"), Ended: ms(150)}, Recovery{}},
		"it left the host (reset), and the log does not say how it went on; it ended 50ms after the fault": {load.Result{Ended: ms(150)}, Recovery{Cause: "reset"}},
		"it never left the host; it had shown 3 of 9 tokens and ended 50ms after the fault":                {load.Result{Ended: ms(150)}, Recovery{}},
	} {
		if got := whyUnrecorded(fault, progress{shown: 3, most: 9}, c.got, c.one); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
