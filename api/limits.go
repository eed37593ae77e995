package api

import "time"

// Every bound of the API, and what happens at it.
const (
	// maxBody is the most bytes of a request's body; a larger one is answered 413.
	// It fits a prompt of a million token ids.
	maxBody = 4 << 20
	// maxHeader is the most bytes of a request's header; a larger one is answered 431.
	maxHeader = 64 << 10
	// defaultInFlight is how many completions run at once unless configured; more are
	// answered 429.
	defaultInFlight = 256
	// maxStops and maxStopBytes bound the stop strings; more are answered 400. OpenAI
	// allows 4.
	maxStops     = 4
	maxStopBytes = 1024
	// maxSessionName is the most characters of a client's name for a session; a longer one is
	// answered 400.
	maxSessionName = 64
	// maxControlBody is the most bytes of a control request; a larger one is answered
	// 413. Prompts arrive here too.
	maxControlBody = maxBody
	// maxControlAnswer is the most bytes of one control document or line that the
	// client side reads; a longer one is an error.
	maxControlAnswer = 16 << 20
	// maxSocketPath is what the kernel allows for a socket's path.
	maxSocketPath = 107
	// maxErrors is the most bytes of an error text that the client side keeps.
	maxErrors = 64 << 10
)

const (
	headerTimeout = 10 * time.Second // to receive the headers; then the connection is closed
	bodyTimeout   = 30 * time.Second // to receive the body; then 408
	idleTimeout   = 2 * time.Minute  // between requests of a connection
	writeTimeout  = 30 * time.Second // for a client to take what was written; then its request is cancelled
	keepAlive     = 5 * time.Second  // of silence until a comment shows that the stream lives
	probeTimeout  = time.Second      // to find out whether an old socket has a daemon behind it
	closeTimeout  = 2 * time.Second  // for the last bytes of ended streams at shutdown
)

// retryAfter is the seconds a client is told to wait when it is turned away.
const retryAfter = "1"
