package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/oklog/ulid/v2"
)

// sessionHeader names the session, in requests and answers.
const sessionHeader = "X-Kevlard-Session"

// errStopping ends requests that outlive the shutdown.
var errStopping = newError(http.StatusServiceUnavailable, "node_stopping", "this node is stopping: send the request to another node")

// completions answers POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	s.complete(w, r, new(completionBody))
}

// chat answers POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	s.complete(w, r, new(chatBody))
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request, body requestBody) {
	if !allow(w, r, http.MethodPost) {
		return
	}
	end, ok := s.limited(w, r)
	if !ok {
		return
	}
	defer end()
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	default:
		if s.cfg.Shed != nil {
			s.cfg.Shed("overloaded")
		}
		writeError(w, newError(http.StatusTooManyRequests, "overloaded", "%d requests are running on this node, which is its limit: try again", cap(s.inFlight)))
		return
	}
	if err := readBody(w, r, maxBody, body); err != nil {
		writeError(w, err)
		return
	}
	asked := fingerprint(r.URL.Path, body)
	if err := nameSession(body.common(), r.Header.Get(sessionHeader)); err != nil {
		writeError(w, err)
		return
	}
	c, bad := body.check(s.gen.Models())
	if bad != nil {
		writeError(w, bad)
		return
	}
	events := newSSE(w)
	c.alive = func() bool { return events.alive(r.Context()) }
	for i := range c.choices {
		c.choices[i].gen.Salt = s.salt(r.Context())
	}
	var streams []Stream
	var err error
	if last := r.Header.Get(lastEventHeader); last != "" {
		streams, err = s.resume(r.Context(), c, last, asked)
	} else {
		if client := clientName(r.Context()); client != "" && c.label != "" {
			// Clients cannot see, nor block, the sessions of others.
			c.choices[0].gen.Session = kevlard.SessionID(client + ":" + c.label)
		}
		if c.label != "" { // also with an error, such as session_busy
			w.Header().Set(sessionHeader, c.label)
		}
		c.name(clientSalt(r.Context()), asked)
		streams, err = c.start(r.Context(), s.gen)
	}
	if err != nil {
		writeError(w, asError(err))
		return
	}
	for i, stream := range streams {
		// With several choices the header comes several times, in their order.
		if i == 0 {
			w.Header().Set(sessionHeader, cmp.Or(c.label, labelOf(stream.ID())))
		} else {
			w.Header().Add(sessionHeader, string(stream.ID()))
		}
	}
	if c.stream {
		s.streamed(w, r.Context(), c, events, streams, body.form(c))
	} else {
		s.collected(w, r.Context(), c, streams, body.form(c))
	}
}

// nameSession takes the session's id from the header, unless the body has it.
func nameSession(b *fields, header string) *Error {
	if b.Session != "" && header != "" && b.Session != header {
		return badField("session", "session and the header %s name different sessions: give one of them", sessionHeader)
	}
	b.Session = cmp.Or(b.Session, header)
	return nil
}

// collected answers with one document.
func (s *Server) collected(w http.ResponseWriter, ctx context.Context, c *completion, streams []Stream, f form) {
	whole := make([]piece, len(streams))
	ends, err := c.run(ctx, streams, func(k int, p piece, _ *string) error {
		whole[k].add(p)
		return nil
	})
	s.logEnd(ctx, c, streams, ends, err)
	if err != nil {
		if e := clientError(ctx, err); e != nil {
			writeError(w, e)
		}
		return
	}
	writeJSON(w, http.StatusOK, f.document(whole, ends, c.usageOf(ends)))
}

// name chooses the ids of the sessions and, if the answer can be resumed, what is kept
// with them.
func (c *completion) name(client, asked string) {
	base := kevlard.SessionID(ulid.Make().String())
	if named := c.choices[0].gen.Session; named != "" {
		base = named + "." + base
	}
	c.answer, c.created = ulid.Make().String(), time.Now().Unix()
	c.at = place{session: base}
	var env []byte
	if c.stream {
		env = sealed{sealedVersion, client, asked, c.answer, c.created}.seal()
	}
	for k := range c.choices {
		g := &c.choices[k].gen
		g.ID, g.Envelope, g.Alive = choiceSession(base, k, len(c.choices)), env, c.alive
		c.at.choices = append(c.at.choices, position{phase: fresh})
	}
}

// streamed answers with server-sent events.
func (s *Server) streamed(w http.ResponseWriter, ctx context.Context, c *completion, events *sse, streams []Stream, f form) {
	events.start()
	at := place{c.at.session, slices.Clone(c.at.choices), c.at.usage} // what the client has
	ends, err := c.run(ctx, streams, func(k int, p piece, reason *string) error {
		for _, e := range f.chunks(k, p, reason) {
			if !e.noText {
				at.choices[k] = p.upto
			}
			at.choices[k].phase = e.after
			if err := events.data(at.String(), e.body); err != nil {
				return err
			}
		}
		return nil
	})
	s.logEnd(ctx, c, streams, ends, err)
	if err == nil {
		if c.usage && !at.usage {
			at.usage = true
			err = events.data(at.String(), f.usage(c.usageOf(ends)))
		}
		if err == nil {
			_ = events.raw(at.String(), "[DONE]") // a failed write means that the client is gone
		}
		events.end()
		return
	}
	e := clientError(ctx, err)
	if e == nil {
		events.end()
		return
	}
	if begun := events.end(); !begun {
		writeError(w, e)
		return
	}
	// No finish_reason and no [DONE] follow: this is not an answer.
	_ = events.data(at.String(), envelope{e.resumable(at)})
}

// clientError is what the client is told, or nil if there is none any more.
func clientError(ctx context.Context, err error) *Error {
	if ctx.Err() == nil {
		return asError(err)
	}
	if errors.Is(context.Cause(ctx), errStopping) {
		return errStopping
	}
	return nil
}

// logEnd logs how the choices of a request ended, and their failovers, which
// OpenAI's JSON has no place for.
func (s *Server) logEnd(ctx context.Context, c *completion, streams []Stream, ends []ending, err error) {
	for k, end := range ends {
		reason := end.reason
		if err != nil {
			reason = err.Error()
			if ctx.Err() != nil {
				reason = "client gone"
			}
		}
		s.cfg.Log.Debug("completion ended", "session", streams[k].ID(), "prompt", len(c.choices[k].gen.Prompt), "tokens", end.tokens,
			"reason", reason, "failovers", len(end.failovers))
	}
}

// readBody decodes a body of at most limit bytes, which must arrive in time.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, into any) *Error {
	rc := http.NewResponseController(w)
	// A writer without deadlines is a test's.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer rc.SetReadDeadline(time.Time{})
	return decodeBody(http.MaxBytesReader(w, r.Body, limit), into)
}

// allow refuses other methods than the one given.
func allow(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", method)
	writeError(w, newError(http.StatusMethodNotAllowed, "method_not_allowed", "%s %s: want %s", r.Method, r.URL.Path, method))
	return false
}
