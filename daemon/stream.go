package daemon

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// Update is what became of a session since the last one.
type Update struct {
	Tokens    []kevlard.Token
	Logprobs  []kevlard.Logprobs // one for each of Tokens if the request asked for them, else nil
	Done      bool
	Reason    string             // with Done: stop, length, cancelled, error or paused
	Err       *kevlard.Failure   // with Reason error
	Failovers []kevlard.Failover // with Done: the re-routes while it ran
	Cached    int                // leading positions of the prompt that were found instead of computed
}

// Stream is the answer of one session as it grows. The loop appends, one reader
// takes.
type Stream struct {
	id        kevlard.SessionID // in the mesh, never used before
	name      kevlard.SessionID // the client's, may be empty
	client    uint64            // no other stream of this node has the number
	max       int
	fresh     bool // its session began with it
	submitted time.Time
	cancel    func() // posts Cancel; may block until the loop takes it
	pause     func() // posts Pause, likewise
	more      chan struct{}

	alive func() bool // finds out whether the client is there; nil: nobody knows
	// again resumes the session for a reader that has so many tokens, when its owner is
	// gone; nil: this node is the owner.
	again func(ctx context.Context, had int) (*Stream, error)

	// The reader's own.
	tries int     // owners in a row that were lost
	taken int     // tokens that Next has returned or skipped
	skip  int     // tokens still to be skipped
	then  *Stream // goes on with what this one began

	mu       sync.Mutex
	seen     int                // tokens emitted so far
	wait     []kevlard.Token    // not yet taken; at most max
	logprobs []kevlard.Logprobs // those of wait, or nil
	cached   int                // Update.Cached
	final    *Update            // how it ended
	stop     func() bool        // of the AfterFunc that watches the client's context
}

// ID returns the session's id in the mesh, as Sessions and Events show it.
func (s *Stream) ID() kevlard.SessionID { return s.id }

// Next blocks until there are new tokens or the session has ended, and returns
// all there is. After an Update with Done it returns that end again. It fails only
// when ctx ends, which does not end the session.
func (s *Stream) Next(ctx context.Context) (Update, error) {
	for {
		if then := s.successor(); then != nil {
			return then.Next(ctx)
		}
		u, err := s.wake(ctx)
		if err != nil {
			return u, err
		}
		skip := min(s.skip, len(u.Tokens))
		s.skip -= skip
		s.taken += len(u.Tokens)
		u.Tokens = u.Tokens[skip:]
		if len(u.Logprobs) > 0 {
			u.Logprobs = u.Logprobs[skip:]
		}
		if s.again != nil && u.Err != nil && u.Err.Code == node.CodeOwnerLost && s.tries < maxOwnersLost {
			// What there is goes out with what follows: the whole log comes again.
			then, err := s.again(ctx, s.taken+s.skip-len(u.Tokens))
			if err != nil {
				u.Err = failureOf(err)
				return u, nil
			}
			then.tries = s.tries + 1
			s.mu.Lock()
			s.then = then
			s.mu.Unlock()
			continue
		}
		if u.Done || len(u.Tokens) > 0 {
			return u, nil
		}
	}
}

func (s *Stream) successor() *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.then
}

// wake is Next without regard to what the reader has.
func (s *Stream) wake(ctx context.Context) (Update, error) {
	for {
		s.mu.Lock()
		u := Update{Tokens: s.wait, Logprobs: s.logprobs, Cached: s.cached}
		s.wait, s.logprobs = nil, nil
		if s.final != nil {
			u.Done, u.Reason, u.Err, u.Failovers = true, s.final.Reason, s.final.Err, s.final.Failovers
		}
		s.mu.Unlock()
		if u.Done || len(u.Tokens) > 0 {
			return u, nil
		}
		select {
		case <-ctx.Done():
			return Update{}, context.Cause(ctx)
		case <-s.more:
		}
	}
}

// Close ends the session if it is still running: work stops within a step. It
// does not wait for that.
func (s *Stream) Close() error {
	if then := s.successor(); then != nil {
		return then.Close()
	}
	s.mu.Lock()
	running := s.final == nil
	s.mu.Unlock()
	if running {
		s.cancel()
	}
	return nil
}

