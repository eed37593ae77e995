package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/report"
)

// stateOf is what one node says of another; "" if it doesn't know it.
func stateOf(m *member, name kevlard.NodeID) string {
	for _, n := range m.Members().Nodes {
		if n.Name == string(name) {
			return n.State
		}
	}
	return ""
}

func TestLeaveWaitsForOwnSessions(t *testing.T) {
	r := newRing(t)
	gateway := r.start("gate")
	r.start("a", span(0, 8))
	r.start("b", span(0, 8))
	r.ready()
	j := newJob(1, 300)
	left := make(chan report.Leave, 1)
	started := false
	res := generate(t.Context(), gateway, j, func(n int) {
		if n >= 5 && !started {
			started = true
			go func() {
				l, err := gateway.Leave(t.Context(), 20*time.Second)
				if err != nil {
					t.Error(err)
				}
				left <- l
			}()
			r.until("draining", func() bool { return gateway.Status().Draining })
			st := gateway.Status()
			if !st.Stopping || len(st.Problems) == 0 || !strings.Contains(st.Problems[0].What, "stopping") || strings.Contains(st.Problems[0].Fix, "undo") {
				t.Errorf("a node that leaves says of itself %+v", st.Problems)
			}
			var stopping *kevlard.Failure
			if err := gateway.Drain(t.Context(), "", true); !errors.As(err, &stopping) || stopping.Status != 409 || stopping.Code != "stopping" {
				t.Errorf("to undo the drain of a node that leaves: %v", err)
			}
			_, err := gateway.Generate(t.Context(), "late", j.req)
			if err == nil { // refused by the machine, through the stream
				late := generate(t.Context(), gateway, job{"later", j.req}, nil)
				err = late.end.Err
			}
			var f *kevlard.Failure
			if !errors.As(err, &f) || f.Code != "draining" || f.Status != 503 {
				t.Errorf("a draining node answers %v, want draining", err)
			}
		}
	})
	exact(t, j, res)
	if l := <-left; l.Lost {
		t.Errorf("leave says that %d sessions were lost", l.Cut)
	}
	r.wait(gateway)
	delete(r.members, "gate")
	r.until("the others see that it left", func() bool {
		for _, m := range r.all() {
			if stateOf(m, "gate") != "left" {
				return false
			}
		}
		return true
	})
}

// TestHostLeavesUnderLoad wants the sessions of others to move without an error.
func TestHostLeavesUnderLoad(t *testing.T) {
	r, gateway := spared(t)
	results := streams(t, gateway, 4, 150, func() {
		v := victim(t, r, gateway, 1)
		l, err := v.Leave(t.Context(), 200*time.Millisecond)
		if err != nil || l.Lost {
			t.Errorf("leave: %+v, %v", l, err)
		}
		r.wait(v)
		r.mu.Lock()
		delete(r.members, v.cfg.Name)
		r.mu.Unlock()
	})
	if n, _ := moved(results); n == 0 {
		t.Error("nobody moved")
	}
}

