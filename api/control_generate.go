package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/kevlard/kevlard"
)

// Chunk is one line of the answer to POST /generate: some text, or the end, or an
// error in an otherwise complete HTTP answer.
type Chunk struct {
	Session      string          `json:"session,omitempty"` // its id in the mesh, in the first line, which has nothing else
	Text         string          `json:"text,omitempty"`
	TokenIDs     []kevlard.Token `json:"token_ids,omitempty"`
	FinishReason string          `json:"finish_reason,omitempty"` // in the last line
	Failovers    []Failover      `json:"failovers,omitempty"`     // in the last line
	Error        *Error          `json:"error,omitempty"`         // in the last line, instead of a finish reason
	Status       int             `json:"status,omitempty"`        // with Error: the HTTP status it has where nothing was sent yet
}

// Failover is one re-route that the answer lived through.
type Failover struct {
	AtToken   int     `json:"at_token"`
	Cause     string  `json:"cause"`
	GapMS     float64 `json:"gap_ms"`
	Node      string  `json:"node,omitempty"` // the node that was left
	DetectMS  float64 `json:"detect_ms"`
	RerouteMS float64 `json:"reroute_ms"`
	RestoreMS float64 `json:"restore_ms"`
	Known     int     `json:"known"` // tokens known when the new route began, prompt included
	From      int     `json:"from"`  // the position it began at
}

// Failovers shows failovers in their JSON shape; never nil.
func Failovers(in []kevlard.Failover) []Failover {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := make([]Failover, 0, len(in))
	for _, f := range in {
		out = append(out, Failover{
			AtToken: f.AtToken, Cause: f.Cause, GapMS: ms(f.Gap()), Node: string(f.Node),
			DetectMS: ms(f.Detect), RerouteMS: ms(f.Reroute), RestoreMS: ms(f.Restore), Known: f.Known, From: f.From,
		})
	}
	return out
}

// generate answers POST /generate and POST /chat.
func (c *Control) generate(w http.ResponseWriter, r *http.Request, complete func(context.Context, Generator, io.Reader, func(Chunk) error) error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer has no deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControlBody))
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		writeError(w, bodyError(err))
		return
	}
	out := newLines(w)
	err = complete(r.Context(), c.gen, bytes.NewReader(body), func(chunk Chunk) error { return out.write(chunk) })
	if err == nil {
		return
	}
	e := clientError(r.Context(), err)
	switch {
	case e == nil: // the reader is gone
	case !out.begun:
		writeError(w, e)
	default:
		_ = out.write(Chunk{Error: e, Status: e.Status}) // a failed write means that the reader is gone
	}
}

// Complete runs one completion without HTTP. body is that of POST /v1/completions,
// except that a missing model means the first one. The answer goes to emit: a chunk
// with the session, chunks of text and tokens, and one with the finish reason. After
// an error the answer is not complete; one that the request is to blame for, or the
// generator, is an *Error.
func Complete(ctx context.Context, gen Generator, body io.Reader, emit func(Chunk) error) error {
	return complete(ctx, gen, new(completionBody), body, emit)
}

// CompleteChat is like Complete, with a body of POST /v1/chat/completions.
func CompleteChat(ctx context.Context, gen Generator, body io.Reader, emit func(Chunk) error) error {
	return complete(ctx, gen, new(chatBody), body, emit)
}

func complete(ctx context.Context, gen Generator, b requestBody, body io.Reader, emit func(Chunk) error) error {
	if err := decodeBody(body, b); err != nil {
		return err
	}
	models := gen.Models()
	if b.common().Model == "" && len(models) > 0 {
		b.common().Model = models[0].ID.String() // people at a shell mean the model there is
	}
	c, bad := b.check(models)
	if bad != nil {
		return bad
	}
	if err := c.single(); err != nil {
		return err
	}
	streams, err := c.start(ctx, gen)
	if err != nil {
		return asError(err)
	}
	if err := emit(Chunk{Session: string(streams[0].ID())}); err != nil {
		return closeAll(err, streams)
	}
	if c.echo {
		if err := emit(Chunk{Text: c.choices[0].echo}); err != nil {
			return closeAll(err, streams)
		}
	}
	var last piece
	ends, err := c.run(ctx, streams, func(_ int, p piece, reason *string) error {
		if reason != nil {
			last = p // it goes out with the end
			return nil
		}
		return emit(Chunk{Text: p.text, TokenIDs: p.tokens})
	})
	if err != nil {
		return err
	}
	return emit(Chunk{Text: last.text, TokenIDs: last.tokens, FinishReason: ends[0].reason, Failovers: Failovers(ends[0].failovers)})
}

// single refuses what Chunks have no place for.
func (c *completion) single() error {
	switch {
	case len(c.choices) > 1:
		return badField("n", "the request is for %d answers: here it is one, use the HTTP API for more", len(c.choices))
	case c.logprobs:
		return badField("logprobs", "logprobs are not given here: use the HTTP API")
	}
	return nil
}
