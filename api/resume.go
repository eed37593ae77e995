package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// resume finds the sessions of a request whose client was cut off, and gives them this
// client. Where what it has ends, the answer goes on.
func (s *Server) resume(ctx context.Context, c *completion, last, asked string) ([]Stream, error) {
	at, ok := parsePlace(last)
	switch {
	case !ok:
		return nil, badField(lastEventHeader, "%s is %.80q, which is no id of an event of this API: send the last id as it came", lastEventHeader, last)
	case !c.stream:
		return nil, badField("stream", "%s resumes a stream: stream must be true, as in the request that began it", lastEventHeader)
	case len(at.choices) != len(c.choices):
		return nil, otherRequest()
	}
	var streams []Stream
	running := slices.ContainsFunc(at.choices, func(c position) bool { return c.phase != ended })
	for k, had := range at.choices {
		if had.phase == ended && running { // it may have been over for long, while others went on
			streams = append(streams, over(at.sessionOf(k)))
			continue
		}
		stream, err := s.gen.Resume(ctx, ResumeRequest{
			ID: at.sessionOf(k), Alive: c.alive,
			Accept: func(raw []byte) error { return c.accept(ctx, at.sessionOf(k), raw, asked) },
		})
		if err != nil {
			return nil, pauseAll(err, streams)
		}
		streams = append(streams, stream)
	}
	c.at = at
	return streams, nil
}

// over is the stream of a choice of which the client has all.
type over kevlard.SessionID

// ID implements Stream.
func (o over) ID() kevlard.SessionID { return kevlard.SessionID(o) }

// Next implements Stream.
func (o over) Next(context.Context) (Update, error) {
	return Update{Done: true, Reason: finishStop}, nil
}

// Close implements Stream.
func (o over) Close() error { return nil }

// Pause implements Stream.
func (o over) Pause() error { return nil }

// labelOf is what a client called a session, from its id in the mesh; else the id.
func labelOf(id kevlard.SessionID) string {
	text := string(id)
	if i := strings.LastIndexByte(text, '.'); i > 0 {
		text = text[:i]
		return text[strings.IndexByte(text, ':')+1:]
	}
	return text
}

// accept checks that a session is this client's, and of this request.
func (c *completion) accept(ctx context.Context, id kevlard.SessionID, raw []byte, asked string) error {
	env, ok := unseal(raw)
	if !ok || env.Client != clientSalt(ctx) {
		// Clients cannot see the sessions of others.
		return newError(http.StatusNotFound, "session_not_found", "session %s is not known: it was never here, or its time to be resumed is over", id)
	}
	if env.Request != asked {
		return otherRequest()
	}
	c.answer, c.created = env.Answer, env.Created
	return nil
}

// otherRequest refuses to write one answer on as if it were another's.
func otherRequest() *Error {
	return badField(lastEventHeader, "%s is of another request: to resume, send the same body as in the request that began the stream", lastEventHeader)
}

// errMismatch says that a position cannot be one of the session's.
func errMismatch() *Error {
	return badField(lastEventHeader, "%s does not fit the session: send the last id as it came", lastEventHeader)
}
