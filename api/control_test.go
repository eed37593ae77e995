package api

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// toyNode is a working Node of a ring of one.
type toyNode struct {
	draining bool
	events   []report.Event
	more     chan report.Event
}

func (n *toyNode) Members() report.Members {
	return report.Members{Ring: "r", Self: "n1", Size: 1, Nodes: []report.Member{{Name: "n1", State: "alive"}}}
}

func (n *toyNode) Topology() report.Topology {
	return report.Topology{Models: []report.Model{{Name: "toy", Layers: 4}}}
}

func (n *toyNode) Sessions(_ context.Context, all bool) report.Sessions {
	s := report.Sessions{Sessions: []report.Session{{ID: "mine"}}}
	if all {
		s.Sessions = append(s.Sessions, report.Session{ID: "theirs"})
	}
	return s
}

func (n *toyNode) Status() report.Status { return report.Status{Node: "n1", Draining: n.draining} }

func (n *toyNode) Events(ctx context.Context, since time.Time, follow bool, emit func(report.Event) error) error {
	for _, e := range n.events {
		if e.At.Before(since) {
			continue
		}
		if err := emit(e); err != nil {
			return err
		}
	}
	for follow {
		select {
		case e := <-n.more:
			if err := emit(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (n *toyNode) Join(_ context.Context, addrs []string) (report.Join, error) {
	return report.Join{Asked: len(addrs), Answered: 1, Seen: []string{"n1"}}, nil
}

func (n *toyNode) Leave(_ context.Context, timeout time.Duration) (report.Leave, error) {
	return report.Leave{Lost: timeout < time.Second, Cut: 1}, nil
}

func (n *toyNode) Drain(_ context.Context, node string, undo bool) error {
	if node != "" {
		return &kevlard.Failure{Code: "unknown_node", Status: 404, Message: "no node " + node}
	}
	n.draining = !undo
	return nil
}

func (n *toyNode) Fetch(context.Context, string, int, int, func(report.Fetch) error) error {
	return errors.New("it has no disk")
}

func (n *toyNode) Clocks(context.Context) report.Clocks {
	return report.Clocks{Clocks: []report.Clock{{Node: "n2", OffsetMS: -3}}}
}

func (n *toyNode) ForceLeave(context.Context, string) error { return errors.New("it is alive") }

func (n *toyNode) Keys(_ context.Context, do string, secret []byte, id string) (report.Keys, error) {
	return report.Keys{Nodes: []report.NodeKeys{{Node: do, State: string(secret), Secrets: []string{id}}}}, nil
}

// startControl runs a control socket and returns a client of it.
func startControl(t *testing.T, node Node, gen Generator) (*Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "k.sock")
	l, err := ListenControl(path, "")
	if err != nil {
		t.Fatal(err)
	}
	c := NewControl(l, node, gen, http.NotFoundHandler(), Version{Version: "1.2.3"}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return NewClient(path), path
}

func TestControlDocuments(t *testing.T) {
	node := &toyNode{}
	c, _ := startControl(t, node, &toy{})
	ctx := t.Context()
	for _, q := range []struct {
		name string
		ask  func() (any, error)
		want string
	}{
		{"members", func() (any, error) { return answer(c.Members(ctx)) }, `"self":"n1"`},
		{"topology", func() (any, error) { return answer(c.Topology(ctx)) }, `"name":"toy"`},
		{"sessions", func() (any, error) { return answer(c.Sessions(ctx, false)) }, `"id":"mine"`},
		{"clocks", func() (any, error) { return answer(c.Clocks(ctx)) }, `"offset_ms":-3`},
		{"all sessions", func() (any, error) { return answer(c.Sessions(ctx, true)) }, `"id":"theirs"`},
		{"version", func() (any, error) { return answer(c.Version(ctx)) }, `"version":"1.2.3"`},
		{"join", func() (any, error) { return answer(c.Join(ctx, []string{"a:1", "b:2"})) }, `"asked":2`},
		{"leave", func() (any, error) { return answer(c.Leave(ctx, time.Minute)) }, `"lost":false`},
		{"leave in haste", func() (any, error) { return answer(c.Leave(ctx, time.Millisecond)) }, `"lost":true`},
		{"drain", func() (any, error) { return nil, c.Drain(ctx, "", false) }, `null`},
		{"drained", func() (any, error) { return answer(c.Status(ctx)) }, `"draining":true`},
		{"undo", func() (any, error) { return nil, c.Drain(ctx, "", true) }, `null`},
		{"undone", func() (any, error) { return answer(c.Status(ctx)) }, `"draining":false`},
	} {
		v, err := q.ask()
		if err != nil {
			t.Errorf("%s: %v", q.name, err)
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), q.want) {
			t.Errorf("%s: got %s, want %s in it", q.name, text, q.want)
		}
	}
}

func TestControlErrors(t *testing.T) {
	c, _ := startControl(t, &toyNode{}, &toy{})
	err := c.Drain(t.Context(), "n9", false)
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != 404 || e.Message != "no node n9" {
		t.Errorf("drain of an unknown node: %v", err)
	}
	if k, err := c.Keys(t.Context(), "add", []byte("secret"), "id"); err != nil || len(k.Nodes) != 1 || k.Nodes[0].Node != "add" || k.Nodes[0].State != "secret" || k.Nodes[0].Secrets[0] != "id" {
		t.Errorf("keys: %+v, %v", k, err)
	}
	if err := c.ForceLeave(t.Context(), "n1"); err == nil || err.Error() != "it is alive" {
		t.Errorf("force-leave of a live node: %v", err)
	}
	if err := NewClient(filepath.Join(t.TempDir(), "none")).Drain(t.Context(), "", false); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("no daemon: %v", err)
	}
	_, err = get[report.Status](t.Context(), c, "/nothing")
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != 404 {
		t.Errorf("unknown path: %v", err)
	}
}

// TestFrozenDaemon: a daemon that is stopped, or stuck, takes connections and answers
// nothing. The verbs that ask it end all the same, and say what to do.
func TestFrozenDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.sock")
	l, err := net.Listen("unix", path) // the kernel takes what nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(path)
	c.patience = 50 * time.Millisecond
	for name, ask := range map[string]func() error{
		"members": func() error { _, err := c.Members(t.Context()); return err },
		"drain":   func() error { return c.Drain(t.Context(), "", false) },
		"keys":    func() error { _, err := c.Keys(t.Context(), "list", nil, ""); return err },
		"events":  func() error { return c.Events(t.Context(), 0, true, func(report.Event) error { return nil }) },
		"generate": func() error {
			return c.Generate(t.Context(), struct{}{}, func(Chunk) error { return nil })
		},
	} {
		err := ask()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path+": no answer within 50ms: see its log") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.Members(ctx); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "http://") {
		t.Errorf("with a bound of its own: %v", err)
	}
}

