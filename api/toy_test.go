package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
)

// toy is a working Generator: its model answers each prompt with the text that it
// was taught, one byte a token, and ends with token 256.
type toy struct {
	lessons map[string]lesson // by prompt
	ready   string            // why it is not ready

	mu        sync.Mutex
	requests  []GenRequest
	kept      map[kevlard.SessionID]GenRequest // those that can be resumed
	again     int                              // tokens in one update of a resumed stream; 0: as before
	cancelled chan kevlard.SessionID           // sessions whose client went away
}

// lesson is how the toy answers a prompt.
type lesson struct {
	answer string
	burst  int              // tokens in one update; 0: 1
	after  int              // tokens after which fail happens; only with fail, hang or wait
	fail   *kevlard.Failure // ends the session
	refuse *kevlard.Failure // the session does not even start
	hang   bool             // nothing more comes
	mute   bool             // logprobs are forgotten
	busy   bool             // it cannot be resumed
	wait   time.Duration    // before the token after
}

const toyEOS = 256

func (g *toy) Models() []Model {
	m := Model{ID: kevlard.Digest{1}, Name: "toy", Context: 100, Vocab: 257, Created: time.Unix(1000, 0), Tokenizer: toyTokenizer{}, Chat: toyChat{}}
	bare := Model{ID: kevlard.Digest{2}, Name: "bare", Context: 100, Vocab: 257}
	return []Model{m, bare}
}

func (g *toy) Ready() (bool, string) { return g.ready == "", g.ready }

func (g *toy) Generate(ctx context.Context, req GenRequest) (Stream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, req)
	if req.Envelope != nil {
		if g.kept == nil {
			g.kept = map[kevlard.SessionID]GenRequest{}
		}
		g.kept[req.ID] = req
	}
	l := g.lessons[decodeAll(toyTokenizer{}, req.Prompt)]
	if l.refuse != nil {
		return nil, l.refuse
	}
	return &toyStream{ctx: ctx, g: g, lesson: l, req: req}, nil
}

// Resume implements Generator: whoever comes gets the answer from the begin.
func (g *toy) Resume(ctx context.Context, r ResumeRequest) (Stream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	req, ok := g.kept[r.ID]
	if !ok {
		return nil, &kevlard.Failure{Code: "session_not_found", Status: 404, Message: "not known"}
	}
	if err := r.Accept(req.Envelope); err != nil {
		return nil, err
	}
	l := g.lessons[decodeAll(toyTokenizer{}, req.Prompt)]
	if l.busy {
		return nil, &kevlard.Failure{Code: "session_busy", Status: 409, Message: "running"}
	}
	if g.again > 0 {
		l.burst = g.again
	}
	l.fail = nil
	return &toyStream{ctx: ctx, g: g, lesson: l, req: req}, nil
}

// toyStream is one answer of the toy.
type toyStream struct {
	ctx    context.Context
	g      *toy
	lesson lesson
	req    GenRequest
	sent   int
	ended  bool
}

func (s *toyStream) Next(ctx context.Context) (Update, error) {
	l := s.lesson
	if s.sent == l.after {
		if l.wait > 0 {
			time.Sleep(l.wait) // in a synctest bubble: part of the scenario
		}
		if l.fail != nil {
			s.ended = true
			return Update{Done: true, Reason: "error", Err: l.fail}, nil
		}
		if l.hang {
			<-ctx.Done()
			return Update{}, context.Cause(ctx)
		}
	}
	limit := min(s.req.MaxTokens, len(l.answer))
	if (l.fail != nil || l.hang || l.wait > 0) && s.sent < l.after {
		limit = min(limit, l.after)
	}
	n := min(max(l.burst, 1), limit-s.sent)
	var u Update
	for _, b := range []byte(l.answer[s.sent : s.sent+n]) {
		u.Tokens = append(u.Tokens, kevlard.Token(b))
		if s.req.Sampling.Logprobs && !l.mute {
			u.Logprobs = append(u.Logprobs, toyLogprobs(b, s.req.Sampling.TopLogprobs))
		}
	}
	s.sent += n
	switch {
	case s.sent == s.req.MaxTokens:
		u.Done, u.Reason = true, "length"
	case s.sent == len(l.answer):
		u.Done, u.Reason = true, "stop"
	}
	if u.Done {
		s.ended = true
		u.Failovers = []kevlard.Failover{{AtToken: 1, Cause: "reset", Node: "n2", Detect: time.Millisecond, Reroute: 2 * time.Millisecond, Restore: 3 * time.Millisecond}}
	}
	return u, nil
}

