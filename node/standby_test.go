package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// streaming returns a rig that owns one session over n1 and n2, with copies at n3
// and n4.
func streaming(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, nil, "n1:0-1", "n2:1-2", "n3:0-1", "n4:1-2")
	r.m.cfg.Standbys = 1
	r.submit("s", 1, 2, 3)
	to, last := prepares(r.out, "s")
	if !slices.Equal(to, []kevlard.NodeID{"n1", "n2"}) || last.Standby != "n4" {
		t.Fatalf("prepared %v, the last with standby %q", to, last.Standby)
	}
	r.accept()
	return r
}

func TestStandbyGoesOn(t *testing.T) {
	r := streaming(t)
	r.say("n2", protocol.Step{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Next: 3, Sampled: true, Token: 7, Marks: []int{3, 3}})
	if s := r.m.Snapshot(r.now).Sessions[0]; !slices.Equal(s.Replicated, []int{3, 3}) || !slices.Equal(s.Standbys, []kevlard.NodeID{"n3", "n4"}) {
		t.Errorf("session %+v", s)
	}
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	to, last := prepares(r.out, "s")
	if !slices.Equal(to, []kevlard.NodeID{"n1", "n4"}) || last.Standby != "n3" {
		t.Fatalf("prepared %v, the last with standby %q: want the copy's holder, and a keeper for it", to, last.Standby)
	}
	for i, n := range to { // both hold all but the last token
		r.say(n, protocol.Prepared{Session: "s", Fence: last.Fence, Lo: i, Have: 3})
	}
	if f := effectsOf[SendFrame](r.out); len(f) != 1 || f[0].Frame.Items[0].Pos != 3 {
		t.Fatalf("goes on with %+v, want position 3", f)
	}
	// Back again, it becomes the standby of its old part.
	r.say("n4", protocol.Step{Session: "s", Fence: last.Fence, Next: 4, Sampled: true, Token: 8, Marks: []int{3, 0}})
	r.node("n2").Boot = "n2.2"
	r.see()
	r.step(PeerUp{Node: "n2", Boot: "n2.2"})
	if m := sent[protocol.Replicate](r.out)["n4"]; len(m) != 1 || m[0].Standby != "n2" || m[0].Lo != 1 {
		t.Errorf("sent %+v to n4, want n2 as its standby", m)
	}
}

func TestLostStandbyIsReplaced(t *testing.T) {
	r := streaming(t)
	n5 := topology.Node{ID: "n5", Boot: "n5.1", State: topology.Alive, Models: []topology.Model{model}, Stages: r.node("n4").Stages}
	r.view.Nodes = append(r.view.Nodes, n5)
	slices.SortFunc(r.view.Nodes, func(a, b topology.Node) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
	r.step(PeerUp{Node: "n5", Boot: "n5.1"})
	r.see()
	r.say("n2", protocol.StandbyLost{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Lo: 1, Standby: "n4", Cause: "slow"})
	if m := sent[protocol.Replicate](r.out)["n2"]; len(m) != 1 || m[0].Standby != "n5" {
		t.Errorf("sent %+v, want n5 as the new standby", m)
	}
	if len(reports(r.out, "standby-lost")) != 1 {
		t.Error("no event tells of it")
	}
}

func TestFinishClosesTheCopies(t *testing.T) {
	r := streaming(t)
	r.step(Cancel{Session: "s"})
	closed := sent[protocol.Close](r.out)
	for n, lo := range map[kevlard.NodeID]int{"n1": 0, "n2": 1, "n3": 0, "n4": 1} {
		if len(closed[n]) != 1 || closed[n][0].Lo != lo {
			t.Errorf("%s: closed %+v", n, closed[n])
		}
	}
}

// TestUnlikeStandbysAreRefused (K52): copies pass between equals only, and the
// refusal names both sides.
func TestUnlikeStandbysAreRefused(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 1}}, "n1:0-1")
	offer := protocol.Offer{
		Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Owner: "n1", OwnerBoot: "n1.1", Stage: r.m.stages[0].Key(),
		Class: "c", CellBytes: 64, Tokens: []kevlard.Token{1}, Positions: 5,
	}
	offer.Class = "other"
	r.say("n1", offer)
	if a := sent[protocol.Stored](r.out)["n1"]; len(a) != 1 || a[0].Refusal != protocol.RefusedNoStage || a[0].Detail != "numerics class other at the sender, c here" {
		t.Errorf("answers %+v", a)
	}
}