// TestLeaveTimeout: what is no time to wait is refused before anything is done. As a
// Duration the longest would overflow, and cut all sessions off at once.
func TestLeaveTimeout(t *testing.T) {
	node := &toyNode{}
	c, _ := startControl(t, node, &toy{})
	for _, ms := range []int64{-1, MaxLeave.Milliseconds() + 1, math.MaxInt64/1_000_000 + 1, math.MaxInt64, math.MinInt64} {
		_, err := send[report.Leave](t.Context(), c, "/leave", leaveQuery{TimeoutMS: ms})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 || !strings.Contains(e.Message, "timeout_ms is "+strconv.FormatInt(ms, 10)) || !strings.Contains(e.Message, "0 to 604800000") {
			t.Errorf("%d ms: %v", ms, err)
		}
	}
	if l, err := c.Leave(t.Context(), MaxLeave); err != nil || l.Lost {
		t.Errorf("the longest: %+v, %v", l, err)
	}
}

func TestControlEvents(t *testing.T) {
	now := time.Now()
	node := &toyNode{more: make(chan report.Event), events: []report.Event{
		{At: now.Add(-time.Hour), Type: "old", Seq: 1}, {At: now, Type: "new", Seq: 2},
	}}
	c, _ := startControl(t, node, &toy{})
	read := func(ctx context.Context, since time.Duration, follow bool, n int) (types string) {
		enough := errors.New("enough")
		err := c.Events(ctx, since, follow, func(e report.Event) error {
			types += e.Type + " "
			if n--; n == 0 {
				return enough
			}
			return nil
		})
		if err != nil && !errors.Is(err, enough) {
			t.Fatal(err)
		}
		return types
	}
	if got := read(t.Context(), 0, false, 0); got != "old new " {
		t.Errorf("all: %q", got)
	}
	if got := read(t.Context(), time.Minute, false, 0); got != "new " {
		t.Errorf("of the last minute: %q", got)
	}
	go func() { node.more <- report.Event{Type: "later"} }()
	if got := read(t.Context(), time.Minute, true, 2); got != "new later " {
		t.Errorf("followed: %q", got)
	}
}

