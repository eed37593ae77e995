package tcp

import "time"

// The bounds of the package, beside mover.MaxHeader, mover.MaxBody and those of
// kvstream/conns.
//
//	bound              what is bounded                                when it is reached
//	queueBytes         copied and unsent bytes of a connection        Send waits
//	queuePieces        large pieces that wait on a connection         Send waits
//	maxWaiters         sends that wait for either                     Send returns ErrBusy
//	maxStrangers       accepted connections before the welcome        the newest is closed at once
//	maxGuests          accepted connections after it                  refused: "too many connections"
//	connBytes          bytes that one connection carries              it is replaced by a new one
//	Config.Stall       no progress inside a piece, or unacknowledged  the connection breaks
const (
	// Half a MiB keeps a 10 Gbit/s link busy for 0.4 ms between two rounds of the
	// writer. The writer takes a whole queue, so twice this can be in memory.
	queueBytes  = 512 << 10
	queuePieces = 64
	maxWaiters  = 1024

	// smallPiece is the largest body that is copied; blockBytes is what copies are
	// gathered in. Copying 32 KiB takes a few microseconds, as waking a sender does.
	smallPiece = 32 << 10
	blockBytes = 128 << 10

	// chunkBytes is written or read in one go: enough to make the system call cheap,
	// little enough for the second look (checksum, then socket) to find it in the cache.
	chunkBytes = 256 << 10

	// readBuffer takes the head and header of a piece, or many small pieces at once.
	readBuffer = 128 << 10

	// recordsBytes of TLS records are gathered into one system call.
	recordsBytes = 128 << 10

	// unsentBytes is what the kernel takes beyond what the peer's window admits.
	unsentBytes = 128 << 10

	// connBytes is 2^24 full TLS records: the standard wants new keys for AES-GCM after
	// 2^24.5, and crypto/tls never changes them by itself.
	connBytes = 256 << 30

	// A node that restarts is met by all its peers at once.
	maxStrangers = 256
	maxGuests    = 8192
)

const (
	defaultConns = 4

	// keepAlive finds hosts that vanished while a connection was idle: 15 s and 3
	// probes 5 s apart.
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 3
)