func TestLeaveThatTimesOutSaysSo(t *testing.T) {
	r := newRing(t)
	r.step = 20 * time.Millisecond
	m := r.start("solo", span(0, 8))
	r.ready()
	j := newJob(1, 900)
	s, err := m.Generate(t.Context(), j.name, j.req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := m.Leave(t.Context(), 50*time.Millisecond)
	if err != nil || !l.Lost || l.Cut != 1 {
		t.Errorf("leave: %+v, %v, want one lost session", l, err)
	}
	for {
		u, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u.Done {
			if u.Reason != "error" || u.Err == nil || u.Err.Code != "draining" {
				t.Errorf("the cut stream ended with %q, %v, want an error", u.Reason, u.Err)
			}
			break
		}
	}
	r.wait(m)
	delete(r.members, "solo")
	if _, err := m.Generate(t.Context(), "after", j.req); err == nil {
		t.Error("a stopped daemon took a session")
	}
}

// TestInterruptedLeave ends the request to leave while an own session runs, then
// while one of another owner does: neither may be cut.
func TestInterruptedLeave(t *testing.T) {
	for name, who := range map[string]kevlard.NodeID{"own session": "gate", "another's": "host"} {
		r := newRing(t)
		r.step = 5 * time.Millisecond
		gateway := r.start("gate")
		r.start("host", span(0, 8))
		r.ready()
		leaver := r.members[who]
		gone := errors.New("the client is gone")
		j := newJob(1, 100)
		interrupted := false
		res := generate(t.Context(), gateway, j, func(n int) {
			if n < 5 || interrupted {
				return
			}
			interrupted = true
			ctx, cancel := context.WithCancelCause(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := leaver.Leave(ctx, time.Minute)
				left <- err
			}()
			r.until("it drains", func() bool { return leaver.Status().Draining })
			cancel(gone)
			if err := <-left; !errors.Is(err, gone) {
				t.Errorf("%s: leave: %v, want the cause", name, err)
			}
		})
		exact(t, j, res)
		for _, f := range res.end.Failovers {
			if f.Cause != "progress" && f.Cause != "silence" { // those a busy machine brings about
				t.Errorf("%s: failover %+v", name, f)
			}
		}
		if !leaver.Status().Draining || stateOf(gateway, who) != "draining" {
			t.Errorf("%s: the node is %q, want draining", name, stateOf(gateway, who))
		}
		r.idle()
		r.stopAll()
		r.members = map[kevlard.NodeID]*member{}
	}
}

func TestDrainAndUndoOfAnotherNode(t *testing.T) {
	r := newRing(t)
	gateway := r.start("gate")
	r.start("a", span(0, 8))
	b := r.start("b", span(0, 8))
	r.ready()
	if err := gateway.Drain(t.Context(), "b", false); err != nil {
		t.Fatal(err)
	}
	if ok, why := b.Ready(); ok || !strings.Contains(why, "draining") {
		t.Errorf("b is ready (%v, %q) while it drains", ok, why)
	}
	r.until("the gateway sees it", func() bool { return stateOf(gateway, "b") == "draining" })
	for i := range 3 {
		j := newJob(i, 40)
		exact(t, j, generate(t.Context(), gateway, j, func(int) {
			for _, s := range gateway.Sessions(t.Context(), false).Sessions {
				if slices.Contains(s.Route, "b") {
					t.Errorf("session %s runs through the draining node", s.ID)
				}
			}
		}))
	}
	if err := gateway.Drain(t.Context(), "b", true); err != nil {
		t.Fatal(err)
	}
	r.ready()
	if err := gateway.Drain(t.Context(), "nobody", false); err == nil {
		t.Error("an unknown node was drained")
	}
}

// TestRestarts starts a node again and again under its name and key, at the end at
// another address: the others must show the new boot, exactly the live nodes, and route through it.
func TestRestarts(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	gateway := r.start("gate")
	r.start("a", span(0, 4))
	b := r.start("b", span(4, 8))
	r.ready()
	for i := range 3 {
		r.kill(b)
		cfg := b.cfg
		if i == 2 {
			cfg.GossipBind, cfg.MeshListen = r.port(), r.port()
		}
		b = r.run(cfg)
		r.until("the new boot is ready", func() bool {
			for _, n := range gateway.Members().Nodes {
				if n.Name == "b" && n.Boot == string(b.Boot()) && n.Ready {
					return true
				}
			}
			return false
		})
		j := newJob(i, 30)
		exact(t, j, generate(t.Context(), gateway, j, nil))
	}
	m := gateway.Members()
	if m.Size != 3 || len(m.Nodes) != 3 {
		t.Errorf("%d of %d members alive, want the three that live", m.Size, len(m.Nodes))
	}
}

func TestJoinByHand(t *testing.T) {
	r := newRing(t)
	a := r.start("a", span(0, 8))
	r.ready()
	cfg := a.cfg
	cfg.Name, cfg.DataDir, cfg.Assigned, cfg.Role = "b", t.TempDir(), nil, "gateway"
	cfg.GossipBind, cfg.MeshListen = r.port(), r.port()
	b := r.run(cfg)
	if ok, why := b.Ready(); ok {
		t.Errorf("alone and ready: %q", why)
	}
	var refused *kevlard.Failure
	odd := cfg
	odd.Name, odd.DataDir, odd.Secret = "odd", t.TempDir(), []byte("fedcba9876543210fedcba9876543210")
	if _, err := r.run(odd).Join(t.Context(), []string{a.GossipAddr()}); !errors.As(err, &refused) || refused.Status != 403 {
		t.Errorf("a join with another secret: %v, want status 403", err)
	}
	r.kill(r.members["odd"])
	if j, err := b.Join(t.Context(), []string{"127.0.0.1:1"}); err == nil || j.Answered != 0 {
		t.Errorf("a join that nobody answers: %+v, %v", j, err)
	}
	j, err := b.Join(t.Context(), []string{a.GossipAddr()})
	if err != nil || j.Asked != 1 || j.Answered != 1 || !slices.Equal(j.Seen, []string{"a"}) {
		t.Fatalf("join: %+v, %v", j, err)
	}
	r.ready()
	if err := b.ForceLeave("a"); err == nil {
		t.Error("a live node was forced to leave")
	}
}

// TestShapes checks the JSON of each read against the fields that cli.md names.
func TestShapes(t *testing.T) {
	r := newRing(t)
	r.step = 10 * time.Millisecond
	a := r.start("a", span(0, 4))
	r.start("b", span(4, 8))
	gateway := r.start("gate")
	r.ready()
	j := newJob(1, 900)
	s, err := gateway.Generate(t.Context(), j.name, j.req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until("the session shows its route", func() bool {
		all := a.Sessions(t.Context(), true)
		return len(all.Sessions) == 1 && len(all.Unreachable) == 0 && slices.Equal(all.Sessions[0].Route, []string{"a", "b"})
	})
	member := []string{"name", "id", "role", "addr", "mesh_addr", "bulk_addr", "api", "state", "ready", "reason", "version", "boot", "zone", "labels", "rtt_ms", "stages", "engines"}
	want := map[string][]string{
		"members":  append(member, "ring", "self", "size", "nodes", "pid", "device", "lo", "hi", "model", "progress"),
		"topology": {"models", "id", "name", "layers", "degraded", "pipelines", "stages", "lo", "hi", "node", "state", "shared", "under_replicated"},
		"sessions": {"sessions", "id", "model", "owner", "epoch", "term", "tokens", "state", "route", "standbys", "replicated_through", "failovers", "last_gap_ms"},
		"events":   {"at", "node", "type"},
		"status":   {"node", "ready", "reason", "draining", "members", "sessions", "stages", "problems", "links"},
	}
	for name, v := range map[string]any{
		"members": a.Members(), "topology": a.Topology(), "sessions": a.Sessions(t.Context(), true), "events": a.Events(time.Time{}), "status": a.Status(),
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "null") {
			t.Errorf("%s has a null: %s", name, b)
		}
		for _, key := range want[name] {
			if !strings.Contains(string(b), `"`+key+`":`) {
				t.Errorf("%s lacks %q: %s", name, key, b)
			}
		}
	}
	if m := a.Topology().Models; len(m) != 1 || m[0].Degraded || len(m[0].Pipelines) != 1 || len(m[0].Pipelines[0].Stages) != 2 {
		t.Errorf("topology %+v, want one pipeline of two stages", m)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.idle()
}

func TestMetrics(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 8))
	r.ready()
	j := newJob(1, 20)
	exact(t, j, generate(t.Context(), m, j, nil))
	id := toyTopology().ID.String()
	want := map[string]float64{
		"kevlard_members state=alive": 1, "kevlard_members state=dead": 0, "kevlard_sessions state=decode": 0,
		"kevlard_tokens_total kind=prompt": 16, "kevlard_tokens_total kind=generated": 20, "kevlard_ttft_seconds": 1,
		"kevlard_fenced_items_total": 0, "kevlard_queue_depth": 0, "kevlard_stage_ready hi=8 lo=0 model=" + id: 1,
		"kevlard_step_seconds stage=0-8": 20, "kevlard_kv_bytes kind=session tier=engine": 0, "kevlard_kv_bytes kind=standby tier=ram": 0,
		"kevlard_kv_rejected_total reason=stale": 0, "kevlard_standby_lag_tokens": 0,
	}
	var got map[string]float64
	r.until("the session is out of the counts", func() bool {
		got = scrape(t, m)
		return got["kevlard_sessions state=decode"] == 0
	})
	for name, want := range want {
		if v, ok := got[name]; !ok || v < want || v != want && !strings.Contains(name, "step") {
			t.Errorf("%s is %v (present: %v), want %v", name, v, ok, want)
		}
	}
}

