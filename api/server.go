package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Config says how a Server listens.
type Config struct {
	// Listen is host:port. Only loopback addresses are accepted as long as the API
	// has no keys.
	Listen string
	// MaxInFlight is how many completions run at once; more are answered 429. 0 means
	// 256.
	MaxInFlight int
	// Drain is how long open requests may go on once Run's context has ended; then
	// their streams end with an error event. 0 ends them at once.
	Drain time.Duration
	Log   *slog.Logger
}

// Server is the HTTP API of a node.
type Server struct {
	cfg      Config
	gen      Generator
	listener net.Listener
	inFlight chan struct{} // a semaphore: one entry for each running completion
	handler  http.Handler
}

// NewServer listens, so that a taken port shows at once. metrics answers /metrics.
func NewServer(cfg Config, gen Generator, metrics http.Handler) (*Server, error) {
	if err := checkLoopback(cfg.Listen); err != nil {
		return nil, fmt.Errorf("API listen address %s: %w", cfg.Listen, err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the API on %s (TCP): %w: choose another [api] listen, or stop what holds the port", cfg.Listen, err)
	}
	s := &Server{
		cfg: cfg, gen: gen, listener: listener,
		inFlight: make(chan struct{}, cmp.Or(cfg.MaxInFlight, defaultInFlight)),
	}
	s.handler = s.routes(metrics)
	return s, nil
}

// checkLoopback refuses addresses that other hosts reach.
func checkLoopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("want HOST:PORT: %w", err)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return errors.New("other hosts would reach it, which needs API keys, and those are not built yet: listen on 127.0.0.1 and put an authenticating proxy in front")
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Handler returns the API without its listener, for tests.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/completions", s.completions)
	mux.HandleFunc("/v1/models", s.models)
	mux.HandleFunc("/v1/models/", s.model)
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("/readyz", s.ready)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, newError(http.StatusNotFound, "not_found", "there is no %s here", r.URL.Path))
	})
	return mux
}

// ready answers GET /readyz: can this node take a session now?
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	ok, reason := s.gen.Ready()
	if !ok {
		w.Header().Set("Retry-After", retryAfter)
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"ready": false, "reason": reason})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"ready": true})
}

// Run serves until ctx ends and open requests have ended too, or were ended.
func (s *Server) Run(ctx context.Context) error {
	return serve(ctx, s.listener, s.handler, s.cfg.Drain, s.cfg.Log)
}

// serve runs an HTTP server until ctx ends, gives open requests the drain time,
// ends them with errStopping, and waits for them.
func serve(ctx context.Context, l net.Listener, h http.Handler, drain time.Duration, log *slog.Logger) error {
	// Requests outlive ctx until the drain time has passed.
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	unhook := context.AfterFunc(ctx, func() { stopped <- shutdown(ctx, srv, end, drain) })
	err := srv.Serve(l)
	if unhook() {
		// Serve failed by itself: nobody has asked it to stop.
		return errors.Join(fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err), srv.Close())
	}
	return <-stopped
}

func shutdown(ctx context.Context, srv *http.Server, end context.CancelCauseFunc, drain time.Duration) error {
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain+closeTimeout)
	defer cancel()
	timer := time.AfterFunc(drain, func() { end(errStopping) })
	defer timer.Stop()
	if err := srv.Shutdown(patience); err != nil {
		return errors.Join(fmt.Errorf("stop HTTP: requests did not end in %v: %w", drain+closeTimeout, err), srv.Close())
	}
	return nil
}
