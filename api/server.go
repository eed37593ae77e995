package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Config says how a Server listens.
type Config struct {
	// Listen is host:port. One that other hosts reach needs KeysFile.
	Listen string
	// Listener, when not nil, is used instead of listening on Listen, which must be its
	// address: a service manager has opened it. The server closes it.
	Listener net.Listener
	// KeysFile lists the API keys, a line NAME:SHA256 each, see NewKey, which may go on with
	// in_flight=N (requests at once) and rate=N (requests a minute) that the key may have on
	// this node; more are answered 429. Without the file no key is needed.
	KeysFile string
	// SharePrefixes lets the KV of one key's prompts serve another's. A client can then
	// tell, by time and by cached_tokens, that somebody else began a prompt alike.
	SharePrefixes bool
	// TLSCert and TLSKey are PEM files; both or none.
	TLSCert, TLSKey string
	// MaxInFlight is how many completions run at once; more are answered 429. 0 means
	// 256.
	MaxInFlight int
	// Drain is how long open requests may go on once Run's context has ended; then
	// their streams end with an error event. 0 ends them at once.
	Drain time.Duration
	// Shed, when not nil, is told why a request was turned away before it became a
	// session.
	Shed func(reason string)
	Log  *slog.Logger
}

// Server is the HTTP API of a node.
type Server struct {
	cfg       Config
	gen       Generator
	listener  net.Listener
	keys      *keyring      // nil: no key is needed
	cert      *certificate  // nil: no TLS
	certEvery time.Duration // between looks at its files
	inFlight  chan struct{} // a semaphore: one entry for each running completion
	handler   http.Handler
}

// ConfigError says that a server was told to listen in a way that it must not, or with
// keys or a certificate that are none.
type ConfigError struct{ err error }

// Error implements error.
func (e *ConfigError) Error() string { return e.err.Error() }

// Unwrap gives errors.Is and errors.As what is inside.
func (e *ConfigError) Unwrap() error { return e.err }

// Open reads the keys and the certificate and listens, so that mistakes and a taken port
// show before anything else is begun. Clients wait until Run; Attach comes before it. A
// server that never runs is closed.
func Open(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, certEvery: certEvery, inFlight: make(chan struct{}, cmp.Or(cfg.MaxInFlight, defaultInFlight))}
	var err error
	if cfg.KeysFile != "" {
		if s.keys, err = openKeyring(cfg.KeysFile); err != nil {
			return nil, &ConfigError{err}
		}
	}
	if cfg.TLSCert != "" || cfg.TLSKey != "" {
		if s.cert, err = openCertificate(cfg.TLSCert, cfg.TLSKey); err != nil {
			return nil, &ConfigError{err}
		}
	}
	local, err := isLoopback(cfg.Listen)
	if err != nil {
		return nil, &ConfigError{fmt.Errorf("API listen address %s: %w", cfg.Listen, err)}
	}
	switch {
	case !local && s.keys == nil:
		return nil, &ConfigError{fmt.Errorf("API listen address %s: other hosts reach it, which needs API keys: "+
			"set [api] keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1", cfg.Listen)}
	case !local && s.cert == nil:
		cfg.Log.Warn("prompts and API keys travel unencrypted: set [api] tls_cert and tls_key, or trust the network", "listen", cfg.Listen)
	}
	if s.listener = cfg.Listener; s.listener != nil {
		return s, nil
	}
	if s.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen for the API on %s (TCP): %w: choose another [api] listen, or stop what holds the port", cfg.Listen, err)
	}
	return s, nil
}

// Attach gives the server what answers; metrics answers /metrics.
func (s *Server) Attach(gen Generator, metrics http.Handler) {
	s.gen = gen
	s.handler = s.routes(metrics)
}

// Close releases the address of a server that does not run.
func (s *Server) Close() error {
	if err := s.listener.Close(); err != nil {
		return fmt.Errorf("release the API's address: %w", err)
	}
	return nil
}

// isLoopback reports whether only this host reaches the address.
func isLoopback(listen string) (bool, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false, fmt.Errorf("want HOST:PORT: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback(), nil
}

// Reload reads the keys and the certificate again; requests under way go on. What
// cannot be read stays as it was, and is in the error.
func (s *Server) Reload() error {
	var errs []error
	if s.keys != nil {
		errs = append(errs, s.keys.reload())
	}
	if s.cert != nil {
		errs = append(errs, s.cert.reload())
	}
	return errors.Join(errs...)
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Handler returns the API without its listener, for tests.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	keyed := func(path string, h http.Handler) { mux.Handle(path, s.keyed(h)) }
	keyed("/v1/chat/completions", http.HandlerFunc(s.chat))
	keyed("/v1/completions", http.HandlerFunc(s.completions))
	keyed("/v1/models", http.HandlerFunc(s.models))
	keyed("/v1/models/", http.HandlerFunc(s.model))
	keyed("/metrics", metrics)
	// Probes have no keys, and no share in the limit of requests: a node under load
	// must not look dead.
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
	if s.cert != nil {
		following, stop := context.WithCancel(ctx)
		var follower sync.WaitGroup
		follower.Go(func() { s.cert.follow(following, s.certEvery, s.cfg.Log) })
		defer follower.Wait()
		defer stop()
	}
	return serve(ctx, s.listener, s.handler, s.cert.config(), s.cfg.Drain, s.cfg.Log)
}

// serve runs an HTTP server until ctx ends, gives open requests the drain time,
// ends them with errStopping, and waits for them. Without secure it speaks plain HTTP.
func serve(ctx context.Context, l net.Listener, h http.Handler, secure *tls.Config, drain time.Duration, log *slog.Logger) error {
	// Requests outlive ctx until the drain time has passed.
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	srv := &http.Server{
		Handler:           h,
		TLSConfig:         secure,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       withConn,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	unhook := context.AfterFunc(ctx, func() { stopped <- shutdown(ctx, srv, end, drain) })
	listen := srv.Serve
	if secure != nil {
		listen = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	err := listen(l)
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