// TestKeeper: a node without the layers keeps the copy when nobody else has them,
// and whoever takes the stage over is told to fetch it there.
func TestKeeper(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:1-2", "n3", "n4:0-1")
	r.m.cfg.Standbys = 1
	r.submit("s", 1, 2, 3)
	_, last := prepares(r.out, "s")
	if last.Standby != "n3" {
		t.Fatalf("the copy of layer 1 goes to %q", last.Standby)
	}
	r.accept()
	r.say("n2", protocol.Step{Session: "s", Fence: last.Fence, Next: 3, Sampled: true, Token: 7, Marks: []int{3, 3}})
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	r.node("n2").Boot = "n2.2"
	r.step(PeerUp{Node: "n2", Boot: "n2.2"})
	r.see()
	out := append(slices.Clone(r.out), r.sleep(4*time.Second, "n1", "n2", "n3", "n4")...)
	to, last := prepares(out, "s")
	if len(to) < 2 || !slices.Equal(to[:2], []kevlard.NodeID{"n4", "n2"}) || last.Source != "n3" || last.Mark != 3 {
		t.Errorf("prepared %v, the last with source %q", to, last.Source)
	}
}

func TestKeeperSendsItsCopy(t *testing.T) {
	r := newRig(t, nil, "n1", "n2")
	key := kevlard.StageKey{Model: model.ID, Layers: kevlard.Layers{Lo: 0, Hi: 1}}
	fence := kevlard.Fence{Epoch: 1, Term: 1}
	tokens := []kevlard.Token{1, 2, 3, 4, 5}
	r.say("n1", protocol.Offer{
		Session: "s", Fence: fence, Owner: "n1", OwnerBoot: "n1.1", Stage: key, Class: "c", CellBytes: 8, Tokens: tokens, Positions: 9,
	})
	r.step(RowsArrived{From: "n1", Piece: 1, Rows: protocol.Rows{
		Session: "s", Fence: fence, Stage: key, Class: "c", CellBytes: 8, Tokens: tokens[:4], Sums: make([]uint64, 4),
	}, Intact: true})
	r.step(RowsStored{Piece: 1})
	r.say("n2", protocol.Fetch{Session: "s", Fence: fence, Stage: key, Class: "c", From: 1, Tokens: tokens})
	x := effectsOf[SendStored](r.out)
	if a := sent[protocol.Fetched](r.out)["n2"]; len(a) != 1 || a[0].Through != 4 || len(x) != 1 || x[0].To != "n2" || x[0].Rows.Pos != 1 || x[0].Rows.End() != 4 {
		t.Fatalf("answers %+v, sends %+v", a, x)
	}
	r.step(StoredSent{ID: x[0].ID, N: 3})
	if kv := r.m.Snapshot(r.now).KV; kv.Pins != 0 {
		t.Errorf("%d pins are left", kv.Pins)
	}
}

// keeper returns a node that keeps n tokens of a session, each position of so many bytes,
// and a message that asks for those from position from on.
func keeper(t testing.TB, n, cellBytes, from int) (*Machine, Received) {
	key := kevlard.StageKey{Model: model.ID, Layers: kevlard.Layers{Lo: 0, Hi: 1}}
	fence := kevlard.Fence{Epoch: 1, Term: 1}
	m := New(Config{Self: "o", Boot: "o.1", KV: index.Config{Bytes: 1 << 40}})
	m.Step(1, PeerUp{Node: "n1", Boot: "n1.1"}, nil)
	hear := func(msg protocol.Message) Received { return Received{From: "n1", Boot: "n1.1", Message: msg} }
	tokens := make([]kevlard.Token, n)
	for i := range tokens {
		tokens[i] = kevlard.Token(i * 7 % 1000)
	}
	m.Step(1, hear(protocol.Offer{
		Session: "s", Fence: fence, Owner: "n1", OwnerBoot: "n1.1", Stage: key, Class: "c", CellBytes: cellBytes, Tokens: tokens, Positions: n,
	}), nil)
	for at, piece := 0, uint64(1); at < n; at, piece = at+64, piece+1 {
		end := min(n, at+64)
		m.Step(1, RowsArrived{From: "n1", Piece: piece, Rows: protocol.Rows{
			Session: "s", Fence: fence, Stage: key, Class: "c", CellBytes: cellBytes, Pos: at, Tokens: tokens[at:end], Sums: make([]uint64, end-at),
		}, Intact: true}, nil)
		m.Step(1, RowsStored{Piece: piece}, nil)
	}
	return m, hear(protocol.Fetch{Session: "s", Fence: fence, Stage: key, Class: "c", From: from, Tokens: tokens})
}

