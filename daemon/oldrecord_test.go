package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership"
)

// TestRecordsOfOthers serves, as a node's record, what that node did not sign now: another's,
// its own under another name, and its own of former times.
func TestRecordsOfOthers(t *testing.T) {
	key, id := newKey(t, 1)
	strange, _ := newKey(t, 2)
	var served []byte
	pull := func(context.Context, kevlard.NodeID) ([]byte, error) { return served, nil }
	reports := 0
	report := func(string, kevlard.NodeID, string, string) { reports++ }
	r, err := newRecords(record{Node: "me", Boot: "m", Version: 1}, key, pull, report, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := someRecord()
	member := membership.Member{Name: now.Node, State: membership.StateAlive, Meta: membership.Meta{Peer: id, Boot: now.Boot, Record: now.Version, Mesh: "127.0.0.1:1"}}
	edited := func(edit func(*record)) record {
		rec := someRecord()
		edit(&rec)
		return rec
	}
	older := edited(func(r *record) { r.Version--; r.Stages = nil })
	for _, c := range []struct {
		name     string
		rec      record
		stranger bool
		refused  string // "": it is well signed
		stages   int    // of the record believed afterwards
		paced    bool   // it is not asked for again at once
	}{
		{"signed by another node's key", now, true, "not signed by peer", 0, true},
		{"under another name", edited(func(r *record) { r.Node = "node-9" }), false, "it is of node", 0, true},
		{"of another life, before any", edited(func(r *record) { r.Boot = "01A"; r.Version = 99 }), false, "", 0, true},
		{"its own", now, false, "", 2, false},
		{"older", older, false, "", 2, true},
	} {
		by := key
		if c.stranger {
			by = strange
		}
		if served, err = r.codec.seal(c.rec, by); err != nil {
			t.Fatal(err)
		}
		r.refresh([]membership.Member{member}, time.Now().Add(time.Hour), func(membership.Member) {})
		before := reports
		p := r.fetch(t.Context(), member, make(chan struct{}, 1))
		if (p.err != nil) != (c.refused != "") || p.err != nil && (!errors.Is(p.err, errRecord) || !strings.Contains(p.err.Error(), c.refused)) {
			t.Errorf("%s: %v, want %q", c.name, p.err, c.refused)
		}
		r.take(p)
		if (reports > before) != (c.refused != "") {
			t.Errorf("%s: %d events", c.name, reports-before)
		}
		if n := len(r.of(member).Stages); n != c.stages {
			t.Errorf("%s: %d stages are believed, want %d", c.name, n, c.stages)
		}
		if paced := r.others[member.Name].next.After(time.Now().Add(-time.Minute)); paced != c.paced {
			t.Errorf("%s: the next is asked for later: %v, want %v", c.name, paced, c.paced)
		}
	}
}
