package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

func TestEventLogForgetsTheOldest(t *testing.T) {
	l := newEventLog()
	const n = eventLogSize + 100
	for i := range n {
		l.add(report.Event{At: time.Unix(int64(i), 0)})
	}
	all, _ := l.after(0, time.Time{})
	if len(all) != eventLogSize || all[0].Seq != 101 || all[len(all)-1].Seq != n {
		t.Fatalf("%d events from %d to %d, want the last %d", len(all), all[0].Seq, all[len(all)-1].Seq, eventLogSize)
	}
	if !slices.IsSortedFunc(all, func(a, b report.Event) int { return int(a.Seq) - int(b.Seq) }) {
		t.Error("the events are out of order")
	}
	if some, _ := l.after(n-5, time.Time{}); len(some) != 5 {
		t.Errorf("%d events after the fifth last, want 5", len(some))
	}
	if some, _ := l.after(0, time.Unix(n-3, 0)); len(some) != 3 {
		t.Errorf("%d events of the last three seconds, want 3", len(some))
	}
}

func TestStreamKeepsAllTokensForASlowReader(t *testing.T) {
	s := &Stream{id: "s", max: 100, more: make(chan struct{}, 1), cancel: func() { t.Error("an ended session was cancelled") }}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	cancel(gone)
	if _, err := s.Next(ctx); !errors.Is(err, gone) {
		t.Errorf("error %v, want the context's cause", err)
	}
	for i := range 100 {
		if first := s.emit(kevlard.Token(i)); first != (i == 0) {
			t.Errorf("token %d is the first: %v", i, first)
		}
	}
	s.finish(Update{Reason: "length"})
	u, err := s.Next(t.Context())
	if err != nil || len(u.Tokens) != 100 || !u.Done || u.Reason != "length" {
		t.Errorf("update %+v, %v", u, err)
	}
	if u, err = s.Next(t.Context()); err != nil || !u.Done || len(u.Tokens) != 0 {
		t.Errorf("after the end: %+v, %v", u, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStreamTable(t *testing.T) {
	table := streams{byID: map[kevlard.SessionID]*Stream{}}
	for i := range maxStreams {
		if f := table.add(&Stream{id: kevlard.SessionID(fmt.Sprint(i)), more: make(chan struct{}, 1)}); f != nil {
			t.Fatal(f)
		}
	}
	if f := table.add(&Stream{id: "7"}); f == nil || f.Status != 409 {
		t.Errorf("a second stream of a session: %v", f)
	}
	if f := table.add(&Stream{id: "one more"}); f == nil || f.Status != 429 {
		t.Errorf("a stream too many: %v", f)
	}
	s := table.remove("7")
	rest := table.get("8")
	table.end()
	if s.final != nil || rest.final == nil || rest.final.Err.Code != "draining" {
		t.Error("the end must fail the streams that are left, and only those")
	}
	if f := table.add(&Stream{id: "late"}); f == nil || f.Status != 503 {
		t.Errorf("a stream after the end: %v", f)
	}
}

// TestUnreachableNodeIsReportedOnce sends to a node that is not connected: the
// machine may answer SendFailed with a message to the same node, for ever.
func TestUnreachableNodeIsReportedOnce(t *testing.T) {
	d := &Daemon{unsendable: map[kevlard.NodeID]bool{}, events: newEventLog()}
	drain := func() (n int) {
		for {
			if _, ok := d.own.pop(); !ok {
				return n
			}
			n++
		}
	}
	for range 3 {
		d.failed("n1", mesh.ErrNotConnected)
	}
	if n := drain(); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	d.failed("n1", nil)
	d.failed("n1", mesh.ErrQueueFull)
	if n := drain(); n != 1 {
		t.Errorf("%d reports after a send that went well, want 1", n)
	}
	if e, _ := d.events.after(0, time.Time{}); len(e) != 1 || e[0].Type != "send-failed" {
		t.Errorf("events %+v, want one of the full queue", e)
	}
}

// TestFullInboxHoldsBackTheSender fills the inbox and wants post to wait, and to
// give up when the loop ends.
func TestFullInboxHoldsBackTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{inbox: make(chan node.Event, inboxSize), ended: make(chan struct{})}
		for range inboxSize {
			if !d.post(node.Wake{}) {
				t.Fatal("post gave up")
			}
		}
		results := make(chan bool, 2)
		for range 2 {
			go func() { results <- d.post(node.Wake{}) }()
		}
		synctest.Wait()
		if len(results) != 0 {
			t.Error("post did not wait")
		}
		<-d.inbox
		if !<-results {
			t.Error("post gave up although there was room")
		}
		close(d.ended)
		if <-results {
			t.Error("post succeeded after the loop's end")
		}
	})
}