// scrape returns the metrics by name and labels; of a histogram the count.
func scrape(t *testing.T, m *member) map[string]float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			got[name] = x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
		}
	}
	return got
}

// TestDeadNodesHoldNothing: what a dead node held is not shown as ready for work.
func TestDeadNodesHoldNothing(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	a, b := r.start("a", span(0, 8)), r.start("b", span(0, 8))
	r.ready()
	of := func(m *member, name string) report.Member {
		nodes := m.Members().Nodes
		i := slices.IndexFunc(nodes, func(n report.Member) bool { return n.Name == name })
		return nodes[i]
	}
	r.until("a shows b's stage", func() bool { n := of(a, "b"); return len(n.Stages) == 1 && n.Stages[0].State == "ready" })
	r.kill(b)
	r.until("a shows b as dead", func() bool { return of(a, "b").State == "dead" })
	if n := of(a, "b"); len(n.Stages) != 1 || n.Stages[0].State != "cold" || n.Stages[0].Lo != 0 || n.Stages[0].Hi != 8 {
		t.Errorf("the dead node has %+v", n.Stages)
	}
}

// TestCountersFromTheStart: the first failover is an increase only if there was a 0 before.
func TestCountersFromTheStart(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	got := scrape(t, r.start("a", span(0, 8)))
	for _, name := range []string{
		"kevlard_failovers_total cause=reset", "kevlard_failovers_total cause=engine-exit", "kevlard_failovers_total cause=silence",
		"kevlard_reforms_total reason=death", "kevlard_shed_total reason=overloaded", "kevlard_shed_total reason=no_route",
		"kevlard_replicated_bytes_total transport=tcp-tls",
	} {
		if v, ok := got[name]; !ok || v != 0 {
			t.Errorf("%s is %v, there from the start: %v", name, v, ok)
		}
	}
}

