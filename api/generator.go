package api

import (
	"context"
	"time"

	"github.com/kevlard/kevlard"
)

// Generator runs sessions. The daemon is one.
type Generator interface {
	// Models lists what the ring serves now, in a stable order.
	Models() []Model
	// Ready reports whether a session could start now, and if not, why.
	Ready() (ok bool, reason string)
	// Generate starts a session. It fails with a *kevlard.Failure where the client is
	// to see why. The session ends when its stream ends, is closed, or ctx ends.
	Generate(ctx context.Context, req GenRequest) (Stream, error)
	// Resume gives a session whose client is gone a new one. Its stream begins with the
	// first token of the answer again. It fails with what Accept said, or with a
	// *kevlard.Failure: session_not_found (404), session_busy (409), session_no_quorum
	// (409).
	Resume(ctx context.Context, req ResumeRequest) (Stream, error)
}

// ResumeRequest is a client that comes back.
type ResumeRequest struct {
	ID kevlard.SessionID
	// Accept is shown the session's envelope before anything changes; on an error the
	// session stays as it is.
	Accept func(envelope []byte) error
	Alive  func() bool // see GenRequest
}

// Model is a model that the ring serves.
type Model struct {
	ID        kevlard.Digest
	Name      string
	Context   int // most positions of a session, prompt and answer together
	Vocab     int // token ids are [0,Vocab)
	Created   time.Time
	Tokenizer Tokenizer // nil: this node lacks the model file
	Chat      Chat      // nil: this node lacks the model file
}

// Tokenizer turns text into token ids and back.
type Tokenizer interface {
	// Encode returns the ids of a prompt or a rendered chat. The names of special
	// tokens in it become those tokens, and it begins with the begin-of-sequence token
	// exactly once where the model wants one, even if the text has it already.
	Encode(text string) ([]kevlard.Token, error)
	NewDecoder() Decoder
	// Piece returns the bytes that a token adds to a text, which may be part of a
	// character. Control tokens, and ids outside the vocabulary, add none.
	Piece(t kevlard.Token) []byte
	// TokenName returns what the vocabulary calls a token.
	TokenName(t kevlard.Token) string
	// EndOfGeneration lists the tokens that end an answer.
	EndOfGeneration() []kevlard.Token
}

// Decoder turns a stream of tokens into valid UTF-8, holding back characters that
// are not complete.
type Decoder interface {
	Push(t kevlard.Token) string
	Flush() string
}

// GenRequest is a checked request.
type GenRequest struct {
	Session   kevlard.SessionID // the client's name for it, or empty
	ID        kevlard.SessionID // in the mesh, never used before; empty: the generator makes one
	Model     kevlard.Digest
	Prompt    []kevlard.Token // not empty
	MaxTokens int             // at least 1; prompt and answer fit the context
	MinTokens int
	Sampling  kevlard.Sampling
	EOG       []kevlard.Token // they end the answer and are not part of it
	IgnoreEOG bool
	// Envelope is given to the Accept of who resumes the session. A session without one
	// ends with its client.
	Envelope []byte
	// Alive finds out within about a second whether the client still takes what it is
	// sent; nil: nobody knows.
	Alive func() bool
	Salt  string // whose it is: answers share KV only under equal salts
}

// Stream is the answer of a session as it grows.
type Stream interface {
	// ID returns the session's id in the mesh.
	ID() kevlard.SessionID
	// Next blocks until something new is there. After an Update with Done it is not
	// called again.
	Next(ctx context.Context) (Update, error)
	// Close ends the session if it is still running: its client has what it wanted.
	Close() error
	// Pause ends the stream: the client is gone. The session ends, or can be resumed for
	// a while if it has an envelope.
	Pause() error
}

// Update is what became of a session since the last one.
type Update struct {
	Tokens    []kevlard.Token
	Logprobs  []kevlard.Logprobs // one for each of Tokens if the request asked for them, else nil
	Done      bool
	Reason    string // with Done: stop, length, cancelled, paused or error
	Err       *kevlard.Failure
	Failovers []kevlard.Failover // with Done
	Cached    int                // leading tokens of the prompt that were found instead of computed
}
