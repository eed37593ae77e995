package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
)

// PairConfig says what a queue pair is to hold.
type PairConfig struct {
	Port         int
	Sends        *Queue
	Receives     *Queue // may be the same
	SendDepth    int    // requests under way
	ReceiveDepth int    // receives that wait
	Inline       int    // bytes that a request may carry itself; may be rounded up
}

// Path is where a queue pair's peer is, and how long to try.
type Path struct {
	Port       int
	MTU        MTU
	QP         uint32 // the peer's
	SendPSN    uint32 // the first packet number of each side: 24 random bits
	ReceivePSN uint32

	LID          uint16 // the peer's, on InfiniBand
	Global       bool   // with GIDs: always on RoCE, on InfiniBand between subnets
	GID          netip.Addr
	SourceGID    int // index in the own port's table
	TrafficClass uint8
	ServiceLevel uint8

	// Timeout is the time to an acknowledgement, 4.096 us * 2^Timeout (14 is 67 ms);
	// Retries is how often a packet is sent again, 1 to MaxRetries. The card may wait
	// up to four times as long.
	Timeout uint8
	Retries uint8
	// NotReadyTimer is the pause that the peer is asked for when it has sent and no
	// receive was posted here (12 is 0.64 ms); NotReadyRetries is how often this side
	// tries again, at most MaxRetries.
	NotReadyTimer   uint8
	NotReadyRetries uint8
}

// hopLimit of packets with GIDs.
const hopLimit = 64

// maxTimeout is what five bits hold.
const maxTimeout = 31

// check says what is wrong with p.
func (p Path) check() error {
	switch {
	case p.MTU.Bytes() == 0:
		return fmt.Errorf("MTU number %d: want 1 to 5", uint8(p.MTU))
	case p.Retries < 1 || p.Retries > MaxRetries:
		return fmt.Errorf("%d retries: want 1 to %d", p.Retries, MaxRetries)
	case p.NotReadyRetries > MaxRetries:
		return fmt.Errorf("%d not-ready retries: want at most %d", p.NotReadyRetries, MaxRetries)
	case p.Timeout < 1 || p.Timeout > maxTimeout:
		return fmt.Errorf("timeout %d: want 1 to %d (0 would wait for ever)", p.Timeout, maxTimeout)
	case p.NotReadyTimer > maxTimeout:
		return fmt.Errorf("not-ready timer %d: want at most %d", p.NotReadyTimer, maxTimeout)
	case p.Global && !p.GID.IsValid():
		return errors.New("a global path without a GID")
	case !p.Global && p.LID == 0:
		return errors.New("a path without GID and LID: the port has no subnet manager")
	}
	return nil
}

// PairState is the state of a queue pair.
type PairState uint8

// The states of queue pairs, by the numbers of the verbs.
const (
	PairReset PairState = iota
	PairInit
	PairReadyToReceive
	PairReadyToSend
	PairDraining
	PairSendFailed
	PairFailed
)

func (s PairState) String() string {
	return named(int(s), "reset", "init", "ready to receive", "ready to send", "draining", "send failed", "failed")
}

// QueuePair is one end of a reliable connection. Its methods may be called from many
// goroutines; requests run in the order in which they were posted.
type QueuePair struct {
	Number uint32 // what the peer must know
	Inline int    // bytes that a request may carry itself

	mu     sync.Mutex // guards handle against Close
	closed bool
	handle pairHandle
}

// NewQueuePair makes a queue pair that takes receives (PostReceive) and is to be
// connected. The peer may write to regions that were registered for it.
func (c *Context) NewQueuePair(cfg PairConfig) (*QueuePair, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return nil, ErrClosed
	}
	h, num, inline, err := createPair(c.domain, cfg, cfg.Sends.handle, cfg.Receives.handle)
	if err != nil {
		return nil, fmt.Errorf("make a queue pair for %d sends and %d receives on %s: %w", cfg.SendDepth, cfg.ReceiveDepth, c.device, err)
	}
	q := &QueuePair{Number: num, Inline: inline, handle: h}
	if err := initPair(h, cfg.Port, accessLocalWrite|accessRemoteWrite); err != nil {
		return nil, errors.Join(fmt.Errorf("set up a queue pair on port %d of %s: %w", cfg.Port, c.device, err), q.Close())
	}
	return q, nil
}

// with runs f on the handle unless the pair is closed.
func (q *QueuePair) with(f func(pairHandle) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	return f(q.handle)
}

// Connect makes the queue pair ready to receive and to send. Both ends do it, in any
// order; a send before the peer has is retried.
func (q *QueuePair) Connect(p Path) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("connect RDMA queue pair %d: %w", q.Number, err)
	}
	return q.with(func(h pairHandle) error {
		err := connectPair(h, p)
		switch {
		case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
			return fmt.Errorf("connect RDMA queue pair %d to %v: %w: the address of the peer's card is not found on this network", q.Number, p.GID, err)
		case err != nil:
			return fmt.Errorf("connect RDMA queue pair %d to queue pair %d, GID %v, LID %d: %w", q.Number, p.QP, p.GID, p.LID, err)
		}
		return nil
	})
}

// PostSend posts up to 64 requests and returns how many were taken; ErrFull says that
// the others have no room yet.
func (q *QueuePair) PostSend(w []Work) (int, error) {
	return q.post(w, postSend)
}

// PostReceive posts up to 64 receives and returns how many were taken; ErrFull says
// that the others have no room yet.
func (q *QueuePair) PostReceive(w []Work) (int, error) {
	return q.post(w, postReceive)
}

func (q *QueuePair) post(w []Work, do func(pairHandle, []Work) (int, error)) (n int, err error) {
	switch {
	case len(w) == 0:
		return 0, nil
	case len(w) > maxBatch:
		return 0, fmt.Errorf("post %d requests: want at most %d", len(w), maxBatch)
	}
	err = q.with(func(h pairHandle) error {
		var err error
		n, err = do(h, w)
		return err
	})
	switch {
	case errors.Is(err, syscall.ENOMEM):
		return n, ErrFull
	case err != nil && !errors.Is(err, ErrClosed):
		return n, fmt.Errorf("post to RDMA queue pair %d: %w", q.Number, err)
	}
	return n, err
}

// Fail puts the queue pair into its error state: what waits completes with
// StatusFlushed, and the peer's card can no longer write through it.
func (q *QueuePair) Fail() error {
	return q.with(func(h pairHandle) error {
		if err := failPair(h); err != nil {
			return fmt.Errorf("fail RDMA queue pair %d: %w", q.Number, err)
		}
		return nil
	})
}

// Reset forgets the peer and all requests, without completions: packets from the peer
// are dropped in silence, as when this host were gone.
func (q *QueuePair) Reset() error {
	return q.with(func(h pairHandle) error {
		if err := resetPair(h); err != nil {
			return fmt.Errorf("reset RDMA queue pair %d: %w", q.Number, err)
		}
		return nil
	})
}

// State asks for the state.
func (q *QueuePair) State() (s PairState, err error) {
	err = q.with(func(h pairHandle) error {
		var err error
		if s, err = pairState(h); err != nil {
			return fmt.Errorf("ask RDMA queue pair %d: %w", q.Number, err)
		}
		return nil
	})
	return s, err
}

// Close destroys the queue pair. Completions that were not taken are lost. A second
// Close does nothing.
func (q *QueuePair) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	if err := destroyPair(q.handle); err != nil {
		return fmt.Errorf("close RDMA queue pair %d: %w", q.Number, err)
	}
	q.closed = true
	return nil
}
