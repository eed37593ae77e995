package node

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// TestSilenceMovesSessions plays a node on a route that stops answering: its
// sessions leave it after the silence, and idle peers are never blamed.
func TestSilenceMovesSessions(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2", "n3")
	r.submit("s", 1, 2, 3)
	if to, _ := prepares(r.out, "s"); len(to) != 1 || to[0] != "n1" {
		t.Fatalf("prepares %v, want n1", to)
	}
	r.accept()
	es := r.sleep(390*time.Millisecond, "n2")
	if q := reports(es, "silent"); len(q) > 0 {
		t.Fatalf("silent too early: %+v", q)
	}
	es = r.sleep(30*time.Millisecond, "n2")
	if q := reports(es, "silent"); len(q) != 1 || q[0].Node != "n1" {
		t.Fatalf("silent: %+v, want n1 alone", q)
	}
	if f := reports(es, "failover"); len(f) != 1 || f[0].Cause != "silence" || f[0].Node != "n1" {
		t.Errorf("failovers %+v", f)
	}
	if to, p := prepares(es, "s"); len(to) != 1 || to[0] != "n2" || !p.Recovery || p.Fence.Term != 2 {
		t.Errorf("prepares %v %+v, want n2 in recovery", to, p)
	}
	if r.m.Snapshot(r.now).Peers[0].Silent != true {
		t.Error("the snapshot does not say silent")
	}
	r.say("n1", protocol.Pong{})
	if r.m.Snapshot(r.now).Peers[0].Silent {
		t.Error("a byte from it does not end the silence")
	}
	r.accept()
	es = r.sleep(430*time.Millisecond, "n1") // a word refutes silence: n1 is asked at once
	if to, p := prepares(es, "s"); len(to) != 1 || to[0] != "n1" || p.Fence.Term != 3 {
		t.Errorf("prepares %v %+v, want n1 again", to, p)
	}
}

// TestSelfDoubt plays three watched peers that fall silent at once: that is more
// likely this node's own network.
func TestSelfDoubt(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:1-2", "n3:0-1", "n4:1-2")
	for _, id := range []kevlard.SessionID{"a", "b", "c", "d"} {
		r.submit(id, 1, 2)
		r.accept()
	}
	es := r.sleep(450 * time.Millisecond)
	if len(reports(es, "self-doubt")) == 0 || len(reports(es, "silent")) > 0 || len(reports(es, "failover")) > 0 {
		t.Errorf("doubt %v, silent %v, failovers %v", reports(es, "self-doubt"), reports(es, "silent"), reports(es, "failover"))
	}
	if c := r.m.Snapshot(r.now).Counters; c.SelfDoubt == 0 {
		t.Error("not counted")
	}
}

// TestLateJudge freezes the node itself for ten seconds: it must not blame its
// peers for a silence that it slept through, nor its sessions for the time.
func TestLateJudge(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2")
	r.submit("s", 1, 2, 3)
	r.accept()
	// Of a model that nobody serves: it waits for a route.
	r.step(Submit{Session: "w", Request: Request{Model: kevlard.Digest{9}, Prompt: []kevlard.Token{1}, MaxTokens: 1}})
	r.sleep(100*time.Millisecond, "n1", "n2")
	r.now = r.now.Add(10 * time.Second)
	r.step(Wake{})
	if q := append(reports(r.out, "silent"), reports(r.out, "failover")...); len(q) > 0 {
		t.Errorf("the late judge says %+v", q)
	}
	if f := effectsOf[Finish](r.out); len(f) > 0 {
		t.Errorf("sessions ended while the node slept: %+v", f)
	}
	if r.m.Snapshot(r.now).Counters.LateJudge == 0 {
		t.Error("not counted")
	}
	es := r.sleep(450 * time.Millisecond)
	if len(reports(es, "silent")) != 1 {
		t.Error("a peer that stays silent afterwards is not noticed")
	}
}

