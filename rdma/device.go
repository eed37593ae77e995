package rdma

import (
	"errors"
	"time"

	"github.com/kevlard/kevlard/rdma/flow"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// Device is a port of a card, opened. Its methods may be called from any goroutine.
type Device interface {
	// Name is what people call it, such as mlx5_0:1.
	Name() string
	// Rail describes the port as it is now. One that is down has no addresses.
	Rail() (rail.Rail, error)
	// Queue makes a reliable queue pair with completion queues of its own, of which
	// receives can be posted and nothing else until Connect.
	Queue(send, receive int, source Source) (Queue, error)
	// Register lets the card read and write memory that is not of the Go heap. An error
	// says what to do.
	Register(mem []byte) (Region, error)
}

// Source is the own address of a queue pair.
type Source struct {
	GID    verbs.GID
	Global bool // packets carry GIDs
}

// Region is registered memory.
type Region struct {
	Addr       uint64
	LKey, RKey uint32
	// Release ends the registration.
	Release func() error
}

// Queue is a queue pair. Post, Receive, Fail and Wake may be called from any goroutine;
// Wait and Close from one.
type Queue interface {
	// Local describes this end, without memory.
	Local() flow.Endpoint
	// Connect makes it ready to send and receive. The smaller of both MTUs is used, and
	// the card gives up on a silent peer after a finite time.
	Connect(remote flow.Endpoint) error
	// Receive posts n receives without memory.
	Receive(n int) error
	// Post posts writes, in order; each completes once.
	Post(works ...Work) error
	// Wait returns the next completions, at least one unless it was woken. After until the
	// error is os.ErrDeadlineExceeded.
	Wait(until time.Time, out []Done) (int, error)
	// Wake ends a Wait that is under way, or the next.
	Wake()
	// Fail puts the pair into its error state: nothing more is sent or received.
	Fail() error
	// Close destroys the pair. When it has returned, the card touches no memory for it.
	Close() error
}

// Work is one write to the peer's memory, with an immediate unless Imm is 0. Bytes may
// be 0, then only the immediate travels, or a question whether the peer's card answers.
type Work struct {
	ID    uint64
	Local uint64 // address in a registered region
	LKey  uint32
	Bytes uint32
	Addr  uint64 // at the peer
	RKey  uint32
	Imm   flow.Imm
}

// Done is a completion of a write or a receive.
type Done struct {
	ID      uint64 // of the write
	Receive bool
	Imm     flow.Imm // of a receive
	Bytes   uint32   // written by the peer, of a receive
	Err     error    // nil: done
}

// Errors that the mover and its users tell apart.
var (
	// ErrNoDevice: no usable device is there, or this build has no RDMA.
	ErrNoDevice = errors.New("no RDMA device")
	// ErrNoRail: no port here and port of the peer can talk to each other now.
	ErrNoRail = errors.New("no RDMA port in common")
	// ErrMemory: memory could not be registered, most likely for lack of locked memory.
	ErrMemory = errors.New("memory cannot be registered for RDMA")
)
