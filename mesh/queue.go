package mesh

import (
	"fmt"
	"io"
	"sync"
)

// queue holds the encoded frames that wait for one connection. Any goroutine
// pushes, one writer drains. Its memory is bounded: the frames being written
// count until they are.
type queue struct {
	maxFrames int
	maxBytes  int
	ready     chan struct{} // capacity 1: there may be frames; closed by finish

	mu       sync.Mutex
	frames   [][]byte
	head     int // frames[:head] were taken
	bytes    int // of frames not yet written
	closed   bool
	farewell []byte
}

func newQueue(maxFrames, maxBytes int) *queue {
	return &queue{maxFrames: maxFrames, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// push appends an encoded frame and never blocks. The queue owns f from here on.
func (q *queue) push(f []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrNotConnected
	}
	if n := len(q.frames) - q.head; n >= q.maxFrames || q.bytes+len(f) > q.maxBytes {
		return fmt.Errorf("%w: %d frames, %d bytes wait", ErrQueueFull, n, q.bytes)
	}
	q.frames = append(q.frames, f)
	q.bytes += len(f)
	select {
	case q.ready <- struct{}{}:
	default: // the writer has not yet looked at the last notice
	}
	return nil
}

// finish drops what waits and ends the writer, after farewell if it is not nil.
// Later pushes fail.
func (q *queue) finish(farewell []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	q.frames, q.head, q.farewell = nil, 0, farewell
	close(q.ready)
}

// take removes the frames for the next write. One frame, or one too big to be
// gathered with others, is returned as it is; small ones are gathered in scratch.
func (q *queue) take(scratch []byte) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.frames[q.head:]
	if len(waiting) == 0 {
		q.frames, q.head = q.frames[:0], 0
		return nil
	}
	n, size := 0, 0
	for n < len(waiting) && size+len(waiting[n]) <= cap(scratch) {
		size += len(waiting[n])
		n++
	}
	out := waiting[0]
	if n > 1 {
		out = scratch[:0]
		for _, f := range waiting[:n] {
			out = append(out, f...)
		}
	}
	n = max(n, 1)
	clear(waiting[:n])
	q.head += n
	if q.head >= q.maxFrames {
		// A queue that never runs empty must not grow at its used end.
		q.frames, q.head = append(q.frames[:0], q.frames[q.head:]...), 0
	}
	return out
}

// wrote returns n bytes to the budget.
func (q *queue) wrote(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
}

// drain writes what is pushed until finish or an error of w. It blocks in w for
// as long as the peer does not read.
func (q *queue) drain(w io.Writer) error {
	scratch := make([]byte, 0, coalesceBytes)
	for range q.ready {
		for batch := q.take(scratch); batch != nil; batch = q.take(scratch) {
			if _, err := w.Write(batch); err != nil {
				return err
			}
			q.wrote(len(batch))
		}
	}
	q.mu.Lock()
	last := q.farewell
	q.mu.Unlock()
	if last == nil {
		return nil
	}
	_, err := w.Write(last)
	return err
}