// TestSlowLinksAreMeasured plays a link whose round trip exceeds the ping
// interval: it must be measured all the same.
func TestSlowLinksAreMeasured(t *testing.T) {
	r := newRig(t, nil, "n1:0-2")
	r.submit("s", 1, 2, 3)
	r.accept()
	const trip = 250 * time.Millisecond
	type due struct {
		at  kevlard.Instant
		seq uint64
	}
	var wire []due
	for end := r.now.Add(5 * time.Second); r.now < end; {
		if len(wire) > 0 && wire[0].at <= r.m.Deadline() {
			r.now = max(r.now, wire[0].at)
			r.say("n1", protocol.Pong{Seq: wire[0].seq})
			wire = wire[1:]
		} else {
			r.now = max(r.now, r.m.Deadline())
			r.step(Wake{})
		}
		for _, p := range sent[protocol.Ping](r.out)["n1"] {
			wire = append(wire, due{r.now.Add(trip), p.Seq})
		}
	}
	p := r.m.Snapshot(r.now).Peers[0]
	if p.RTT < trip-10*time.Millisecond || p.RTT > trip+10*time.Millisecond {
		t.Errorf("measured %v, the link takes %v", p.RTT, trip)
	}
	if p.Silent {
		t.Error("called silent")
	}
	r.say("n1", protocol.Pong{Seq: 1 << 40})
	r.say("n1", protocol.Pong{Seq: 0})
	if again := r.m.Snapshot(r.now).Peers[0].RTT; again != p.RTT {
		t.Errorf("pongs that nobody asked for change the measure to %v", again)
	}
}

func TestRenewals(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:1-2", "n3")
	r.submit("s", 1, 2, 3)
	r.accept()
	es := r.sleep(7*time.Second, "n1", "n2")
	got := sent[protocol.Renew](es)
	if len(got) != 2 || len(got["n1"]) < 2 || len(got["n2"]) < 2 || got["n1"][0].Sessions[0] != "s" {
		t.Errorf("renewals %v, want one each 3 s to both stages", got)
	}
}

// TestLossOfNextDoesNotEcho guards against a storm: the hint that a link broke
// goes to the owner, and when the owner is the lost node, or lost as well, its
// failure must not produce the next hint.
func TestLossOfNextDoesNotEcho(t *testing.T) {
	first := kevlard.Layers{Lo: 0, Hi: 1}
	r := newRig(t, []kevlard.Layers{first}, "n1", "n2", "n3")
	for owner, next := range map[kevlard.NodeID]kevlard.NodeID{"n1": "n2", "n2": "n1", "n3": "n1"} {
		r.say(owner, prepareFor(kevlard.SessionID("of-"+owner), kevlard.BootID(owner+".1"), first, next))
		if a := sent[protocol.Prepared](r.out)[owner]; len(a) != 1 || a[0].Refusal != "" {
			t.Fatalf("prepare of %s: %+v", owner, a)
		}
	}
	r.step(PeerDown{Node: "n1", Cause: "reset"})
	got := sent[protocol.Refused](r.out)
	if len(got["n1"]) != 0 || len(got["n2"]) != 1 || len(got["n3"]) != 1 || got["n3"][0].Reason != protocol.RefusedLink {
		t.Errorf("hints %v, want one each to n2 and n3", got)
	}
	r.step(PeerDown{Node: "n2", Cause: "reset"})
	if got := sent[protocol.Refused](r.out); len(got) != 0 {
		t.Errorf("hints %v to nodes that are gone", got)
	}
	for _, n := range []kevlard.NodeID{"n1", "n2", "n3"} {
		r.step(SendFailed{Node: n})
		if s := sent[protocol.Refused](r.out); len(s) != 0 {
			t.Errorf("a failed message to %s makes more: %v", n, s)
		}
	}
}

// TestSendFailedDoesNotSpin plays the moment when messages fail and the break
// has not been reported yet: the only route must not be tried without a pause.
func TestSendFailedDoesNotSpin(t *testing.T) {
	r := newRig(t, nil, "n1:0-2")
	r.submit("s", 1, 2, 3)
	r.sleep(3*time.Second, "n1") // by now it takes blamed nodes too
	tries := 0
	for range 1000 {
		r.step(SendFailed{Node: "n1"})
		to, _ := prepares(r.out, "s")
		tries += len(to)
	}
	if tries > 1 {
		t.Errorf("%d tries at one instant", tries)
	}
}

