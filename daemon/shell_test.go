package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
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
	s := &Stream{id: "s", max: 100, fresh: true, more: make(chan struct{}, 1), cancel: func() { t.Error("an ended session was cancelled") }}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	cancel(gone)
	if _, err := s.Next(ctx); !errors.Is(err, gone) {
		t.Errorf("error %v, want the context's cause", err)
	}
	for i := range 100 {
		if first := s.emit(kevlard.Token(i), &kevlard.Logprobs{Chosen: -float32(i)}); first != (i == 0) {
			t.Errorf("token %d is the first: %v", i, first)
		}
	}
	s.finish(Update{Reason: "length"})
	u, err := s.Next(t.Context())
	if err != nil || len(u.Tokens) != 100 || len(u.Logprobs) != 100 || u.Logprobs[99].Chosen != -99 || !u.Done || u.Reason != "length" {
		t.Errorf("update %+v, %v", u, err)
	}
	if u, err = s.Next(t.Context()); err != nil || !u.Done || len(u.Tokens) != 0 || len(u.Logprobs) != 0 {
		t.Errorf("after the end: %+v, %v", u, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// nameOf gives every other stream a name.
func nameOf(i int) kevlard.SessionID {
	if i%2 == 0 {
		return ""
	}
	return kevlard.SessionID(fmt.Sprintf("n%d", i))
}

func TestStreamTable(t *testing.T) {
	table := newStreams()
	for i := range maxStreams {
		if f := table.add(&Stream{id: kevlard.SessionID(fmt.Sprint(i)), name: nameOf(i), more: make(chan struct{}, 1)}); f != nil {
			t.Fatal(f)
		}
	}
	if f := table.add(&Stream{id: "another", name: "n7"}); f == nil || f.Status != 409 {
		t.Errorf("a second stream of a name: %v", f)
	}
	if f := table.add(&Stream{id: "one more"}); f == nil || f.Status != 429 {
		t.Errorf("a stream too many: %v", f)
	}
	s := table.remove("7")
	if f := table.add(&Stream{id: "another", name: "n7", more: make(chan struct{}, 1)}); f != nil {
		t.Errorf("a name that is free again: %v", f)
	}
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
		d.sent("n1", mesh.ErrNotConnected, "s")
	}
	if n := drain(); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	d.sent("n1", nil)
	d.sent("n1", mesh.ErrNoPeer)
	if n := drain(); n != 1 {
		t.Errorf("%d reports after a send that went well, want 1", n)
	}
	if e, _ := d.events.after(0, time.Time{}); len(e) != 0 {
		t.Errorf("events %+v of what is ordinary", e)
	}
}

// TestUnsentNamesItsSessions wants a full queue and a size to be told for each
// session, and not to be taken for a lost connection.
func TestUnsentNamesItsSessions(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want node.SendCause
	}{
		"full":     {fmt.Errorf("data to node n1: %w", mesh.ErrQueueFull), node.SendFull},
		"too long": {fmt.Errorf("data frame: %w", mesh.ErrTooLarge), node.SendOversize},
		"codec":    {fmt.Errorf("%w: 2 MiB", errEncode), node.SendOversize},
	} {
		d := &Daemon{unsendable: map[kevlard.NodeID]bool{}, events: newEventLog()}
		var got []node.Event
		for range 2 { // both times
			d.sent("n1", c.err, "a", "", "b")
			for ev, ok := d.own.pop(); ok; ev, ok = d.own.pop() {
				got = append(got, ev)
			}
		}
		a, b := node.SendFailed{Node: "n1", Cause: c.want, Session: "a"}, node.SendFailed{Node: "n1", Cause: c.want, Session: "b"}
		if want := []node.Event{a, b, a, b}; !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if e, _ := d.events.after(0, time.Time{}); len(e) != 1 || e[0].Type != "send-failed" {
			t.Errorf("%s: events %+v, want one", name, e)
		}
	}
}

// TestSessionOfMessages sends what is too large for the codec and wants its session.
func TestSessionOfMessages(t *testing.T) {
	d := &Daemon{unsendable: map[kevlard.NodeID]bool{}, events: newEventLog(), codec: protocol.NewCodec()}
	huge := make([]kevlard.Token, 1<<20)
	for i := range huge {
		huge[i] = 1 << 30 // five bytes each
	}
	d.send(node.Send{To: "n1", Message: protocol.Prepare{Session: "a", Tokens: huge}})
	if ev, _ := d.own.pop(); ev != (node.SendFailed{Node: "n1", Cause: node.SendOversize, Session: "a"}) {
		t.Errorf("an oversize prepare: %+v", ev)
	}
	d.sendFrame(node.SendFrame{To: "n1", Frame: protocol.Frame{Items: []protocol.Item{{Session: "b", Tokens: huge}}}})
	if ev, _ := d.own.pop(); ev != (node.SendFailed{Node: "n1", Cause: node.SendOversize, Session: "b"}) {
		t.Errorf("an oversize frame: %+v", ev)
	}
	for _, m := range []protocol.Message{
		protocol.Prepare{Session: "s"},
		protocol.Prepared{Session: "s"},
		protocol.Close{Session: "s"},
		protocol.Refused{Session: "s"},
		protocol.Step{Session: "s"},
		protocol.Probe{Session: "s"},
		protocol.Probed{Session: "s"},
		protocol.Lost{Session: "s"},
	} {
		if got := sessionOf(m); got != "s" {
			t.Errorf("%T: session %q", m, got)
		}
	}
	if got := sessionOf(protocol.Ping{}) + sessionOf(protocol.Renew{}); got != "" {
		t.Errorf("messages of the link are about session %q", got)
	}
}