func TestFollow(t *testing.T) {
	r := newRing(t)
	a := r.start("a", span(0, 8))
	r.ready()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan report.Event, 100)
	done := make(chan error, 1)
	go func() {
		done <- a.Follow(ctx, time.Time{}, func(e report.Event) error { seen <- e; return nil })
	}()
	r.start("b")
	var last uint64
	for e := range seen {
		if e.Seq != last+1 || e.Node != "a" || e.At.Location() != time.UTC {
			t.Fatalf("event %+v after number %d", e, last)
		}
		last = e.Seq
		if e.Type == "node-join" && e.Peer == "b" {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := a.Follow(t.Context(), time.Time{}, func(report.Event) error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("the reader's error came back as %v", err)
	}
	if n := len(a.Events(time.Now().Add(time.Hour))); n != 0 {
		t.Errorf("%d events from the future", n)
	}
}

func TestBadConfig(t *testing.T) {
	good := daemon.AssignedStage{Model: toyTopology(), Layers: span(0, 8), Width: 64}
	for want, change := range map[string]func(*daemon.Config){
		"node name":         func(c *daemon.Config) { c.Name = "" },
		"role":              func(c *daemon.Config) { c.Role = "boss" },
		"a gateway has no":  func(c *daemon.Config) { c.Role = "gateway" },
		"api address":       func(c *daemon.Config) { c.APIAddr = "8080" },
		"want layers":       func(c *daemon.Config) { c.Assigned[0].Layers = span(4, 9) },
		"assigned twice":    func(c *daemon.Config) { c.Assigned = append(c.Assigned, good) },
		"start at layer 0":  func(c *daemon.Config) { c.Assigned = append(c.Assigned, c.Assigned[0]); c.Assigned[1].Layers.Hi = 4 },
		"a row of 0 bytes":  func(c *daemon.Config) { c.Assigned[0].Width = 0 },
		"no engine":         func(*daemon.Config) {},
		"threads":           func(c *daemon.Config) { c.Threads = -1 },
		"zone of 600 bytes": func(c *daemon.Config) { c.Zone, c.Assigned = strings.Repeat("z", 600), nil },
		"kv standbys 2":     func(c *daemon.Config) { c.Standbys = 2 },
		"kv block tokens":   func(c *daemon.Config) { c.KV.BlockTokens = 1 << 20 },
		"kv bytes -1":       func(c *daemon.Config) { c.KV.Bytes = -1 },
		"0 layers, context": func(c *daemon.Config) { c.Assigned[0].Model.Layers = 0 },
	} {
		c := daemon.Config{Name: "x", Secret: make([]byte, 32), DataDir: t.TempDir(), Assigned: []daemon.AssignedStage{good}, Dev: true}
		change(&c)
		if _, err := daemon.New(c, daemon.Deps{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// TestPortInUse wants New to name the port and to release what it had bound.
func TestPortInUse(t *testing.T) {
	r := newRing(t)
	a := r.start("a")
	c := a.cfg
	c.Name, c.DataDir, c.MeshListen = "b", t.TempDir(), a.MeshAddr()
	if _, err := daemon.New(c, daemon.Deps{}); err == nil || !strings.Contains(err.Error(), a.MeshAddr()) {
		t.Errorf("a mesh port in use: %v", err)
	}
	c.MeshListen, c.BulkListen = r.port(), a.MeshAddr()
	for range 2 { // the mesh's port is free again
		if _, err := daemon.New(c, daemon.Deps{}); err == nil || !strings.Contains(err.Error(), "bulk_port") {
			t.Errorf("a bulk port in use: %v", err)
		}
	}
	c.BulkListen, c.GossipBind = r.port(), a.GossipAddr()
	for range 2 {
		if _, err := daemon.New(c, daemon.Deps{}); err == nil || !strings.Contains(err.Error(), "gossip needs") {
			t.Errorf("a gossip port in use: %v", err)
		}
	}
}
