package mesh

import "time"

// The bounds of the package. ARCHITECTURE.md names the ones an admin can meet.
//
//	bound                what is bounded                        when it is reached
//	controlFrames/Bytes  frames queued to one peer, control     Control returns ErrQueueFull
//	dataFrames/Bytes     frames queued to one peer, data        Data returns ErrQueueFull
//	maxControlBody       one control message                    ErrTooLarge; a reader closes the connection
//	maxDataHeader/Body   one data frame                         ErrTooLarge; a reader closes the connection
//	maxCallBody          request or answer of one call          ErrTooLarge; a reader resets the stream
//	maxCalls             calls in flight to one peer            Call returns ErrQueueFull
//	maxUnadmitted        inbound connections before admission   the newest is closed at once
//	handshakeTimeout     TCP accept or dial to admission        the connection is closed, the dialler backs off
//	maxPeers             peers kept connected                   SetPeers keeps the first by name and logs the rest
//	maxGuests            admitted peers that dialled us         refused: "too many peers"
//	streamWindow         received and not yet read, per stream  the sender's writes wait, then its queue fills
//	maxRefusals          remembered refusals (log limiting)     all are forgotten, so some are logged again
const (
	// controlFrames and controlBytes bound one peer's control queue. Control
	// messages are small and rare, a thousand is seconds of a stalled peer.
	controlFrames = 1024
	controlBytes  = 16 << 20

	// dataFrames and dataBytes bound one peer's data queue. Credit is reserved
	// end to end before frames are sent, so a full queue means that the peer
	// broke its promise or has stalled.
	dataFrames = 4096
	dataBytes  = 32 << 20

	// maxControlBody leaves room for a prepare with all its token ids.
	maxControlBody = 1 << 20

	// maxDataHeader and maxDataBody are the cut of activation frames.
	maxDataHeader = 64 << 10
	maxDataBody   = 256 << 10

	// maxMethod, maxCallBody and maxFailure bound the parts of a call. A longer
	// error text is cut.
	maxMethod   = 255
	maxCallBody = 1 << 20
	maxFailure  = 4 << 10

	// maxCalls is the number of calls in flight to one peer; the yamux session
	// of the other side resets streams beyond maxCalls and the main stream.
	maxCalls = 64

	// maxAdmission bounds the body of each admission frame, maxName each name
	// in it and maxReason the text of a refusal.
	maxAdmission = 1024
	maxName      = 255
	maxReason    = 512

	// maxUnadmitted bounds inbound connections that have not proved themselves.
	// Two per peer arrive at once when a node of a ring of 128 restarts. Each
	// may hold 256 KiB (yamux's first window), so 64 MiB in all at worst.
	maxUnadmitted = 256

	// maxPeers and maxGuests bound the peers dialled and the peers that dialled.
	maxPeers  = 1024
	maxGuests = 1024

	// maxRefusals bounds the table that keeps equal refusals from being
	// reported more often than every refusalQuiet.
	maxRefusals = 256

	// minSecret is the shortest cluster secret in bytes (an AES-128 key).
	minSecret = 16
)

const (
	// handshakeTimeout covers everything from TCP to admission.
	handshakeTimeout = 5 * time.Second

	// requestTimeout is how long a caller may take to send its request after
	// it opened the stream.
	requestTimeout = 5 * time.Second

	// partingTimeout is how long the last words on a connection (a refusal or a
	// goodbye) may take to be read before the connection is closed regardless.
	partingTimeout = time.Second

	// backoffMin doubles to backoffMax between failed dials; each wait is
	// jittered by a fifth either way. A link that lasted steadyAfter starts
	// again from an immediate dial.
	backoffMin  = 100 * time.Millisecond
	backoffMax  = 2 * time.Second
	steadyAfter = time.Second

	// refusalQuiet is how long an equal refusal is not reported again.
	refusalQuiet = time.Minute

	// keepAliveEvery and writeTimeout find a peer that is gone without a reset:
	// at most their sum after the last byte. Under 2 s a write timeout would
	// break connections that are merely slow.
	keepAliveEvery = 2 * time.Second
	writeTimeout   = 5 * time.Second

	// rttEvery is how often a session measures its round trip.
	rttEvery = 5 * time.Second
)

const (
	// streamWindow is yamux's receive window from the start, without growth: on
	// a LAN yamux's own growth rarely triggers. 4 MiB over 50 ms is 80 MB/s;
	// bulk does not travel here.
	streamWindow = 4 << 20

	// coalesceBytes is the most that queued frames are gathered into one write,
	// and the largest yamux message, so that a ping waits behind at most that.
	coalesceBytes = 256 << 10

	// readBuffer saves yamux calls for small frames.
	readBuffer = 64 << 10
)
