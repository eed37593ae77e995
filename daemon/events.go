package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
)

// eventLog is the last eventLogSize events. Adding never blocks.
type eventLog struct {
	mu   sync.Mutex
	ring []report.Event // oldest first, from next on once it is full
	next int
	seq  uint64
	more chan struct{} // closed and replaced with each event
}

func newEventLog() *eventLog { return &eventLog{more: make(chan struct{})} }

func (l *eventLog) add(e report.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	if len(l.ring) < eventLogSize {
		l.ring = append(l.ring, e)
	} else {
		l.ring[l.next] = e
		l.next = (l.next + 1) % eventLogSize
	}
	close(l.more)
	l.more = make(chan struct{})
}

// after returns the events with a sequence number over seq that are not older
// than since, and a channel that closes with the next one.
func (l *eventLog) after(seq uint64, since time.Time) ([]report.Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []report.Event{}
	for i := range l.ring {
		e := l.ring[(l.next+i)%len(l.ring)]
		if e.Seq > seq && !e.At.Before(since) {
			out = append(out, e)
		}
	}
	return out, l.more
}

// follow calls yield for each event from since on, the remembered ones first,
// until ctx ends (which is no error) or yield fails.
func (l *eventLog) follow(ctx context.Context, since time.Time, yield func(report.Event) error) error {
	seq := uint64(0)
	for {
		events, more := l.after(seq, since)
		for _, e := range events {
			if err := yield(e); err != nil {
				return err
			}
			seq = e.Seq
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}

// Events returns the remembered events from since on, oldest first.
func (d *Daemon) Events(since time.Time) []report.Event {
	out, _ := d.events.after(0, since)
	return out
}

// Follow calls yield for each event from since on, the remembered ones first, then
// each as it comes, until ctx ends, which is no error, or yield fails. A reader
// that is slower than the log for eventLogSize events misses some, which the gap
// in Seq shows.
func (d *Daemon) Follow(ctx context.Context, since time.Time, yield func(report.Event) error) error {
	return d.events.follow(ctx, since, yield)
}

// logEvents writes the event log to slog. The loop itself never logs, because a
// log's reader may block.
func (d *Daemon) logEvents(ctx context.Context) error {
	return d.events.follow(ctx, time.Time{}, func(e report.Event) error {
		attrs := make([]slog.Attr, 0, 8)
		for _, a := range []struct{ key, value string }{
			{"node", e.Node}, {"peer", e.Peer}, {"session", e.Session}, {"stage", e.Stage}, {"cause", e.Cause}, {"detail", e.Detail},
		} {
			if a.value != "" {
				attrs = append(attrs, slog.String(a.key, a.value))
			}
		}
		if e.Term != 0 {
			attrs = append(attrs, slog.Uint64("term", e.Term))
		}
		if e.TookMS != 0 {
			attrs = append(attrs, slog.Float64("took_ms", e.TookMS))
		}
		d.log.LogAttrs(ctx, level(e.Type), e.Type, attrs...)
		return nil
	})
}

// level says how loud an event is.
func level(typ string) slog.Level {
	switch typ {
	case "engine-exit", "engine-kill", "engine-stall", "failover", "poison", "silent", "self-doubt", "bad-message", "record-refused", "audit-differs", "distrusted", "node-dead", "stage-slow", "gpu-xid", "gpu-avoid", "gpu-drain", "device-missing":
		return slog.LevelWarn
	case "refused", "lease-expired", "owner-gone",
		"refused-peer": // the mesh and the ring have warned of it, with what to do
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
