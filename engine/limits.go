package engine

import "time"

// Every bound of the engine, and what happens at it.
const (
	// maxThreads, maxCells and maxRows bound a Spec; a larger one is refused.
	maxThreads = 256
	maxCells   = 1 << 24
	maxRows    = 1 << 14

	// graphParts is the most parts that one ggml graph attends for. ggml aborts the
	// process when a graph outgrows its tensor slots, and its scheduler reserves
	// 22 KiB of address space per slot, so a larger batch is run as several graphs,
	// which changes no bit.
	graphParts = 32

	// loadChunk is the piece in which weights are read and handed to ggml; it bounds
	// what loading adds to the resident size.
	loadChunk = 1 << 20

	// hastyLoad is up to how many bytes of weights are loaded at the engine's own
	// priority: some 10 ms of a core, for which a thread that is SCHED_IDLE waits much
	// longer on a busy host, a second and more for each turn.
	hastyLoad = 16 << 20
)

// Bounds of the process protocol.
const (
	// maxFrame is the longest frame after its length; a longer one ends the
	// connection at the receiver and is refused at the sender.
	maxFrame = 4 << 20
	// maxElements bounds every array in a frame (parts, tokens, history); a longer
	// one ends the connection.
	maxElements = 1 << 17
	// kvPiece is the size of the shared area for KV, if a cell is not larger; longer
	// runs go in pieces, so a long read does not hold up short ones for long.
	kvPiece = 1 << 20
	// maxArea bounds what a child may ask to have mapped; a larger area ends Start.
	maxArea = 1 << 33
	// progressSteps is the most progress frames of one load.
	progressSteps = 100
	// maxLine and maxTail bound what is kept of a child's stderr: longer lines are cut,
	// older lines forgotten.
	maxLine = 1 << 10
	maxTail = 8
	// maxLines is the most lines a child may log per logWindow; the rest are counted.
	maxLines  = 100
	logWindow = 10 * time.Second
	// closeGrace is how long a child may take to end after Close or after its socket
	// closed; then it is killed.
	closeGrace = 2 * time.Second
)
