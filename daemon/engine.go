package daemon

import (
	"context"
	"errors"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/stage"
)

// ErrNoMemory marks an error of Engine.Forward for want of memory.
var ErrNoMemory = errors.New("the engine is out of memory")

// Launcher starts engines. Its methods may be called concurrently.
type Launcher interface {
	// Launch starts an engine and returns when it has loaded its stage. When ctx
	// ends, it gives up and leaves nothing behind. The error is for people.
	Launch(ctx context.Context, spec LaunchSpec) (Engine, error)
}

// LaunchSpec says what to load.
type LaunchSpec struct {
	Stage    kevlard.StageKey
	Run      uint64 // numbers the lives of the stage's engine, for logs
	Path     string // the model file
	Threads  int
	Device   int                // index in the node's devices
	Cells    int                // KV positions wanted
	Progress func(permille int) // may be called from any goroutine, until Launch returns
}

// Engine is one engine process, or what stands for it. Forward is called by one
// goroutine at a time, ReadCells and WriteCells by another; the other methods may be
// called at any time.
type Engine interface {
	// Info says what was loaded. It does not change.
	Info() EngineInfo
	// Forward computes one batch: rows has one entry for each part (at the last
	// stage nil entries or none), sampled one for each part that samples. After an
	// error the engine is of no further use; ErrNoMemory says that the batch is not to
	// blame. It returns at once when the engine exits.
	Forward(ctx context.Context, b stage.Batch) (rows [][]byte, sampled []kevlard.Sampled, err error)
	// ReadCells copies the KV of n cells from cell on to dst, n x Info().CellBytes: for
	// each layer the keys of all cells, then their values (kvstream.Layout). It runs
	// beside a Forward that does not write these cells.
	ReadCells(ctx context.Context, cell, n int, dst []byte) error
	// WriteCells is the inverse of ReadCells, beside a Forward that does not use them.
	WriteCells(ctx context.Context, cell, n int, src []byte) error
	// Done is closed as soon as the engine is gone, for whatever reason.
	Done() <-chan struct{}
	// Exit says how it went. It may be called after Done is closed.
	Exit() EngineExit
	// Kill ends it without asking and does not wait.
	Kill()
	// Close ends it politely and waits until it is gone.
	Close() error
}

// EngineInfo describes a loaded stage.
type EngineInfo struct {
	Class       string // numerics class; engines of equal class compute equal bits
	Cells       int    // KV positions granted
	Width       int    // bytes of one row of hidden state
	CellBytes   int    // bytes of one position's KV in all layers of the stage
	WeightBytes int64
	PID         int
	Device      string // cpu, cuda:0, ...
}

// EngineExit says how an engine ended.
type EngineExit struct {
	Poisonous bool   // ABRT, SEGV, BUS, FPE, ILL or an error exit: the batch may be at fault
	Reason    string // for people: "signal: killed", last words on stderr
}
