package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kevlard/kevlard"
)

// The type of an error in OpenAI's envelope.
const (
	invalidRequest = "invalid_request_error"
	rateLimit      = "rate_limit_error"
	serverError    = "server_error"
)

// Error is an error in OpenAI's envelope, {"error": {...}}.
type Error struct {
	Status  int     `json:"-"` // of the HTTP answer
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"` // the field that is wrong, or null
	Code    *string `json:"code"`  // stable, for programs, or null
	// Resume, in an event, is the Last-Event-ID with which the same request goes on here
	// or on another node.
	Resume string `json:"resume,omitempty"`

	retry time.Duration // after which another try may help; 0: retryAfter
}

// resumable says with e how the answer can go on, if another try may help.
func (e *Error) resumable(at place) *Error {
	some := slices.ContainsFunc(at.choices, func(c position) bool { return c.phase != fresh })
	again := e.Status == http.StatusServiceUnavailable || e.Code != nil && (*e.Code == "session_busy" || *e.Code == "session_no_quorum")
	if !again || !some { // who has nothing can as well begin anew
		return e
	}
	with := *e
	with.Resume = at.String()
	with.Message += "; to go on, send the same request with " + lastEventHeader + ": " + with.Resume
	return &with
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// envelope is the JSON around an Error.
type envelope struct {
	Error *Error `json:"error"`
}

// newError makes an error of a type that goes with the status.
func newError(status int, code, format string, args ...any) *Error {
	e := &Error{Status: status, Message: fmt.Sprintf(format, args...), Type: serverError}
	switch {
	case status == http.StatusTooManyRequests:
		e.Type = rateLimit
	case status < 500:
		e.Type = invalidRequest
	}
	if code != "" {
		e.Code = &code
	}
	return e
}

// badField is a 400 about one field.
func badField(param, format string, args ...any) *Error {
	e := newError(http.StatusBadRequest, "", format, args...)
	e.Param = &param
	return e
}

// unsupported is a 400 about a field that OpenAI has and we do not, yet.
func unsupported(param, format string, args ...any) *Error {
	e := badField(param, format, args...)
	code := "unsupported_parameter"
	e.Code = &code
	return e
}

// asError turns any error of a Generator into one for the client.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if f, ok := errors.AsType[*kevlard.Failure](err); ok {
		status := f.Status
		if status < 400 || status > 599 {
			status = http.StatusInternalServerError
		}
		return newError(status, f.Code, "%s", f.Message)
	}
	return newError(http.StatusInternalServerError, "internal_error", "%v", err)
}

// writeError answers with the envelope.
func writeError(w http.ResponseWriter, e *Error) {
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		after := retryAfter
		if e.retry > 0 {
			after = strconv.Itoa(int(math.Ceil(e.retry.Seconds())))
		}
		w.Header().Set("Retry-After", after)
	}
	writeJSON(w, e.Status, envelope{e})
}

// writeJSON answers with one document. A failed write means that the client is
// gone, which its request's context reports.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("api: %T does not marshal: %v", v, err)) // only our own types come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
