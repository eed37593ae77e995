package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/kevlard/kevlard/daemon/report"
)

// FetchLine is one line of the answer to POST /fetch: how far it is, or an error in an
// otherwise complete HTTP answer. The last line has a path or an error.
type FetchLine struct {
	report.Fetch
	Error  *Error `json:"error,omitempty"`
	Status int    `json:"status,omitempty"` // with Error: the HTTP status it has where nothing was sent yet
}

type fetchQuery struct {
	Model  string `json:"model"`
	Lo, Hi int
}

// fetch answers POST /fetch. It ends when the caller goes; what came stays.
func (c *Control) fetch(w http.ResponseWriter, r *http.Request) {
	var q fetchQuery
	if err := readBody(w, r, maxControlBody, &q); err != nil {
		writeError(w, err)
		return
	}
	if q.Model == "" || q.Lo < 0 || q.Hi < 0 || q.Hi > 0 && q.Hi <= q.Lo {
		writeError(w, badField("model", "model %q, layers %d to %d: want a name or ID, and 0 <= lo < hi or neither", q.Model, q.Lo, q.Hi))
		return
	}
	lines := newLines(w)
	err := c.node.Fetch(r.Context(), q.Model, q.Lo, q.Hi, func(f report.Fetch) error { return lines.write(FetchLine{Fetch: f}) })
	switch {
	case err == nil || r.Context().Err() != nil:
	case lines.begun:
		e := asError(err)
		_ = lines.write(FetchLine{Error: e, Status: e.Status}) // the reader may be gone
	default:
		writeError(w, asError(err))
	}
}

// Fetch copies weights from peers to the daemon's disk; layers [lo,hi), or with hi 0 all.
// The last that emit gets has a path.
func (c *Client) Fetch(ctx context.Context, model string, lo, hi int, emit func(report.Fetch) error) error {
	ended := false
	err := stream(ctx, c, http.MethodPost, "/fetch", fetchQuery{Model: model, Lo: lo, Hi: hi}, func(l FetchLine) error {
		if l.Error != nil {
			l.Error.Status = cmp.Or(l.Status, http.StatusInternalServerError)
			return l.Error
		}
		ended = l.Path != ""
		return emit(l.Fetch)
	})
	if err == nil && !ended {
		return fmt.Errorf("fetch: the daemon at %s broke off its answer: see its log", c.path)
	}
	return err
}
