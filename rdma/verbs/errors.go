package verbs

import (
	"errors"
	"fmt"
)

// Errors that a caller tells apart.
var (
	// ErrNotBuilt: the binary was built without the headers (build tag rdma).
	ErrNotBuilt = errors.New("built without RDMA")
	// ErrNoLibrary: libibverbs.so.1 could not be opened, or lacks what is needed.
	ErrNoLibrary = errors.New("libibverbs cannot be used")
	// ErrNoDevices: the kernel has no RDMA (ib_uverbs is not loaded).
	ErrNoDevices = errors.New("no RDMA in this kernel")
	// ErrUnknownDevice: no device has that name.
	ErrUnknownDevice = errors.New("unknown RDMA device")
	// ErrClosed: the queue, queue pair or context was closed.
	ErrClosed = errors.New("closed")
	// ErrFull: the queue pair has no room; take completions first.
	ErrFull = errors.New("queue pair is full")
)

// Status is how a work request ended. It is an error, so that
// errors.Is(err, verbs.StatusRetryExceeded) works on a WorkError.
type Status uint32

// The statuses that say what to do, by the numbers of the verbs.
const (
	StatusSuccess        Status = 0
	StatusLocalLength    Status = 1
	StatusLocalOperation Status = 2
	StatusLocalKey       Status = 4
	StatusFlushed        Status = 5
	StatusBadResponse    Status = 7
	StatusLocalAccess    Status = 8
	StatusRemoteInvalid  Status = 9
	StatusRemoteAccess   Status = 10
	StatusRemoteFailed   Status = 11
	StatusRetryExceeded  Status = 12
	StatusNotReady       Status = 13
	StatusFatal          Status = 19
	StatusTimeout        Status = 20
	StatusGeneral        Status = 21
)

// Error says what the status means and what to do.
func (s Status) Error() string {
	text := ""
	switch s {
	case StatusSuccess:
		text = "done"
	case StatusLocalLength:
		text = "more bytes than the receive has room for, or than a message may have"
	case StatusLocalOperation:
		text = "the local card refused the request"
	case StatusLocalKey:
		text = "local memory is not registered under the key that was given"
	case StatusFlushed:
		text = "given up because the queue pair has failed: the first error says why"
	case StatusBadResponse:
		text = "the peer's card answered with an unknown opcode"
	case StatusLocalAccess:
		text = "local memory may not be written to"
	case StatusRemoteInvalid:
		text = "the peer's card refused the request as invalid"
	case StatusRemoteAccess:
		text = "the peer does not let us write there: key or address are wrong, or its memory is no longer registered"
	case StatusRemoteFailed:
		text = "the peer's card could not carry the request out"
	case StatusRetryExceeded:
		text = "no answer from the peer's card: the link is down, the peer is gone, or packets of this size do not get through"
	case StatusNotReady:
		text = "the peer has posted no receive"
	case StatusFatal:
		text = "the local card failed: see the kernel log"
	case StatusTimeout:
		text = "the peer's card did not answer in time"
	case StatusGeneral:
		text = "the local card reports a transport error"
	default:
		text = "work request failed"
	}
	return fmt.Sprintf("%s (status %d)", text, uint32(s))
}

// WorkError is a work request that failed. The queue pair is in its error state: it
// takes nothing any more and all that waits is flushed.
type WorkError struct {
	Status Status
	Vendor uint32 // the card's own code, for its maker
	QP     uint32
}

func (e *WorkError) Error() string {
	s := fmt.Sprintf("RDMA queue pair %d: %v", e.QP, e.Status)
	if e.Vendor != 0 {
		s += fmt.Sprintf(", vendor code %#x", e.Vendor)
	}
	return s
}

// Unwrap returns the status.
func (e *WorkError) Unwrap() error { return e.Status }

// MemlockError is memory that could not be registered because the process may not
// lock as much.
type MemlockError struct {
	Bytes int
	Limit uint64 // RLIMIT_MEMLOCK
}

func (e *MemlockError) Error() string {
	return fmt.Sprintf("register %d bytes for RDMA: this process may lock %d bytes of memory: set LimitMEMLOCK=infinity in its unit, or ulimit -l unlimited", e.Bytes, e.Limit)
}
