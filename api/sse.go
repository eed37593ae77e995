package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// sse writes server-sent events. In silence it writes a comment now and then, so
// that proxies and clients see that the stream lives. The headers go out with the
// first event or comment; until then an error can still have an HTTP status.
type sse struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	rc    *http.ResponseController
	timer *time.Timer
	begun bool
	ended bool  // no comments: not started, or over
	err   error // of the first failed write; nothing is written after it
	pulse pulse
}

// newSSE returns a stream that writes nothing before start.
func newSSE(w http.ResponseWriter) *sse {
	return &sse{w: w, rc: http.NewResponseController(w), ended: true}
}

// start starts the clock of the comments. The caller must call end.
func (s *sse) start() {
	s.mu.Lock() // beat may run before timer is set
	defer s.mu.Unlock()
	s.ended = false
	s.timer = time.AfterFunc(keepAlive, s.beat)
}

// beat writes one comment.
func (s *sse) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.write([]byte(": keep-alive\n\n"))
	}
}

// data writes one event whose data is v in JSON.
func (s *sse) data(id string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("api: %T does not marshal: %v", v, err)) // only our own types come here
	}
	return s.raw(id, string(body))
}

// raw writes one event. JSON has no raw line breaks, so one data line carries it.
func (s *sse) raw(id, body string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		id = "id: " + id + "\n"
	}
	s.write([]byte(id + "data: " + body + "\n\n"))
	return s.err
}

// write sends b at once and restarts the clock. It needs mu.
func (s *sse) write(b []byte) {
	if s.err != nil {
		return
	}
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	// A client that takes nothing for this long is as good as gone. A writer that has
	// no deadlines is a test's.
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.w.Write(b); err != nil {
		s.err = fmt.Errorf("write event: %w", err)
		return
	}
	if err := s.rc.Flush(); err != nil {
		s.err = fmt.Errorf("write event: %w", err)
		return
	}
	if !s.ended {
		s.timer.Reset(keepAlive)
	}
}

// end stops the comments and reports whether anything was written. After it the
// ResponseWriter belongs to the caller again.
func (s *sse) end() (begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.begun
}