// Pause says that the client is gone: work stops within a step. A session with an
// envelope can be resumed for a while, another ends. It does not wait for that.
func (s *Stream) Pause() error {
	if then := s.successor(); then != nil {
		return then.Pause()
	}
	s.mu.Lock()
	running := s.final == nil
	s.mu.Unlock()
	if running {
		s.pause()
	}
	return nil
}

// replay appends what was generated before the stream was there.
func (s *Stream) replay(tokens []kevlard.Token, logprobs []kevlard.Logprobs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.final != nil || s.seen+len(tokens) > s.max {
		panic(fmt.Sprintf("daemon: session %s replays %d tokens after %d of %d, ended %v", s.id, len(tokens), s.seen, s.max, s.final != nil))
	}
	s.seen += len(tokens)
	s.wait = append(s.wait, tokens...)
	s.logprobs = append(s.logprobs, logprobs...)
	s.signal()
}

// emit appends a token, with its logprobs unless l is nil, and reports whether it is
// the session's first.
func (s *Stream) emit(t kevlard.Token, l *kevlard.Logprobs) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.final != nil || s.seen == s.max {
		panic(fmt.Sprintf("daemon: session %s emits after %d of %d tokens, ended %v", s.id, s.seen, s.max, s.final != nil))
	}
	s.seen++
	s.wait = append(s.wait, t)
	if l != nil {
		s.logprobs = append(s.logprobs, *l)
	}
	s.signal()
	return s.fresh && s.seen == 1
}

// reuse notes how much of the prompt was found.
func (s *Stream) reuse(positions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cached = positions
}

func (s *Stream) finish(u Update) {
	s.mu.Lock()
	u.Done = true
	s.final = &u
	stop := s.stop
	s.signal()
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (s *Stream) signal() {
	select {
	case s.more <- struct{}{}:
	default: // the reader has not yet looked
	}
}

// watch makes the end of the client's context pause the session.
func (s *Stream) watch(ctx context.Context) {
	stop := context.AfterFunc(ctx, s.pause)
	s.mu.Lock()
	s.stop = stop
	ended := s.final != nil
	s.mu.Unlock()
	if ended {
		stop()
	}
}

// streams is the table of the sessions whose clients are here.
type streams struct {
	mu     sync.Mutex
	closed bool
	byID   map[kevlard.SessionID]*Stream
	named  map[kevlard.SessionID]bool // the names of those that have one
}

func newStreams() streams {
	return streams{byID: map[kevlard.SessionID]*Stream{}, named: map[kevlard.SessionID]bool{}}
}

// add registers a stream before its session is submitted.
func (t *streams) add(s *Stream) *kevlard.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return stopping()
	case t.named[s.name], t.byID[s.id] != nil:
		return &kevlard.Failure{Code: "session_busy", Status: 409, Message: fmt.Sprintf("session %s is running", cmp.Or(s.name, s.id))}
	case len(t.byID) >= maxStreams:
		return &kevlard.Failure{Code: "overloaded", Status: 429, Message: fmt.Sprintf("this node serves %d streams, the most it takes; try again later", maxStreams)}
	}
	t.byID[s.id] = s
	if s.name != "" {
		t.named[s.name] = true
	}
	return nil
}

func (t *streams) get(id kevlard.SessionID) *Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

func (t *streams) remove(id kevlard.SessionID) *Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	if s != nil {
		delete(t.byID, id)
		delete(t.named, s.name)
	}
	return s
}

// challenge pauses a session whose client here turns out to be gone.
func (t *streams) challenge(id kevlard.SessionID) {
	if s := t.get(id); s != nil && s.alive != nil && !s.alive() {
		s.pause()
	}
}

func (t *streams) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// end fails every stream that is left, when the loop has ended. A stream that
// ends in silence would look finished.
func (t *streams) end() {
	t.mu.Lock()
	left := t.byID
	t.byID, t.named, t.closed = nil, nil, true
	t.mu.Unlock()
	for _, s := range left {
		s.finish(Update{Reason: "error", Err: stopping()})
	}
}

func stopping() *kevlard.Failure {
	return &kevlard.Failure{Code: "draining", Status: 503, Message: "this node is stopping; ask another node"}
}