func TestCauses(t *testing.T) {
	for want, err := range map[string]error{
		"dead":      fmt.Errorf("x: %w", mesh.ErrRemoved),
		"keepalive": fmt.Errorf("x: %w", context.DeadlineExceeded), // a net.Error with Timeout
		"reset":     errors.New("connection reset by peer"),
	} {
		if got := cause(err); got != want {
			t.Errorf("%v: cause %s, want %s", err, got, want)
		}
	}
}

func TestChanges(t *testing.T) {
	n := func(id kevlard.NodeID, boot kevlard.BootID, s topology.State) topology.Node {
		return topology.Node{ID: id, Boot: boot, State: s}
	}
	before := topology.View{Nodes: []topology.Node{n("a", "1", topology.Alive), n("b", "1", topology.Alive), n("c", "1", topology.Dead), n("d", "1", topology.Alive), n("me", "1", topology.Alive)}}
	after := topology.View{Nodes: []topology.Node{n("a", "1", topology.Draining), n("b", "2", topology.Alive), n("c", "1", topology.Alive), n("e", "1", topology.Alive), n("f", "1", topology.Left), n("me", "1", topology.Draining)}}
	var got []string
	for _, e := range changes(before, after, "me") {
		got = append(got, e.Type+" "+string(e.Node))
	}
	want := []string{"node-draining a", "node-restart b", "node-join c", "node-join e", "node-forgotten d"}
	if !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

// TestRecordsFollowGossip drives the records without a network: versions, boots,
// failures, forgotten nodes.
func TestRecordsFollowGossip(t *testing.T) {
	key, id := newKey(t, 1)
	self := membership.Member{Name: "me", State: membership.StateAlive, Meta: membership.Meta{Boot: "m", Record: 1}}
	r, err := newRecords(record{Node: "me", Boot: "m", Version: 1}, key, nil, func(string, kevlard.NodeID, string, string) {}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	theirs := someRecord()
	other := membership.Member{Name: theirs.Node, State: membership.StateAlive, Meta: membership.Meta{Peer: id, Boot: theirs.Boot, Record: theirs.Version, Mesh: "127.0.0.1:1"}}
	started := 0
	refresh := func() {
		r.refresh([]membership.Member{self, other}, time.Now().Add(time.Minute), func(membership.Member) { started++ })
	}
	pulls := func(want int, why string) {
		t.Helper()
		refresh()
		refresh() // one at a time
		if started != want {
			t.Fatalf("%s: %d pulls, want %d", why, started, want)
		}
		started = 0
	}
	stages := func() int {
		v, _ := r.view([]membership.Member{self, other})
		n, _ := v.Node(theirs.Node)
		return len(n.Stages)
	}
	pulls(1, "a new node")
	if stages() != 0 {
		t.Error("stages before the first record")
	}
	r.take(pulled{from: theirs.Node, err: errors.New("timeout")})
	pulls(1, "after a failure")
	r.take(pulled{from: theirs.Node, rec: theirs})
	pulls(0, "up to date")
	if stages() != 2 {
		t.Error("the record's stages are not in the view")
	}
	if _, changed := r.view([]membership.Member{self, other}); changed {
		t.Error("an equal view counts as changed")
	}
	other.Meta.Record++
	pulls(1, "a new version")
	r.take(pulled{from: theirs.Node, rec: theirs})
	pulls(1, "gossip is ahead of the node")
	theirs.Version++
	r.take(pulled{from: theirs.Node, rec: theirs})
	other.Meta.Boot, other.Meta.Record = "another", 1
	if stages() != 0 {
		t.Error("a new boot is shown with the stages of the old one")
	}
	pulls(1, "a new boot")
	r.take(pulled{from: theirs.Node, err: errors.New("timeout")})
	other.State = membership.StateDead
	pulls(0, "a dead node")
	if stages() != 2 {
		t.Error("what the dead node held is not shown")
	}
	if a := r.addresses([]membership.Member{self, other}); len(a) != 0 {
		t.Errorf("the mesh is to connect %+v", a)
	}
	r.refresh([]membership.Member{self}, time.Now(), nil)
	if len(r.others) != 0 {
		t.Error("a node that the ring forgot is still held")
	}
	if v, changed := r.publish([]topology.Stage{{State: topology.Ready}}, false); v != 2 || !changed {
		t.Errorf("published version %d, changed %v", v, changed)
	}
	if v, changed := r.publish([]topology.Stage{{State: topology.Ready}}, false); v != 2 || changed {
		t.Errorf("an equal record became version %d", v)
	}
}