// TestOldRecordsDropNobody checks whose word counts about an owner: records and
// deaths that the ring tells late must not end the sessions of a newer life.
func TestOldRecordsDropNobody(t *testing.T) {
	first := kevlard.Layers{Lo: 0, Hi: 1}
	for _, tc := range []struct {
		name  string
		holds bool
		do    func(*rig)
	}{
		{"the record of an older boot", true, func(r *rig) { r.node("n1").Boot = "n1.0" }},
		{"no record yet", true, func(r *rig) { r.node("n1").Boot = "" }},
		{"called dead, but connected", true, func(r *rig) { r.node("n1").State = topology.Dead }},
		{"called dead, and disconnected", false, func(r *rig) {
			r.step(PeerDown{Node: "n1", Cause: "reset"})
			r.node("n1").State = topology.Dead
		}},
		{"only disconnected", true, func(r *rig) { r.step(PeerDown{Node: "n1", Cause: "reset"}) }},
		{"disconnected, no record", true, func(r *rig) {
			r.step(PeerDown{Node: "n1", Cause: "reset"})
			r.node("n1").Boot = ""
		}},
		{"back as another boot", false, func(r *rig) { r.step(PeerUp{Node: "n1", Boot: "n1.2"}) }},
		{"the ring knows another boot", false, func(r *rig) {
			r.step(PeerDown{Node: "n1", Cause: "reset"})
			r.node("n1").Boot = "n1.2"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, []kevlard.Layers{first}, "n1", "n2")
			r.say("n1", prepareFor("s", "n1.1", first, "n2"))
			tc.do(r)
			r.see()
			if holds := r.m.Snapshot(r.now).Stages[0].Sessions == 1; holds != tc.holds {
				t.Errorf("holds the session: %v, want %v", holds, tc.holds)
			}
		})
	}
}

// TestRoutesOnlyOverKnownLives checks that a stage is used only when the record
// is of the boot that is connected.
func TestRoutesOnlyOverKnownLives(t *testing.T) {
	r := newRig(t, nil, "n1:0-2")
	r.step(PeerDown{Node: "n1", Cause: "reset"})
	r.step(PeerUp{Node: "n1", Boot: "n1.2"})
	r.submit("s", 1)
	if to, _ := prepares(r.out, "s"); len(to) > 0 {
		t.Fatalf("prepares %v on the word of an older life", to)
	}
	r.node("n1").Boot = "n1.2"
	r.see()
	if to, _ := prepares(r.out, "s"); len(to) != 1 {
		t.Errorf("prepares %v when the record has come", to)
	}
}

// TestAnswersAfterAFreezeAreNotRoundTrips freezes a peer for two seconds. The
// pongs that it owes come in a burst when it wakes; counted as round trips they
// would let its next silence pass for half a minute.
func TestAnswersAfterAFreezeAreNotRoundTrips(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2")
	r.submit("s", 1, 2, 3)
	r.accept()
	var owed []uint64
	for end := r.now.Add(2 * time.Second); r.now < end; {
		r.now = r.m.Deadline()
		r.step(Wake{})
		for _, s := range effectsOf[Send](r.out) {
			if p, ok := s.Message.(protocol.Ping); ok && s.To == "n1" {
				owed = append(owed, p.Seq)
			}
		}
	}
	for _, seq := range owed {
		r.say("n1", protocol.Pong{Seq: seq})
	}
	if got, most := r.m.peers["n1"].silence(r.m.cfg.Timing), 500*time.Millisecond; len(owed) == 0 || got > most {
		t.Errorf("after %d late answers n1 may be silent for %v, want at most %v", len(owed), got, most)
	}
}

// TestFullQueueBlamesNobody: what cannot be queued for a healthy peer is not a
// sign of its death.
func TestFullQueueBlamesNobody(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2:0-2")
	r.submit("s", 1, 2, 3)
	r.accept()
	r.step(SendFailed{Node: "n1", Cause: SendFull, Session: "s"})
	if f := reports(r.out, "failover"); len(f) != 1 || f[0].Node != "" || f[0].Cause == "reset" {
		t.Errorf("%+v, want the session to try again and blame nobody", f)
	}
	r.step(SendFailed{Node: "n1", Cause: SendFull})
	if len(r.out) != 0 {
		t.Errorf("of no session: %+v", r.out)
	}
}

// TestReadyEngineIsToldAtOnce: a host that came back has room as soon as its engine is
// ready, and not when the next idle ping says so.
func TestReadyEngineIsToldAtOnce(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 1}}, "n1")
	r.step(EngineExited{Stage: r.m.stages[0].Key(), Run: 1, Reason: "killed"})
	r.sleep(150*time.Millisecond, "n1")
	r.step(EngineReady{Stage: r.m.stages[0].Key(), Run: 2, Class: "c", Cells: 1024, Width: 8})
	if p := sent[protocol.Ping](r.out)["n1"]; len(p) != 1 || p[0].Free != 1024 {
		t.Errorf("pings %+v, want one that says 1024 are free", p)
	}
}