// TestFrameBytesHoldBackTheSender fills the inbox's bytes with few frames.
func TestFrameBytesHoldBackTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{inbox: make(chan node.Event, inboxSize), ended: make(chan struct{}), frames: semaphore.NewWeighted(maxFrameBytes)}
		const large = maxFrameBytes / 4
		for range 4 {
			if !d.postFrame(node.Arrived{From: "n1"}, large) {
				t.Fatal("postFrame gave up")
			}
		}
		results := make(chan bool, 2)
		for range 2 {
			go func() { results <- d.postFrame(node.Arrived{From: "n2"}, large) }()
		}
		synctest.Wait()
		if len(results) != 0 || len(d.inbox) != 4 {
			t.Errorf("%d frames in the inbox, want 4", len(d.inbox))
		}
		if !d.post(node.Wake{}) {
			t.Error("what has no bytes was held back too")
		}
		if ev := d.release(<-d.inbox); !reflect.DeepEqual(ev, node.Arrived{From: "n1"}) {
			t.Errorf("the loop gets %T %+v", ev, ev)
		}
		if !<-results {
			t.Error("postFrame gave up although there was room")
		}
		close(d.ended)
		if <-results {
			t.Error("postFrame succeeded after the loop's end")
		}
	})
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
	before := topology.View{Nodes: []topology.Node{n("a", "1", topology.Alive), n("b", "1", topology.Alive), n("c", "1", topology.Dead), n("d", "1", topology.Alive), n("g", "1", topology.Draining), n("me", "1", topology.Alive)}}
	after := topology.View{Nodes: []topology.Node{n("a", "1", topology.Draining), n("b", "2", topology.Alive), n("c", "1", topology.Alive), n("e", "1", topology.Alive), n("f", "1", topology.Left), n("g", "1", topology.Alive), n("me", "1", topology.Draining)}}
	var got []string
	for _, e := range changes(before, after, "me") {
		got = append(got, e.Type+" "+string(e.Node))
	}
	want := []string{"node-draining a", "node-restart b", "node-join c", "node-join e", "node-undrained g", "node-forgotten d"}
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
		v, _ := r.view([]membership.Member{self, other}, 0)
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
	if _, changed := r.view([]membership.Member{self, other}, 0); changed {
		t.Error("an equal view counts as changed")
	}
	other.Meta.Record++
	pulls(1, "a new version")
	r.take(pulled{from: theirs.Node, rec: theirs})
	pulls(1, "gossip is ahead of the node")
	theirs.Version++
	r.take(pulled{from: theirs.Node, rec: theirs})
	r.hear(theirs.Node, "another", theirs.Version+1)
	pulls(0, "the word of another life")
	r.hear(theirs.Node, theirs.Boot, theirs.Version)
	pulls(0, "old news")
	r.hear(theirs.Node, theirs.Boot, theirs.Version+1)
	if len(r.news) != 1 {
		t.Error("news of a record wake nobody")
	}
	pulls(1, "its own word, ahead of gossip")
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
	if v, changed := r.publish(node.Publish{Stages: []topology.Stage{{State: topology.Ready}}}); v != 2 || !changed {
		t.Errorf("published version %d, changed %v", v, changed)
	}
	if v, changed := r.publish(node.Publish{Stages: []topology.Stage{{State: topology.Ready}}}); v != 2 || changed {
		t.Errorf("an equal record became version %d", v)
	}
}

// TestCompareClocks checks that a difference is taken from the middle of a round trip.
func TestCompareClocks(t *testing.T) {
	sent := time.Now()
	for _, c := range []struct {
		took, theirs time.Duration // after sent
		want         report.Clock
	}{
		{10 * time.Millisecond, 5 * time.Millisecond, report.Clock{OffsetMS: 0, WithinMS: 5}},
		{10 * time.Millisecond, 10 * time.Millisecond, report.Clock{OffsetMS: 5, WithinMS: 5}},
		{10 * time.Second, 3 * time.Second, report.Clock{OffsetMS: -2000, WithinMS: 5000}},
		{2 * time.Millisecond, time.Hour, report.Clock{OffsetMS: 3599999, WithinMS: 1}},
		{0, -time.Minute, report.Clock{OffsetMS: -60000}},
	} {
		// A peer's time comes without a monotonic reading.
		theirs := time.Unix(0, sent.Add(c.theirs).UnixNano())
		if got := compareClocks(sent, sent.Add(c.took), theirs); got != c.want {
			t.Errorf("%v, %v: %+v, want %+v", c.took, c.theirs, got, c.want)
		}
	}
}
