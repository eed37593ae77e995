package daemon

import "time"

// The bounds of the package. ARCHITECTURE.md names the ones an admin can meet.
//
//	bound          what is bounded                         when it is full
//	inboxSize      events waiting for the loop             who sends blocks (TCP back-pressure)
//	maxFrameBytes  bytes of the frames among them          the connection's reader blocks
//	maxStreams     streams of clients, of all sessions     Generate fails with 429 overloaded
//	MaxTokens      tokens waiting in one stream            never full: the session makes no more
//	eventLogSize   events remembered                       the oldest is forgotten, Seq shows the gap
//	maxPulls       records pulled at once                  the others wait for their turn
//	maxRecord      a node record on the wire               not published, not accepted
//	maxModels, maxStages, maxText  parts of a record       not accepted
//	maxCall        a call of a member, or its answer       not accepted
//	maxAsks        nodes asked for their sessions or time at once  the others wait for their turn
//	maxFinds       nodes asked at once who owns a session  the others wait for their turn
//	maxSuspects, maxInquests  peers whose connections broke, and those looked after at once  left to the ring's probes
//	maxTestimonies nodes asked for one of them             the others are not asked
//	maxXids, maxXidKinds  Xids of one reading, and kinds of them that are counted  not looked at; counted together
//	maxAssigned    stages configured here                  Validate refuses; the machine holds as many at once
//	maxArrivingBytes  KV that waits for its place          the piece is refused, the sender sends it again
//	maxLeavingBytes   KV that waits to be sent             the machine gives the standby up
//	maxLeavingPeer    the part of it for one peer          the same
//	[kv] ram_bytes    KV kept for others                   offers and pieces are refused (kvstream/index)
//
// Engine starts are bounded by the stages held: a stage starts an engine
// only after the one before has exited. An engine has one batch at a time.
const (
	inboxSize    = 4096
	maxStreams   = 4096
	eventLogSize = 4096
	maxPulls     = 8
	maxAsks      = 16
	clockAsks    = 3 // how often each is asked for its time
	maxFinds     = 64
	maxAssigned  = 64
	maxXids      = 256
	maxXidKinds  = 256

	maxSuspects    = 256
	maxInquests    = 32
	maxTestimonies = 3

	maxBlockTokens = 1024

	// maxFrameBytes is over 200 of the largest frames.
	maxFrameBytes = 64 << 20

	// maxArrivingBytes, maxLeavingBytes and maxLeavingPeer are 64 and 16 of the largest
	// pieces that stages make of cells below 1 MiB.
	maxArrivingBytes = 64 << 20
	maxLeavingBytes  = 64 << 20
	maxLeavingPeer   = 16 << 20
	// loadPiece is how much KV is checked and written at a time, if a cell is not larger.
	loadPiece = 1 << 20
	// sendLines is how many pieces are sent to one peer at a time: the mover's
	// connections.
	sendLines = 4

	// maxRecord is what a mesh call can carry, less room for the envelope. A
	// stage takes about 100 bytes.
	maxRecord = 256 << 10
	maxModels = 64
	maxStages = 1024
	maxCall   = 1 << 20 // a document that members send each other
	// maxDevices and maxFailed bound what a record says of a node's capacity.
	maxDevices = 64
	maxFailed  = 64
	maxText    = 512 // names and reasons in a record, in bytes
	// maxRowMicros is an hour: what is computed with it must not overflow.
	maxRowMicros = int64(time.Hour / time.Microsecond)
)

const (
	// snapshotEvery is how old the snapshot of a busy loop may be.
	snapshotEvery = 20 * time.Millisecond

	// pullTimeout bounds one attempt to pull a record; pullRetryMin doubles to
	// pullRetryMax between attempts.
	pullTimeout  = 2 * time.Second
	pullRetryMin = 50 * time.Millisecond
	pullRetryMax = 2 * time.Second

	// askTimeout bounds a question to another node (sessions, drain).
	askTimeout = 2 * time.Second

	// findTimeout is how long nodes may take to say whether they own a session, and
	// findGrace how long others may contradict one that says so.
	findTimeout = time.Second
	findGrace   = 50 * time.Millisecond
	// resumeTries is how often more, and after which pause, a session is looked for that
	// has a client or no owner.
	resumeTries = 3
	busyPause   = 200 * time.Millisecond
	// maxOwnersLost is how many owners of a followed session may be lost, one after the
	// other, before its client is told to come back itself.
	maxOwnersLost = 8

	// exitSettle is how long an engine whose batch failed may take to exit by
	// itself, which says more than our killing it.
	exitSettle = 250 * time.Millisecond
	// killWait is how long a killed engine may take to be gone; after that it is
	// reported as gone although the kernel still holds it.
	killWait = 5 * time.Second

	// progressEvery thins reports of load progress.
	progressEvery = 100 * time.Millisecond

	// isolatedAfter is how long an alive member may be without mesh connection
	// before it is shown as isolated.
	isolatedAfter = 3 * time.Second

	// leaveWait bounds the goodbye to the ring.
	leaveWait = 5 * time.Second
)

// Graces of the parts; their sum bounds how long Run takes to stop.
const (
	meshGrace    = 6 * time.Second // a write to a peer whose path is gone
	ringGrace    = 6 * time.Second
	copiesGrace  = 3 * time.Second // the mover takes a second for what it has
	enginesGrace = 6 * time.Second
	recordsGrace = 3 * time.Second
	// inquestsGrace is the longest look.
	inquestsGrace = 3 * time.Second
	logGrace      = time.Second
	loopGrace     = 2 * time.Second
	leaveGrace    = time.Second
	devicesGrace  = time.Second
)