// TestKeeperSendsPieces: they follow each other without a gap, cut where blocks end, and
// are given up one by one.
func TestKeeperSendsPieces(t *testing.T) {
	const n, from, cell = 1000, 45, fetchPiece / 64 // two blocks in a piece
	m, fetch := keeper(t, n, cell, from)
	x := effectsOf[SendStored](m.Step(1, fetch, nil))
	at := from
	for _, s := range x {
		positions := 0
		for _, r := range s.From {
			positions += r.N
		}
		if s.Rows.Pos != at || s.Rows.End() != at+positions || positions*cell > fetchPiece || s.Rows.End()%64 != 32 && s.Rows.End() != n {
			t.Errorf("a piece [%d,%d) with %d positions, want one from %d on", s.Rows.Pos, s.Rows.End(), positions, at)
		}
		at = s.Rows.End()
	}
	if at != n {
		t.Errorf("pieces end at %d, want %d", at, n)
	}
	for i, s := range x {
		if kv := m.Snapshot(1).KV; kv.Pins == 0 {
			t.Errorf("no pins are left after %d of %d pieces", i, len(x))
		}
		m.Step(1, StoredSent{ID: s.ID, N: len(s.Rows.Tokens)}, nil)
	}
	if kv := m.Snapshot(1).KV; kv.Pins != 0 {
		t.Errorf("%d pins are left", kv.Pins)
	}
}

// BenchmarkFetch sends 8192 positions in 256 pieces.
func BenchmarkFetch(b *testing.B) {
	m, fetch := keeper(b, 8192, fetchPiece/32, 0)
	for b.Loop() {
		for _, s := range effectsOf[SendStored](m.Step(1, fetch, nil)) {
			m.Step(1, StoredSent{ID: s.ID, N: len(s.Rows.Tokens)}, nil)
		}
	}
}

// TestKeeperRefuses: a keeper says what it does not have, and what it has but can't
// send, so that nobody waits for it.
func TestKeeperRefuses(t *testing.T) {
	r := newRig(t, nil, "n1", "n2")
	fetch := protocol.Fetch{
		Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 2}, Class: "c", From: 2, Tokens: []kevlard.Token{1, 2, 3, 4},
		Stage: kevlard.StageKey{Model: model.ID, Layers: kevlard.Layers{Lo: 0, Hi: 1}},
	}
	refused := func(want protocol.Fetched) {
		t.Helper()
		want.Session, want.Fence, want.Stage = fetch.Session, fetch.Fence, fetch.Stage
		if a := sent[protocol.Fetched](r.out)["n2"]; len(a) != 1 || a[0] != want || len(effectsOf[SendStored](r.out)) != 0 {
			t.Errorf("answers %+v, want %+v", a, want)
		}
	}
	r.say("n2", fetch)
	refused(protocol.Fetched{Through: 2, Refusal: protocol.RefusedUnknown, Detail: "nothing is kept from position 2 on"})
	unsent := StoredUnsent{To: "n2", Session: fetch.Session, Fence: fetch.Fence, Stage: fetch.Stage, From: 3, Cause: "why"}
	r.step(unsent)
	refused(protocol.Fetched{Through: 3, Refusal: protocol.RefusedLink, Detail: "why"})
	unsent.Damaged = true
	r.step(unsent)
	refused(protocol.Fetched{Through: 3, Refusal: protocol.RefusedUnknown, Detail: "why"})
	for id := range uint64(r.m.cfg.Limits.Fetches) {
		r.m.fetches[id] = index.Pinned{}
	}
	r.say("n2", fetch)
	refused(protocol.Fetched{Through: 2, Refusal: protocol.RefusedCapacity, Detail: fmt.Sprintf("%d pieces are being sent, the most at once", r.m.cfg.Limits.Fetches)})
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	r.step(unsent)
	if a := sent[protocol.Fetched](r.out); len(a) != 0 {
		t.Errorf("tells a node that is gone %+v", a)
	}
}

