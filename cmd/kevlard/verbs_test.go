package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
)

// scripted is an api.Node and api.Generator that answers what the test says.
type scripted struct {
	members  report.Members
	topology report.Topology
	sessions report.Sessions
	status   report.Status
	clocks   report.Clocks
	events   []report.Event
	join     report.Join
	leave    report.Leave
	fetches  []report.Fetch
	keys     report.Keys
	asked    []string // of keys
	err      error    // of fetch, keys, join, drain and force-leave
	models   []api.Model
	broken   *kevlard.Failure // of generate, once its answer has begun
}

func (s *scripted) Members() report.Members                        { return s.members }
func (s *scripted) Topology() report.Topology                      { return s.topology }
func (s *scripted) Sessions(context.Context, bool) report.Sessions { return s.sessions }
func (s *scripted) Status() report.Status                          { return s.status }
func (s *scripted) Clocks(context.Context) report.Clocks           { return s.clocks }
func (s *scripted) Drain(context.Context, string, bool) error      { return s.err }
func (s *scripted) ForceLeave(context.Context, string) error       { return s.err }
func (s *scripted) Fetch(_ context.Context, _ string, _, _ int, emit func(report.Fetch) error) error {
	for _, f := range s.fetches {
		if err := emit(f); err != nil {
			return err
		}
	}
	return s.err
}

func (s *scripted) Keys(_ context.Context, do string, _ []byte, id string) (report.Keys, error) {
	s.asked = append(s.asked, do+" "+id)
	return s.keys, s.err
}

func (s *scripted) Models() []api.Model   { return s.models }
func (s *scripted) Ready() (bool, string) { return false, "scripted" }

func (s *scripted) Join(context.Context, []string) (report.Join, error) { return s.join, s.err }

func (s *scripted) Leave(context.Context, time.Duration) (report.Leave, error) { return s.leave, nil }

