package weights

import "time"

// The bounds of the package. ARCHITECTURE.md names the ones an admin can meet.
//
//	bound            what is bounded                           when it is reached
//	ChunkBytes       a chunk, and so what KV waits for         fixed by the protocol
//	maxUnit          bytes of a unit                           refused: its list would not fit a call
//	maxUnits         units of a model                          refused
//	maxHeader        bytes of a header                         refused, as by package model
//	maxRequest       a request                                 refused
//	maxAnswer        an answer                                 refused
//	maxName          a model's name                            refused
//	maxModels        models of a library                       the newest is not given to peers
//	serveAtOnce      chunks being read and sent                the others wait
//	serveWaiting     requests that wait for that               refused: busy
//	serveOne         of these of one peer                      refused: busy
//	fetchesAtOnce    fetches of a node                         the others wait
//	maxAsked         nodes asked what they have                the likely holders are among them
//	describeAtOnce   of these at a time                        the others wait for their turn
//
// What a fetch has under way, and so its memory, is bounded by weights/plan: 16 chunks.
const (
	// ChunkBytes is 8 ms of a link of 1 Gbit/s: KV that waits behind a chunk is not late.
	ChunkBytes = 1 << 20

	sumBytes       = 32
	maxUnit        = 16 << 30 // a list of 512 KiB
	maxUnits       = 1024 + 3
	maxHeader      = 256 << 20
	maxRequest     = 512
	maxAnswer      = 1 << 20
	maxName        = 128
	maxText        = 512
	maxModels      = 64
	serveAtOnce    = 4
	serveWaiting   = 128
	serveOne       = 32 // a plan has 16 under way, and 16 that it has taken back
	fetchesAtOnce  = 2
	maxAsked       = 256
	describeAtOnce = 16
)

const (
	// MinBandwidth is the least that Config.Bandwidth can be: under it a chunk would
	// take longer than a request may.
	MinBandwidth = 256 << 10
	// burst is how much unused time of a bandwidth can be used up at once.
	burst = 50 * time.Millisecond

	// pieceGrace is how long a chunk may come after the answer that it was sent.
	pieceGrace = 3 * time.Second
	// sendTimeout bounds the sending of a chunk; the transport gives up earlier by itself.
	sendTimeout = 15 * time.Second
	// describeTimeout bounds the question what a node has; nodes are asked again after
	// describeEvery.
	describeTimeout = 3 * time.Second
	describeEvery   = 5 * time.Second
	// lookEvery is how often the nodes in reach are looked through.
	lookEvery = 100 * time.Millisecond
	// progressEvery thins reports of progress.
	progressEvery = 200 * time.Millisecond
)