// TestKeeperIsReplaced: one that can't send its copy is not asked for it again, and
// another keeps the next; one that only has none is given one.
func TestKeeperIsReplaced(t *testing.T) {
	for cause, want := range map[string]kevlard.NodeID{"unreachable: why": "n1", "no copy: why": "n3"} {
		t.Run(cause, func(t *testing.T) {
			r := newRig(t, nil, "n1:0-1", "n2:1-2", "n3", "n4:0-1")
			r.m.cfg.Standbys = 1
			r.submit("s", 1, 2, 3)
			_, last := prepares(r.out, "s")
			if last.Standby != "n3" {
				t.Fatalf("the copy of layer 1 goes to %q", last.Standby)
			}
			r.accept()
			r.say("n2", protocol.Step{Session: "s", Fence: last.Fence, Next: 3, Sampled: true, Token: 7, Marks: []int{3, 3}})
			// Layer 1 moves to its host's next life, which is to fetch the copy and can't.
			r.step(PeerDown{Node: "n2", Cause: "reset"})
			r.node("n2").Boot = "n2.2"
			r.step(PeerUp{Node: "n2", Boot: "n2.2"})
			r.see()
			out := append(slices.Clone(r.out), r.sleep(4*time.Second, "n1", "n2", "n3", "n4")...)
			to, last := prepares(out, "s")
			if last.Source != "n3" {
				t.Fatalf("prepared %v, the last with source %q", to, last.Source)
			}
			r.say("n2", protocol.StandbyLost{Session: "s", Fence: last.Fence, Lo: 1, Standby: "n3", Cause: cause})
			anyone := func(kevlard.NodeID) bool { return true }
			if c := r.m.sessions["s"].BestCopy(last.Stage.Layers, anyone); c.Node != "" {
				t.Errorf("still believes in the copy %+v", c)
			}
			r.say("n1", protocol.Prepared{Session: "s", Fence: last.Fence, Lo: 0, Have: 3})
			r.say("n4", protocol.Prepared{Session: "s", Fence: last.Fence, Lo: 0, Have: 3})
			r.say("n2", protocol.Prepared{Session: "s", Fence: last.Fence, Lo: 1})
			if s := r.m.Snapshot(r.now).Sessions[0]; s.Standbys[1] != want {
				t.Errorf("session %+v, want %s as the standby of layer 1", s, want)
			}
		})
	}
}

// TestRestartedHostIsNotBlamed: the sibling of a host that died, was started again and
// now dies itself has no other host than that one to go to.
func TestRestartedHostIsNotBlamed(t *testing.T) {
	r := streaming(t)
	r.say("n2", protocol.Step{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Next: 3, Sampled: true, Token: 7, Marks: []int{3, 3}})
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	_, last := prepares(r.out, "s")
	for i, n := range []kevlard.NodeID{"n1", "n4"} {
		r.say(n, protocol.Prepared{Session: "s", Fence: last.Fence, Lo: i, Have: 3})
	}
	r.node("n2").Boot = "n2.2"
	r.see()
	r.step(PeerUp{Node: "n2", Boot: "n2.2"})
	r.step(PeerDown{Node: "n4", Cause: "reset"})
	if to, _ := prepares(r.out, "s"); !slices.Equal(to, []kevlard.NodeID{"n1", "n2"}) {
		t.Errorf("prepared %v at once, want n1 and the restarted n2", to)
	}
}
