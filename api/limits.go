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
	// maxSessionID is the most characters of a session's id in the mesh, and maxEventID
	// the most of an event's id; longer ones are answered 400.
	maxSessionID = 128
	maxEventID   = 1024
	// maxEnvelope is the most bytes that are kept with a session; others are unknown.
	maxEnvelope = 64 << 10
	// defaultChatTokens bounds the answer to a chat that names no limit, as stages
	// reserve room for all of it; the answer then ends with finish_reason length.
	defaultChatTokens = 2048
	// maxN is the most answers to one prompt, and maxChoices the most of a request, so
	// the most prompts too; more are answered 400. Each is a session.
	maxN       = 8
	maxChoices = 16
	// maxMessages is the most messages of a chat, and maxParts the most parts of one;
	// more are answered 400.
	maxMessages = 4096
	maxParts    = 1024
	// maxKeys is the most API keys, maxKeyName the most characters of a key's name
	// (which, with a session id, fits what the mesh takes), and maxKeysFile the most
	// bytes of a keys file; a file with more is refused.
	maxKeys     = 4096
	maxKeyName  = 36
	maxKeysFile = 1 << 20
	// maxQuota is the most that a key's in_flight and rate may be; a larger one is a mistake in
	// the keys file.
	maxQuota = 1_000_000
	// maxControlBody is the most bytes of a control request; a larger one is answered
	// 413. Prompts arrive here too.
	maxControlBody = maxBody
	// maxControlAnswer is the most bytes of one control document or line that the
	// client side reads; a longer one is an error.
	maxControlAnswer = 16 << 20
	// maxGroups is the most supplementary groups of who calls at the control socket, which
	// is the kernel's own bound; who had more would be refused.
	maxGroups = 65536
	// maxSocketPath is what the kernel allows for a socket's path.
	maxSocketPath = 107
	// maxErrors is the most bytes of an error text that the client side keeps.
	maxErrors = 64 << 10
)

const (
	headerTimeout = 10 * time.Second       // to receive the headers; then the connection is closed
	bodyTimeout   = 30 * time.Second       // to receive the body; then 408
	idleTimeout   = 2 * time.Minute        // between requests of a connection
	writeTimeout  = 30 * time.Second       // for a client to take what was written; then its request is cancelled
	keepAlive     = 5 * time.Second        // of silence until a comment shows that the stream lives
	answerTimeout = 10 * time.Second       // for the daemon to answer a verb of the CLI, where it has no bound of its own
	probeTimeout  = time.Second            // to find out whether an old socket has a daemon behind it
	aliveWithin   = 600 * time.Millisecond // for a client to acknowledge something, when another claims to be it; three round trips if that is more
	aliveMost     = 10 * time.Second       // however long its round trips are
	aliveAsk      = 700 * time.Millisecond // for the answer to who claims that: it may be that nobody knows yet
	aliveEvery    = 20 * time.Millisecond
	certEvery     = 10 * time.Second // between looks whether the certificate's files changed
	closeTimeout  = 2 * time.Second  // for the last bytes of ended streams at shutdown
)

// MaxLeave is the longest that POST /leave waits for sessions to end.
const MaxLeave = 7 * 24 * time.Hour

// retryAfter is the seconds a client is told to wait when it is turned away.
const retryAfter = "1"