func (s *scripted) Events(_ context.Context, _ time.Time, _ bool, emit func(report.Event) error) error {
	for _, e := range s.events {
		if err := emit(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *scripted) Generate(context.Context, api.GenRequest) (api.Stream, error) {
	return brokenStream{s.broken}, nil
}

func (s *scripted) Resume(context.Context, api.ResumeRequest) (api.Stream, error) {
	return brokenStream{s.broken}, nil
}

// brokenStream is an answer that fails at once.
type brokenStream struct{ why *kevlard.Failure }

func (b brokenStream) ID() kevlard.SessionID { return "s1" }
func (b brokenStream) Close() error          { return nil }
func (b brokenStream) Pause() error          { return nil }

func (b brokenStream) Next(context.Context) (api.Update, error) {
	return api.Update{Done: true, Reason: "error", Err: b.why}, nil
}

// letters is an api.Tokenizer of one token.
type letters struct{}

func (letters) Encode(string) ([]kevlard.Token, error) { return []kevlard.Token{1}, nil }
func (letters) EndOfGeneration() []kevlard.Token       { return nil }
func (letters) Piece(kevlard.Token) []byte             { return nil }
func (letters) TokenName(kevlard.Token) string         { return "" }
func (letters) NewDecoder() api.Decoder                { return nil }

// control serves s on a socket for the time of the test.
func (s *scripted) control(t *testing.T) string {
	t.Helper()
	return s.controlFor(t, filepath.Join(t.TempDir(), "k.sock"), "")
}

// controlFor is control at a path, for a group too.
func (s *scripted) controlFor(t *testing.T, path, group string) string {
	t.Helper()
	l, err := api.ListenControl(path, group)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- api.NewControl(l, s, s, http.NotFoundHandler(), api.Version{}, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

// script is a node with one of everything.
func script() *scripted {
	stage := report.Stage{Model: "sha256:aa", Lo: 0, Hi: 2, State: "loading", Progress: 0.5}
	return &scripted{
		members: report.Members{Ring: "default", Self: "node-1", Size: 1, Nodes: []report.Member{{
			Name: "node-1", ID: "12D3KooX", Role: "host", Addr: "127.0.0.11:1", MeshAddr: "127.0.0.11:2", BulkAddr: "127.0.0.11:3",
			API: "http://127.0.0.11:0", Control: "/d/k.sock", PID: 7, Engines: []report.Engine{{PID: 8, Device: "cpu", Lo: 0, Hi: 2}},
			State: "alive", Reason: "loading", Version: "0.1.0", Boot: "01J", Labels: map[string]string{}, RTTMS: 0.2, Stages: []report.Stage{stage},
		}}},
		topology: report.Topology{Models: []report.Model{{
			ID: "sha256:aa", Name: "fairy", Layers: 8, Degraded: true,
			Pipelines:       []report.Pipeline{{ID: "p0", Stages: []report.PipelineStage{{Lo: 0, Hi: 2, Node: "node-1", State: "ready"}}}},
			UnderReplicated: []report.UnderReplicated{{Lo: 2, Hi: 4, Ready: 1, Want: 2}},
		}}},
		sessions: report.Sessions{Sessions: []report.Session{{
			ID: "s1", Model: "sha256:aa", Owner: "node-1", Epoch: 1, Term: 3, Tokens: 412, State: "decode", Route: []string{"node-1", "node-2"},
			Standbys: [][]string{{"node-5"}, {}}, ReplicatedThrough: []int{410, 0}, Failovers: 1, LastGapMS: 87.2,
		}}},
		status: report.Status{Node: "node-1", Reason: "loading", Problems: []report.Problem{{What: "alone", Fix: "join"}}},
		events: []report.Event{{At: time.Unix(0, 0).UTC(), Node: "node-1", Type: "failover", Session: "s1", Cause: "reset", Seq: 4}},
		join:   report.Join{Asked: 2, Answered: 1, Errors: map[string]string{"b:2": "refused"}, Seen: []string{"node-1"}},
	}
}

// TestShapes compares what the read verbs print with the contract's JSON, field by
// field and in order.
func TestShapes(t *testing.T) {
	socket := script().control(t)
	for verb, want := range map[string]string{
		"members": `{"ring":"default","self":"node-1","size":1,"nodes":[{"name":"node-1","id":"12D3KooX","role":"host","addr":"127.0.0.11:1",` +
			`"mesh_addr":"127.0.0.11:2","bulk_addr":"127.0.0.11:3","api":"http://127.0.0.11:0","control":"/d/k.sock","pid":7,` +
			`"engines":[{"pid":8,"device":"cpu","lo":0,"hi":2}],"state":"alive","ready":false,"reason":"loading","version":"0.1.0","boot":"01J",` +
			`"zone":"","labels":{},"rtt_ms":0.2,"stages":[{"model":"sha256:aa","lo":0,"hi":2,"state":"loading","progress":0.5}]}]}`,
		"topology": `{"models":[{"id":"sha256:aa","name":"fairy","layers":8,"degraded":true,"pipelines":[{"id":"p0","stages":[{"lo":0,"hi":2,` +
			`"node":"node-1","state":"ready","shared":false}]}],"under_replicated":[{"lo":2,"hi":4,"ready":1,"want":2}]}]}`,
		"sessions": `{"sessions":[{"id":"s1","model":"sha256:aa","owner":"node-1","epoch":1,"term":3,"tokens":412,"state":"decode",` +
			`"route":["node-1","node-2"],"standbys":[["node-5"],[]],"replicated_through":[410,0],"failovers":1,"last_gap_ms":87.2}]}`,
		"events":   `{"at":"1970-01-01T00:00:00Z","node":"node-1","type":"failover","session":"s1","cause":"reset","seq":4}`,
		"join a:1": `{"asked":2,"answered":1,"errors":{"b:2":"refused"},"seen":["node-1"]}`,
		"leave":    `{"lost":false,"cut":0}`,
		"drain":    `{"draining":true}`,
	} {
		r := program(t, nil, "", append(strings.Fields(verb), "-o", "json", "--control", socket)...)
		if got := squeeze(r.stdout); r.code != 0 || got != want {
			t.Errorf("%s: exit %d, %s\ngot  %s\nwant %s", verb, r.code, r.stderr, got, want)
		}
	}
}

// TestModelFetchVerb checks what the verb sends, prints and exits with.
func TestModelFetchVerb(t *testing.T) {
	s := script()
	s.fetches = []report.Fetch{
		{Model: "sha256:aa", Name: "fairy", Hi: 2, Bytes: 1 << 20, Total: 2 << 20, Units: []report.FetchUnit{}, Holders: []report.FetchHolder{}},
		{
			Model: "sha256:aa", Name: "fairy", Hi: 2, Bytes: 2 << 20, Total: 2 << 20, Fetched: 3 << 20, Path: "/d/models/aa",
			Units: []report.FetchUnit{}, Holders: []report.FetchHolder{{Node: "node-2", Bytes: 2 << 20, Wrong: 1, Dropped: "wrong"}},
		},
	}
	socket := s.control(t)
	r := program(t, nil, "", "model", "fetch", "fairy", "--layers", "0-2", "--control", socket)
	for _, text := range []string{"/d/models/aa", "layers 0-2", "from node-2, 1 chunks rejected; not asked any more: wrong"} {
		if r.code != 0 || !strings.Contains(r.stdout, text) {
			t.Errorf("exit %d: %s%s, want %q", r.code, r.stdout, r.stderr, text)
		}
	}
	for _, bad := range []string{"2-0", "2", "a-b", "-1-2"} {
		if r := program(t, nil, "", "model", "fetch", "fairy", "--layers="+bad, "--control", socket); r.code != 2 || !strings.Contains(r.stderr, "--layers") {
			t.Errorf("--layers %s: exit %d, %s", bad, r.code, r.stderr)
		}
	}
	s = script()
	s.err = &kevlard.Failure{Code: "no_holder", Status: 500, Message: "nobody has it: layer.1"}
	if r := program(t, nil, "", "model", "fetch", "fairy", "--control", s.control(t)); r.code != 1 || !strings.Contains(r.stderr, "layer.1") {
		t.Errorf("nobody has it: exit %d, %s", r.code, r.stderr)
	}
}

// squeeze removes the layout of JSON whose strings have no spaces.
func squeeze(text string) string { return strings.Join(strings.Fields(text), "") }

// TestTables checks what people see.
func TestTables(t *testing.T) {
	socket := script().control(t)
	for verb, want := range map[string][]string{
		"members":  {"NAME", "node-1 *", "no: loading", "0-2 loading 50 %", "0.2 ms"},
		"topology": {"fairy", "8 layers  DEGRADED", "p0", "0-2", "layers 2-4: 1 ready of 2 wanted"},
		"sessions": {"s1", "decode", "1.3", "node-1 > node-2", "87 ms"},
		"events":   {"failover session=s1 cause=reset"},
		"status":   {"no: loading", "alone", "-> join"},
		"join a:1": {"1 of 2 answered; the ring shows node-1"},
		"leave":    {"left; no session was lost"},
	} {
		r := program(t, nil, "", append(strings.Fields(verb), "--control", socket)...)
		for _, w := range want {
			if r.code != 0 || !strings.Contains(r.stdout, w) {
				t.Errorf("%s: exit %d, want %q in\n%s", verb, r.code, w, r.stdout)
			}
		}
	}
}

// TestExitCodes checks how the daemon's answers map to exit codes.
func TestExitCodes(t *testing.T) {
	s := script()
	socket := s.control(t)
	for _, c := range []struct {
		name, args string
		change     func()
		code       int
		stderr     string
	}{
		{"not ready", "status --check", func() {}, 1, ""},
		{"ready", "status --check", func() { s.status.Ready = true }, 0, ""},
		{"lost", "leave --timeout 1s", func() { s.leave = report.Leave{Lost: true, Cut: 2} }, 1, "kevlard: leave: left, but 2 sessions had not ended within 1s and were cut off: give --timeout more next time\n"},
		{"nobody answered", "join b:2", func() { s.join.Answered = 0 }, 1, "kevlard: b:2: refused\nkevlard: join b:2: nobody answered: is the address the gossip address of a running member, are UDP and TCP open, is the secret the same?\n"},
		{"refused", "drain", func() { s.err = &kevlard.Failure{Code: "no_quorum", Status: 409, Message: "no quorum"} }, 5, "kevlard: drain this node: no quorum\n"},
		{"failed", "force-leave n2", func() { s.err = errors.New("n2 is alive: let it leave") }, 1, "kevlard: force-leave n2: n2 is alive: let it leave\n"},
		{"timed out", "force-leave n2", func() { s.err = &kevlard.Failure{Code: "timeout", Status: 504, Message: "no answer"} }, 4, "kevlard: force-leave n2: no answer\n"},
		{"no model", "generate x", func() {}, 2, "kevlard: model is missing (none is served now)\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.change()
			r := program(t, nil, "", append(strings.Fields(c.args), "--control", socket)...)
			if r.code != c.code || r.stderr != c.stderr {
				t.Errorf("exit %d, stderr %q\nwant %d, %q", r.code, r.stderr, c.code, c.stderr)
			}
		})
	}
}

// TestStatusCheckOfHungDaemon: a health checker gets one line and exit 1.
func TestStatusCheckOfHungDaemon(t *testing.T) {
	mute, err := net.Listen("unix", filepath.Join(t.TempDir(), "k.sock")) // a daemon that hangs
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	r := program(t, nil, "", "status", "--check", "--control", mute.Addr().String())
	if r.code != exitFailed || r.stderr != "" || r.stdout != "not ready: the daemon did not answer within 900ms\n" {
		t.Errorf("%+v", r)
	}
}

// TestStatusOfHungDaemon: a person is told, and does not wait for ever.
func TestStatusOfHungDaemon(t *testing.T) {
	mute, err := net.Listen("unix", filepath.Join(t.TempDir(), "k.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	_, err = askStatus(t.Context(), api.NewClient(mute.Addr().String()), 50*time.Millisecond)
	if exitCode(t.Context(), err) != exitTimeout || !strings.HasPrefix(err.Error(), "the daemon did not answer within 50ms: see its log") {
		t.Error(err)
	}
}

// TestRefusalsExitFive checks the refusals by policy, of generate after its answer
// has begun.
func TestRefusalsExitFive(t *testing.T) {
	s := script()
	s.models = []api.Model{{ID: kevlard.Digest{1}, Name: "m", Context: 1000, Vocab: 10, Tokenizer: letters{}}}
	socket := s.control(t)
	for code, c := range map[string]struct{ status, exit int }{
		"capacity": {503, 5}, "no_route": {503, 5}, "draining": {503, 5}, "overloaded": {429, 5}, "poisoned": {500, 5}, "no_quorum": {409, 5},
		"too_large": {400, 2}, "internal_error": {500, 1},
	} {
		s.broken = &kevlard.Failure{Code: code, Status: c.status, Message: "because"}
		if r := program(t, nil, "", "generate", "x", "--control", socket); r.code != c.exit || r.stderr != "kevlard: because\n" {
			t.Errorf("generate, %s: exit %d, want %d, %q", code, r.code, c.exit, r.stderr)
		}
	}
	for code, status := range map[string]int{"wrong_secret": 403, "name_taken": 409} {
		s.err = &kevlard.Failure{Code: code, Status: status, Message: "because"}
		if r := program(t, nil, "", "join", "a:1", "--control", socket); r.code != 5 {
			t.Errorf("join, %s: exit %d, %q", code, r.code, r.stderr)
		}
	}
}

// TestInterrupt checks that an interrupted verb exits 130.
func TestInterrupt(t *testing.T) {
	socket := script().control(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	var out, err strings.Builder
	if code := run(ctx, []string{"members", "--watch", "--control", socket}, nil, nil, &out, &err); code != exitInterrupted {
		t.Errorf("exit %d, stderr %q", code, err.String())
	}
}