func TestControlGenerate(t *testing.T) {
	lost := &kevlard.Failure{Code: "no_route", Status: 503, Message: "nobody serves layers [2,4)"}
	g := &toy{lessons: map[string]lesson{
		"p":     {answer: "a€"},
		"lost":  {answer: "abc", after: 1, fail: lost},
		"never": {refuse: lost},
	}}
	c, _ := startControl(t, &toyNode{}, g)
	var chunks []string
	collect := func(chunk Chunk) error {
		text, err := json.Marshal(chunk)
		chunks = append(chunks, string(text))
		return err
	}
	if err := c.Generate(t.Context(), map[string]any{"prompt": "p"}, collect); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"session":".toy"}`, `{"text":"a","token_ids":[97]}`, `{"token_ids":[226]}`, `{"token_ids":[130]}`,
		`{"text":"€","token_ids":[172],"finish_reason":"stop","failovers":[{"at_token":1,"cause":"reset","gap_ms":6,"node":"n2","detect_ms":1,"reroute_ms":2,"restore_ms":3,"known":0,"from":0}]}`,
	}
	if got := strings.Join(chunks, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	for _, q := range []struct {
		prompt  string
		status  int
		message string
	}{
		{"lost", 503, lost.Message}, // the answer had begun, so its HTTP status was 200
		{"never", 503, lost.Message},
		{"", 400, "the prompt is empty"},
	} {
		err := c.Generate(t.Context(), map[string]any{"prompt": q.prompt}, func(Chunk) error { return nil })
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != q.status || e.Message != q.message {
			t.Errorf("%q: %v", q.prompt, err)
		}
	}
}

func TestListenControl(t *testing.T) {
	t.Run("mode", func(t *testing.T) {
		_, path := startControl(t, &toyNode{}, &toy{})
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("mode %v, want a socket of 0600", info.Mode())
		}
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the socket: %v, %v", entries, err)
		}
	})
	t.Run("live", func(t *testing.T) {
		c, path := startControl(t, &toyNode{}, &toy{})
		if l, err := ListenControl(path, ""); err == nil {
			l.Close()
			t.Error("a live daemon's socket was taken")
		}
		if _, err := c.Status(t.Context()); err != nil {
			t.Errorf("the live daemon no longer answers: %v", err)
		}
	})
	t.Run("stale", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.sock")
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		l, err := ListenControl(path, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("not a socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "k.sock")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := ListenControl(path, ""); err == nil {
			l.Close()
			t.Error("a file was replaced")
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
			t.Errorf("the file now has %q, %v", text, err)
		}
	})
	t.Run("taken over", func(t *testing.T) {
		// A listener that closes late must not remove its successor's socket.
		path := filepath.Join(t.TempDir(), "k.sock")
		first, err := ListenControl(path, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		second, err := ListenControl(path, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the second socket: %v", err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("too long", func(t *testing.T) {
		if l, err := ListenControl(filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath)), ""); err == nil || !strings.Contains(err.Error(), "the kernel takes 107") {
			t.Errorf("%v, %v", l, err)
		}
	})
}
