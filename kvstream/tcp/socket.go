package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
)

// errStalled marks a connection that made no progress for Config.Stall.
var errStalled = errors.New("no progress")

// socket is a TCP connection whose reads and writes end when they make no progress.
// TLS sits on top of it, or nothing.
type socket struct {
	*net.TCPConn
	stall time.Duration

	// The reading side; one goroutine. busy says that the other end owes bytes: only
	// then is their absence an error.
	busy      bool
	peeked    []byte
	readUntil time.Time

	mu         sync.Mutex // TLS writes alerts from its reading side too
	gather     bool       // Write collects, Flush writes
	pending    []byte
	writeUntil time.Time
}

func newSocket(c *net.TCPConn, stall time.Duration) *socket {
	return &socket{TCPConn: c, stall: stall}
}

// Read waits for bytes, up to stall while the connection is busy, else for ever.
func (s *socket) Read(p []byte) (int, error) {
	if len(s.peeked) > 0 {
		n := copy(p, s.peeked)
		s.peeked = s.peeked[n:]
		return n, nil
	}
	grace := false
	for {
		// A deadline costs more than a glance at the clock, so each is used for a
		// while: one that passes was set at least stall ago.
		if now := time.Now(); grace || s.readUntil.Sub(now) < s.stall {
			s.readUntil = now.Add(s.stall + s.stall/4)
			if grace {
				s.readUntil = now.Add(kevlard.LateGrace)
			}
			if err := s.SetReadDeadline(s.readUntil); err != nil {
				return 0, err
			}
		}
		n, err := s.TCPConn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		s.readUntil = time.Time{}
		if s.busy && grace {
			return 0, fmt.Errorf("%w for %v in the middle of a piece", errStalled, s.stall)
		}
		// Were it this process that stood still, the bytes are there by now.
		grace = s.busy
	}
}

// Write writes or, while gathering, collects.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gather {
		return s.writeLocked(net.Buffers{p})
	}
	if len(s.pending)+len(p) > cap(s.pending) && len(s.pending) > 0 {
		if err := s.flushLocked(); err != nil {
			return 0, err
		}
	}
	s.pending = append(s.pending, p...)
	return len(p), nil
}

// Gather makes further writes collect up to about size bytes for one system call.
func (s *socket) Gather(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather, s.pending = true, make([]byte, 0, size)
}

// Flush writes what was gathered.
func (s *socket) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushLocked()
}

func (s *socket) flushLocked() error {
	if len(s.pending) == 0 {
		return nil
	}
	_, err := s.writeLocked(net.Buffers{s.pending})
	s.pending = s.pending[:0]
	return err
}

// Vector writes all of v in as few system calls as the kernel allows; v is consumed.
func (s *socket) Vector(v net.Buffers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.writeLocked(v)
	return err
}

// writeLocked gives up only after stall without progress: bytes taken by the kernel
// are progress, and the kernel's own bound (TCP_USER_TIMEOUT) is on those that
// the peer has not acknowledged.
func (s *socket) writeLocked(v net.Buffers) (int, error) {
	total, grace := 0, false
	for {
		if now := time.Now(); grace || s.writeUntil.Sub(now) < s.stall { // as in Read
			s.writeUntil = now.Add(s.stall + s.stall/4)
			if grace {
				s.writeUntil = now.Add(kevlard.LateGrace)
			}
			if err := s.SetWriteDeadline(s.writeUntil); err != nil {
				return total, err
			}
		}
		n, err := v.WriteTo(s.TCPConn)
		total += int(n)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return total, err
		}
		s.writeUntil = time.Time{}
		if n == 0 && grace {
			return total, fmt.Errorf("%w for %v: the peer takes no bytes", errStalled, s.stall)
		}
		grace = n == 0
	}
}

// peek reads the first byte and keeps it for Read.
func (s *socket) peek() (byte, error) {
	var b [1]byte
	n, err := s.Read(b[:])
	if n == 0 {
		return 0, err
	}
	s.peeked = b[:]
	return b[0], nil
}

// reset closes the connection so that the peer knows at once and nothing lingers.
func (s *socket) reset() {
	s.SetLinger(0) // an error means that it is closed already
	s.Close()
}
