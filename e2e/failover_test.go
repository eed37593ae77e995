package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

const (
	stormStreams = 20
	breakAfter   = 60 // tokens that every stream has shown when its host breaks
)

// stormTokens is how long streams are: 600 in the long run.
func stormTokens() int {
	if long() {
		return 600
	}
	return 160
}

// eightHosts is the mesh of most failover tests: two pipelines of four stages and a
// gateway that all streams enter by. One host has room for all streams: none waits,
// neither before a fault nor after it.
func eightHosts() devmesh.Options {
	return devmesh.Options{Nodes: 8, Stages: 4, Gateways: 1, Cells: stormStreams * 1024}
}

// TestStreamsSurvive breaks one host in many ways under 20 streams that run through
// it, and compares every stream with its unbroken run. (K06, K11)
func TestStreamsSurvive(t *testing.T) {
	m := start(t, eightHosts())
	requests := storyRequests(m, stormStreams, stormTokens())
	want := m.unbroken(t, requests)

	kill := func(victim *devmesh.Node) func(*testing.T) {
		return func(t *testing.T) {
			m.chaos(t, "kill", victim.Name())
			m.restartLater(t, victim)
		}
	}
	t.Run("kill first stage", func(t *testing.T) { m.breakUnder(t, requests, want, m.Node(1), kill(m.Node(1))) })
	t.Run("kill middle stage", func(t *testing.T) { m.breakUnder(t, requests, want, m.Node(3), kill(m.Node(3))) })
	t.Run("kill last stage", func(t *testing.T) { m.breakUnder(t, requests, want, m.Node(8), kill(m.Node(8))) })
	t.Run("kill engine", func(t *testing.T) {
		victim := m.Node(6)
		daemon := victim.PID()
		m.breakUnder(t, requests, want, victim, func(t *testing.T) { m.chaos(t, "kill", "--engine", victim.Name()) })
		if victim.PID() != daemon {
			t.Errorf("the daemon was %d, now %d: only its engine was killed", daemon, victim.PID())
		}
	})
	t.Run("freeze 2 s", func(t *testing.T) { m.freeze(t, requests, want, m.Node(2)) })
	t.Run("kill during prefill", func(t *testing.T) { m.killDuringPrefill(t) })
}

// TestStreamsSurviveLongFreezes is the case K11 and its like: SWIM declares the
// host dead while it stands still, and it comes back.
func TestStreamsSurviveLongFreezes(t *testing.T) {
	needLong(t, "2 minutes")
	m := start(t, eightHosts())
	for _, seconds := range []int{30, 60} {
		t.Run(fmt.Sprintf("%d s", seconds), func(t *testing.T) {
			// As many streams as it takes to be still busy at the end of the freeze.
			requests := storyRequests(m, stormStreams, stormTokens())
			want := m.unbroken(t, requests)
			before := m.fenced(t)
			victim := m.Node(2)
			first := m.storm(t.Context(), requests)
			first.reach(t, breakAfter)
			sessions := m.through(t, victim, "decode")
			at := time.Now()
			m.chaos(t, "freeze", "--for", "ever", victim.Name())
			thaw := time.NewTimer(time.Duration(seconds) * time.Second)
			judge(t, first.wait(t), want)
			if m.recoveries(t, sessions, at) == 0 {
				t.Error("no session failed over")
			}
			for thawed := false; !thawed; {
				again := m.storm(t.Context(), requests)
				select {
				case <-thaw.C:
					thawed = true
					m.chaos(t, "thaw", victim.Name())
				case <-again.ended:
				}
				judge(t, again.wait(t), want)
			}
			m.ready(t)
			// After so long its peers have cut its connections, and most of what it had
			// in hand dies with them before it meets a fence: none of it may show, but
			// the counter need not rise as it does after a short freeze.
			t.Logf("%v late items fenced", m.fenced(t)-before)
			judge(t, m.storm(t.Context(), requests).wait(t), want)
		})
	}
}

func (m *mesh) fencedMore(t *testing.T, before float64) error {
	t.Helper()
	if now := m.fenced(t); now <= before {
		return fmt.Errorf("late items fenced: %v before, %v now: want more", before, now)
	}
	return nil
}