// Generate hands a new session to this node, which becomes its owner. The name is
// the client's, empty if it gave none; one name runs once at a time on this node.
// The session's id is made here, so that neither another node's session of that
// name nor an earlier one has it. The session ends when its answer does, when the
// stream is closed, or when ctx ends; then it can be resumed for a while if the request
// has an envelope. Errors are *kevlard.Failure: invalid_request
// and context_length_exceeded (400), model_not_found (404), session_busy (409),
// overloaded (429), draining (503). What goes wrong later comes through the stream.
func (d *Daemon) Generate(ctx context.Context, name kevlard.SessionID, req node.Request) (*Stream, error) {
	return d.GenerateAs(ctx, Mint(name), name, req, nil)
}

// GenerateAs is Generate for a session whose id was made elsewhere, from the name and
// something that was never used before. For alive see Resume.
func (d *Daemon) GenerateAs(ctx context.Context, id, name kevlard.SessionID, req node.Request, alive func() bool) (*Stream, error) {
	if f := d.check(name, req); f != nil {
		return nil, f
	}
	s := d.newStream(id, name, req.MaxTokens)
	s.alive, s.fresh = alive, true
	if f := d.streams.add(s); f != nil {
		if f.Status == 429 {
			d.Shed(f.Code)
		}
		return nil, f
	}
	if !d.post(node.Submit{Session: id, Request: req, Client: s.client}) {
		d.streams.remove(id)
		return nil, stopping()
	}
	d.metrics.tokens.WithLabelValues("prompt").Add(float64(len(req.Prompt)))
	s.watch(ctx)
	return s, nil
}

func (d *Daemon) newStream(id, name kevlard.SessionID, most int) *Stream {
	// One word is enough, and a second one might meet the session when another client
	// has it.
	var once sync.Once
	client := d.clients.Add(1)
	return &Stream{
		id: id, name: name, client: client, max: most, submitted: time.Now(), more: make(chan struct{}, 1),
		cancel: func() { once.Do(func() { d.post(node.Cancel{Session: id, Client: client}) }) },
		pause:  func() { once.Do(func() { d.post(node.Pause{Session: id, Client: client}) }) },
	}
}

// maxName is the longest name that leaves an id room in the protocol.
const maxName = protocol.MaxID - ulid.EncodedSize - 1

// Mint makes an id that no session had before.
func Mint(name kevlard.SessionID) kevlard.SessionID {
	id := kevlard.SessionID(ulid.Make().String())
	if name == "" {
		return id
	}
	return name + "." + id
}

// check keeps from the machine what it relies on not to get.
func (d *Daemon) check(name kevlard.SessionID, req node.Request) *kevlard.Failure {
	invalid := func(format string, args ...any) *kevlard.Failure {
		return &kevlard.Failure{Code: "invalid_request", Status: 400, Message: fmt.Sprintf(format, args...)}
	}
	if len(name) > maxName {
		return invalid("the session's name has %d bytes, want at most %d", len(name), maxName)
	}
	m, ok := d.snapshot().view.Model(req.Model)
	if !ok {
		return &kevlard.Failure{Code: "model_not_found", Status: 404, Message: fmt.Sprintf("no node of the ring holds model %v", req.Model)}
	}
	switch n := len(req.Prompt); {
	case n == 0:
		return invalid("the prompt has no tokens, want at least 1")
	case req.MaxTokens < 1:
		return invalid("max_tokens is %d, want at least 1", req.MaxTokens)
	case n+req.MaxTokens > m.Context:
		return &kevlard.Failure{Code: "context_length_exceeded", Status: 400, Message: fmt.Sprintf("the prompt's %d tokens and %d more exceed the model's context of %d tokens", n, req.MaxTokens, m.Context)}
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return invalid("min_tokens is %d, want 0 to max_tokens (%d)", req.MinTokens, req.MaxTokens)
	case !(req.Sampling.Temperature >= 0 && req.Sampling.Temperature <= maxTemperature): // also refuses NaN
		return invalid("temperature is %v, want 0 to %d", req.Sampling.Temperature, maxTemperature)
	}
	for i, t := range req.Prompt {
		if t < 0 || int(t) >= m.Vocab {
			return invalid("token %d of the prompt is %d, the vocabulary has %d", i, t, m.Vocab)
		}
	}
	return nil
}
