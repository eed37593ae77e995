package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// clockAnswer answers methodClock, in JSON.
type clockAnswer struct {
	UnixNS int64 `json:"unix_ns"`
}

// Clocks asks every member for its time. Only people read the answer: nothing decides by
// comparing clocks. Members that do not answer within askTimeout are named as
// unreachable.
func (d *Daemon) Clocks(ctx context.Context) report.Clocks {
	out := report.Clocks{Clocks: []report.Clock{}}
	out.Unreachable = askMembers(ctx, d, "clock", d.askClock, func(c report.Clock) { out.Clocks = append(out.Clocks, c) })
	slices.SortFunc(out.Clocks, func(a, b report.Clock) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// askClock asks clockAsks times and takes the quickest answer, which tells most.
func (d *Daemon) askClock(ctx context.Context, n kevlard.NodeID) (report.Clock, error) {
	var best report.Clock
	for i := range clockAsks {
		sent := time.Now()
		b, err := d.mesh.Call(ctx, n, methodClock, nil)
		got := time.Now()
		if err != nil && i > 0 {
			break // one answer is enough
		}
		if err != nil {
			return best, err
		}
		var a clockAnswer
		if err := readCall(fmt.Sprintf("the time of node %s", n), b, &a); err != nil {
			return best, err
		}
		if c := compareClocks(sent, got, time.Unix(0, a.UnixNS)); i == 0 || c.WithinMS < best.WithinMS {
			best = c
		}
	}
	best.Node = string(n)
	return best, nil
}

// compareClocks takes theirs for the middle between sent and got; where it really lies
// between them is what the offset may be wrong by.
func compareClocks(sent, got, theirs time.Time) report.Clock {
	// A round trip is measured by the monotonic clock, which a step of ours does not move.
	half := got.Sub(sent) / 2
	return report.Clock{OffsetMS: millis(theirs.Sub(sent.Add(half))), WithinMS: millis(half)}
}

// answerClock serves methodClock.
func answerClock() ([]byte, error) {
	return json.Marshal(clockAnswer{UnixNS: time.Now().UnixNano()})
}
