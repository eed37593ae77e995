package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
)

// Version is what a binary says about itself.
type Version struct {
	Version    string   `json:"version"`
	Commit     string   `json:"commit"`
	Go         string   `json:"go"`
	Engine     string   `json:"engine"`
	Transports []string `json:"transports"` // compiled in
}

// Node is what the control socket asks and tells its daemon.
type Node interface {
	Members() report.Members
	Topology() report.Topology
	// Sessions lists those owned here, or with all those of every node that answers.
	Sessions(ctx context.Context, all bool) report.Sessions
	Status() report.Status
	// Clocks compares the clocks of the other members with this node's.
	Clocks(ctx context.Context) report.Clocks
	// Events hands out the logged events since the given time, and with follow also
	// those to come, until ctx ends or emit fails.
	Events(ctx context.Context, since time.Time, follow bool, emit func(report.Event) error) error

	Join(ctx context.Context, addrs []string) (report.Join, error)
	// Leave drains, leaves the ring and stops the daemon.
	Leave(ctx context.Context, timeout time.Duration) (report.Leave, error)
	// Drain stops taking new sessions, or with undo takes them again. An empty node
	// is this one.
	Drain(ctx context.Context, node string, undo bool) error
	ForceLeave(ctx context.Context, node string) error
	// Fetch copies the weights of some layers of a model (hi 0: all) from peers to this
	// node's disk, and hands out how far it is now and then, and in the end with Path.
	Fetch(ctx context.Context, model string, lo, hi int, emit func(report.Fetch) error) error
	// Keys lists or changes the cluster secrets of all members: do is list, add (with
	// secret), use or remove (with the ID of one).
	Keys(ctx context.Context, do string, secret []byte, id string) (report.Keys, error)
}

// Control is the control socket: HTTP and JSON, for root and the daemon's user. Members
// of its group may GET what readers lists; who else calls is answered 403.
//
//	GET  /members /topology /sessions[?all=true] /status /version   one document
//	GET  /clocks                                                    one document, after asking all
//	GET  /events[?since=10m][&follow=true]                          one event a line
//	GET  /metrics                                                   as on the API
//	POST /join {"addrs": [...]}  /leave {"timeout_ms": n}           one document
//	POST /drain {"node": "", "undo": false}  /force-leave {"node"}  {}
//	POST /fetch {"model": "", "lo": 0, "hi": 0}                     JSON lines, see FetchLine
//	POST /keys {"do": "", "secret": "base64", "id": ""}             one document
//	POST /generate, body as POST /v1/completions                    JSON lines, see Chunk
//	POST /chat, body as POST /v1/chat/completions                   the same
//	GET  /debug/pprof/...
//
// Errors are an HTTP status and {"error": {...}} as in the API.
type Control struct {
	node     Node
	gen      Generator
	version  Version
	listener *ControlListener
	log      *slog.Logger
	handler  http.Handler
}

// NewControl serves on l; metrics answers /metrics.
func NewControl(l *ControlListener, node Node, gen Generator, metrics http.Handler, v Version, log *slog.Logger) *Control {
	c := &Control{node: node, gen: gen, version: v, listener: l, log: log}
	c.handler = l.door.guard(c.routes(metrics))
	return c
}

// Run serves until ctx ends. Requests under way are ended then: the CLI waits for
// none longer than that.
func (c *Control) Run(ctx context.Context) error {
	return serve(ctx, c.listener, c.handler, nil, 0, c.log)
}

