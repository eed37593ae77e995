package main

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

const (
	// muchClockError is what makes logs of several hosts hard to read together.
	muchClockError = time.Second
	// muchSkewMS is the difference between two hosts, in milliseconds, that does.
	muchSkewMS = 500
)

// askClocks waits longer than the other questions do: the daemon asks all peers.
func askClocks(ctx context.Context, client *api.Client) (report.Clocks, error) {
	ctx, cancel := context.WithTimeout(ctx, clocksTimeout)
	defer cancel()
	return client.Clocks(ctx)
}

// checkClock only reports: no decision compares the clocks of two hosts.
func (d *doctor) checkClock(context.Context) []finding {
	const check, fix = "clock", "run chrony or systemd-timesyncd; nothing breaks without, but logs of several hosts are hard to read together"
	most, synchronised, err := d.probe.clock()
	switch {
	case err != nil:
		return one(check, statusWarn, "run doctor on the host itself: containers may forbid it", "%v", err)
	case !synchronised:
		return one(check, statusWarn, fix, "nothing keeps it right")
	case most > muchClockError:
		return one(check, statusWarn, fix, "it may be wrong by %v", most.Round(time.Millisecond))
	}
	return one(check, statusOK, "", "it is right within %v", most.Round(time.Millisecond))
}

// checkPeerClocks compares this clock with those of the peers, by the daemon's calls.
func (d *doctor) checkPeerClocks(context.Context) []finding {
	const (
		check = "skew"
		fix   = "run chrony or systemd-timesyncd on both hosts (chronyc tracking, timedatectl say which is wrong); nothing breaks without, but logs are hard to read together"
	)
	switch {
	case d.status == nil:
		return nil
	case d.unclear != nil:
		return one(check, statusWarn, "run the same version of daemon and program, and see journalctl -u kevlard", "the daemon did not compare its clock with those of others: %v", d.unclear)
	}
	var out []finding
	worst := 0.0
	for _, c := range d.clocks.Clocks {
		off := math.Abs(c.OffsetMS)
		side := "ahead of"
		if c.OffsetMS < 0 {
			side = "behind"
		}
		switch {
		case off-c.WithinMS > muchSkewMS:
			out = append(out, one(check, statusWarn, fix, "the clock of %s is %s %s this one", c.Node, inMS(off), side)...)
		case off+c.WithinMS > muchSkewMS: // a slow answer tells nothing
			out = append(out, one(check, statusWarn, "run doctor again when both hosts are less busy", "%s took %s to tell its time: its clock cannot be compared", c.Node, inMS(2*c.WithinMS))...)
		default:
			worst = max(worst, off+c.WithinMS)
		}
	}
	if len(d.clocks.Unreachable) > 0 {
		out = append(out, one(check, statusWarn, "see the findings about peers; builds before this one cannot tell their time", "no time from %s", strings.Join(d.clocks.Unreachable, ", "))...)
	}
	if len(out) == 0 && len(d.clocks.Clocks) > 0 {
		return one(check, statusOK, "", "the clocks of %d peers differ from this one by at most %s", len(d.clocks.Clocks), inMS(worst))
	}
	return out
}

// inMS writes milliseconds.
func inMS(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond)
}
