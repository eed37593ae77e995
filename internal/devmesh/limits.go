package devmesh

import "time"

const (
	// maxNodes bounds hosts and gateways together: node i has the address
	// 127.0.0.(10+i), so more do not fit. Options beyond it are refused.
	maxNodes = 240

	// maxSocketPath is what sun_path holds on Linux with its final zero. A longer
	// directory is refused before anything starts.
	maxSocketPath = 107

	// surveyEvery is the pause between two surveys of the control sockets. A
	// process that starts or ends brings the next survey forward.
	surveyEvery = 250 * time.Millisecond

	// askTimeout bounds one question to a control socket. A stopped daemon answers
	// nothing; the survey then reports it as not ready.
	askTimeout = time.Second

	// stopGrace is how long daemons may take to end after SIGTERM before they are
	// killed.
	stopGrace = 10 * time.Second

	// logTail bounds the bytes of a log that an error quotes.
	logTail = 2 << 10
)