// breakUnder runs the streams, breaks the victim once all of them are under way and
// some run through it, and judges. No daemon but the victim may end.
func (m *mesh) breakUnder(t *testing.T, requests []load.Request, want []load.Result, victim *devmesh.Node, breakIt func(*testing.T)) {
	t.Helper()
	others := m.pids(victim)
	s := m.storm(t.Context(), requests)
	s.reach(t, breakAfter)
	sessions := m.through(t, victim, "decode")
	at := time.Now()
	breakIt(t)
	got := s.wait(t)
	judge(t, got, want)
	n := m.recoveries(t, sessions, at)
	if n == 0 {
		t.Errorf("none of the %d sessions through %s failed over: nothing was shown", len(sessions), victim.Name())
	}
	var pauses []time.Duration
	for _, r := range got {
		pauses = append(pauses, r.LongestGap(at, r.Ended))
	}
	t.Logf("%d of %d sessions ran through %s, %d failed over; longest pause p50 %s, max %s", len(sessions), len(requests), victim.Name(), n,
		load.Quantile(pauses, 0.5).Round(time.Millisecond), load.Quantile(pauses, 1).Round(time.Millisecond))
	if now := m.pids(victim); !maps.Equal(now, others) {
		t.Errorf("other daemons were %v, now %v", others, now)
	}
	m.ready(t)
}

// restartLater brings a killed victim back at the end of the test.
func (m *mesh) restartLater(t *testing.T, victim *devmesh.Node) {
	t.Helper()
	select {
	case <-victim.Ended():
	case <-time.After(readyWithin):
		t.Fatalf("%s was killed and has not ended", victim.Name())
	}
	if err := victim.Restart(); err != nil {
		t.Fatal(err)
	}
}

// freeze stops the victim's daemon for 2 s and wakes it while the same streams run:
// whatever it then still sends or finds in its queues is late.
func (m *mesh) freeze(t *testing.T, requests []load.Request, want []load.Result, victim *devmesh.Node) {
	t.Helper()
	before := m.fenced(t)
	m.breakUnder(t, requests, want, victim, func(t *testing.T) {
		m.chaos(t, "freeze", "--for", "2s", victim.Name())
	})
	eventually(t, readyWithin, func() error { return m.fencedMore(t, before) })
}

// killDuringPrefill kills a host while it computes prompts.
func (m *mesh) killDuringPrefill(t *testing.T) {
	t.Helper()
	requests := longPrompts(m, stormStreams, 60)
	want := m.unbroken(t, requests)
	victim := m.Node(7)
	others := m.pids(victim)
	s := m.storm(t.Context(), requests)
	sessions := m.through(t, victim, "prefill")
	at := time.Now()
	m.chaos(t, "kill", victim.Name())
	judge(t, s.wait(t), want)
	t.Logf("%d sessions in prefill through %s, %d failed over", len(sessions), victim.Name(), m.recoveries(t, sessions, at))
	if m.recoveries(t, sessions, at) == 0 {
		t.Error("no session failed over in prefill: nothing was shown")
	}
	if now := m.pids(victim); !maps.Equal(now, others) {
		t.Errorf("other daemons were %v, now %v", others, now)
	}
	m.restart(t, victim)
}

// TestBothHoldersOfAStageKilled is a loss that no route gets around: the streams
// end with an error event, and the mesh heals by itself once the hosts are back.
func TestBothHoldersOfAStageKilled(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 4, Stages: 2, Gateways: 1})
	requests := storyRequests(m, 4, 900)
	s := m.storm(t.Context(), requests)
	s.reach(t, 20)
	victims := []*devmesh.Node{m.Node(2), m.Node(4)}
	others := m.pids(victims...)
	m.chaos(t, "kill", victims[0].Name(), victims[1].Name())
	for i, r := range s.wait(t) {
		e, ok := r.Err.(*load.APIError)
		if !ok || !e.InStream || e.Code != "no_route" {
			t.Errorf("stream %d: error %v, want the error event no_route", i, r.Err)
		}
		if r.Finish != "" || r.Done {
			t.Errorf("stream %d: finish %q, [DONE] %t: a client would take it for whole", i, r.Finish, r.Done)
		}
	}
	refused := m.client.Stream(t.Context(), requests[0], nil)
	if e, ok := refused.Err.(*load.APIError); !ok || e.InStream || e.Status != 503 || e.RetrySecs == "" {
		t.Errorf("a new request meanwhile: %v, want HTTP 503 with Retry-After", refused.Err)
	}
	if now := m.pids(victims...); !maps.Equal(now, others) {
		t.Errorf("other daemons were %v, now %v", others, now)
	}
	m.restart(t, victims...)
	ctx, cancel := context.WithTimeout(t.Context(), streamWithin)
	defer cancel()
	if r := m.client.Stream(ctx, storyRequests(m, 1, 50)[0], nil); r.Err != nil || r.Tokens != 50 {
		t.Errorf("after the restart: %d tokens, %v", r.Tokens, r.Err)
	}
}