// toyLogprobs says that the byte and those that follow it are ever less likely.
func toyLogprobs(b byte, top int) kevlard.Logprobs {
	l := kevlard.Logprobs{Chosen: -float32(b) / 128}
	for i := range top {
		l.Top = append(l.Top, kevlard.TokenLogprob{Token: kevlard.Token(b) + kevlard.Token(i), Logprob: l.Chosen - float32(i)})
	}
	return l
}

func (s *toyStream) Close() error {
	if !s.ended && s.g.cancelled != nil {
		s.g.cancelled <- s.req.Session
	}
	s.ended = true
	return nil
}

// Pause implements Stream.
func (s *toyStream) Pause() error { return s.Close() }

// ID implements Stream.
func (s *toyStream) ID() kevlard.SessionID { return s.req.Session + ".toy" }

// toyTokenizer has a token for each byte.
type toyTokenizer struct{}

func (toyTokenizer) Encode(text string) ([]kevlard.Token, error) {
	ids := make([]kevlard.Token, 0, len(text))
	for _, b := range []byte(text) {
		ids = append(ids, kevlard.Token(b))
	}
	return ids, nil
}

func (toyTokenizer) Piece(t kevlard.Token) []byte {
	if t < 0 || t >= toyEOS {
		return nil
	}
	return []byte{byte(t)}
}

func (toyTokenizer) TokenName(t kevlard.Token) string { return fmt.Sprintf("<%d>", t) }

func (toyTokenizer) NewDecoder() Decoder              { return &toyDecoder{} }
func (toyTokenizer) EndOfGeneration() []kevlard.Token { return []kevlard.Token{toyEOS} }

// toyDecoder holds back bytes until they make a character.
type toyDecoder struct{ held []byte }

func (d *toyDecoder) Push(t kevlard.Token) string {
	if t < 256 {
		d.held = append(d.held, byte(t))
	}
	var out strings.Builder
	for len(d.held) > 0 && utf8.FullRune(d.held) {
		r, n := utf8.DecodeRune(d.held)
		out.WriteRune(r)
		d.held = d.held[n:]
	}
	return out.String()
}

func (d *toyDecoder) Flush() string {
	out := strings.ToValidUTF8(string(d.held), "\uFFFD")
	d.held = nil
	return out
}

// toyChat writes a line for each message.
type toyChat struct{}

func (toyChat) Render(messages []Message, addGenerationPrompt bool) (string, error) {
	var b strings.Builder
	for i, m := range messages {
		switch {
		case m.Role == "system" && i > 0:
			return "", &RefusedError{"system comes first"}
		case m.Content == "broken":
			return "", errors.New("line 1: no such filter")
		}
		b.WriteString(m.Role + ":" + m.Content + "\n")
	}
	if addGenerationPrompt {
		b.WriteString("assistant:")
	}
	return b.String(), nil
}

// newTestServer serves the toy on a real loopback listener.
func newTestServer(t *testing.T, g *toy, inFlight int) (*Server, *httptest.Server) {
	t.Helper()
	s, err := NewServer(Config{Listen: "127.0.0.1:0", MaxInFlight: inFlight, Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.listener.Close() })
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(ts.Close)
	return s, ts
}

// post sends a completion and returns the answer with its body.
func post(t *testing.T, ts *httptest.Server, body string) (*http.Response, string) {
	t.Helper()
	return postTo(t, ts, "/v1/completions", body)
}

// postTo is post for any path.
func postTo(t *testing.T, ts *httptest.Server, path, body string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(ts.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// resumption is what tells a client how to go on, which tests of streams leave out:
// see TestResumeAnywhere.
var resumption = regexp.MustCompile(`(?m)^id: 1/\S+\n|; to go on, send the same request with Last-Event-ID: [^" ]+|,"resume":"[^"]+"`)

// compact reformats a JSON document so that tests compare meaning.
func compact(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v: %q", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var goneFailure = &kevlard.Failure{Code: "no_route", Status: 503, Message: "gone"}

// NewServer is Open and Attach, where nothing comes between them.
func NewServer(cfg Config, gen Generator, metrics http.Handler) (*Server, error) {
	s, err := Open(cfg)
	if err == nil {
		s.Attach(gen, metrics)
	}
	return s, err
}