func (c *Control) routes(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	document := func(path string, get func(r *http.Request) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, get(r)) })
	}
	document("/members", func(*http.Request) any { return c.node.Members() })
	document("/topology", func(*http.Request) any { return c.node.Topology() })
	document("/sessions", func(r *http.Request) any { return c.node.Sessions(r.Context(), isSet(r, "all")) })
	document("/status", func(*http.Request) any { return c.node.Status() })
	document("/clocks", func(r *http.Request) any { return c.node.Clocks(r.Context()) })
	document("/version", func(*http.Request) any { return c.version })
	mux.HandleFunc("GET /events", c.events)
	mux.HandleFunc("POST /fetch", c.fetch)
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) { c.generate(w, r, Complete) })
	mux.HandleFunc("POST /chat", func(w http.ResponseWriter, r *http.Request) { c.generate(w, r, CompleteChat) })
	command(mux, "/join", func(ctx context.Context, q joinQuery) (any, error) { return answer(c.node.Join(ctx, q.Addrs)) })
	command(mux, "/leave", func(ctx context.Context, q leaveQuery) (any, error) {
		if q.TimeoutMS < 0 || q.TimeoutMS > MaxLeave.Milliseconds() { // looked at before it is multiplied
			return nil, badField("timeout_ms", "timeout_ms is %d: want 0 to %d, a week in milliseconds", q.TimeoutMS, MaxLeave.Milliseconds())
		}
		return answer(c.node.Leave(ctx, time.Duration(q.TimeoutMS)*time.Millisecond))
	})
	command(mux, "/drain", func(ctx context.Context, q drainQuery) (any, error) {
		return struct{}{}, c.node.Drain(ctx, q.Node, q.Undo)
	})
	command(mux, "/force-leave", func(ctx context.Context, q drainQuery) (any, error) {
		return struct{}{}, c.node.ForceLeave(ctx, q.Node)
	})
	command(mux, "/keys", func(ctx context.Context, q keysQuery) (any, error) {
		return answer(c.node.Keys(ctx, q.Do, q.Secret, q.ID))
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, newError(http.StatusNotFound, "not_found", "the control socket has no %s %s: are the daemon and this program of one version?", r.Method, r.URL.Path))
	})
	return mux
}

// The bodies of commands.
type (
	joinQuery  struct{ Addrs []string }
	leaveQuery struct {
		TimeoutMS int64 `json:"timeout_ms"` // 0 to MaxLeave
	}
	drainQuery struct {
		Node string
		Undo bool
	}
	keysQuery struct {
		Do     string `json:"do"`
		Secret []byte `json:"secret,omitempty"`
		ID     string `json:"id,omitempty"`
	}
)

// command registers a POST with a JSON body.
func command[Q any](mux *http.ServeMux, path string, do func(context.Context, Q) (any, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := readBody(w, r, maxControlBody, &q); err != nil {
			writeError(w, err)
			return
		}
		v, err := do(r.Context(), q)
		if err != nil {
			writeError(w, asError(err))
			return
		}
		writeJSON(w, http.StatusOK, v)
	})
}

// answer makes a document of a typed result.
func answer[T any](v T, err error) (any, error) { return v, err }

func isSet(r *http.Request, name string) bool {
	v, err := strconv.ParseBool(r.URL.Query().Get(name))
	return err == nil && v
}

// events answers GET /events.
func (c *Control) events(w http.ResponseWriter, r *http.Request) {
	var since time.Time
	if s := r.URL.Query().Get("since"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			writeError(w, badField("since", "since is %q: want a duration such as 10m", s))
			return
		}
		since = time.Now().Add(-d)
	}
	lines := newLines(w)
	follow := isSet(r, "follow")
	if follow {
		lines.begin() // so that the reader knows that it is following
	}
	err := c.node.Events(r.Context(), since, follow, func(e report.Event) error { return lines.write(e) })
	switch {
	case r.Context().Err() != nil: // the reader is gone, or the daemon stops
	case err != nil && !lines.begun:
		writeError(w, asError(err))
	case err != nil:
		_ = lines.write(envelope{asError(err)})
	default:
		lines.begin()
	}
}

// lines writes JSON lines, each at once.
type lines struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func newLines(w http.ResponseWriter) *lines {
	return &lines{w: w, rc: http.NewResponseController(w)}
}

// begin sends the headers.
func (l *lines) begin() {
	if l.begun {
		return
	}
	l.begun = true
	l.w.Header().Set("Content-Type", "application/jsonl")
	l.w.WriteHeader(http.StatusOK)
	_ = l.rc.Flush() // a reader that is gone shows at the next line
}

func (l *lines) write(v any) error {
	l.begin()
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's writer has no deadlines
	if err := json.NewEncoder(l.w).Encode(v); err != nil {
		return err
	}
	return l.rc.Flush()
}
