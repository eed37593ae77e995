package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// work is an entry of a connection's queue: a block of complete small pieces, or one
// large piece in its sender's memory.
type work struct {
	block []byte // from the mover's pool; nil for a large piece

	header []byte
	body   [][]byte
	size   int        // of body
	state  workState  // guarded by queue.mu
	done   chan error // capacity 1: the sender may use its memory again
}

type workState uint8

const (
	waiting workState = iota
	writing
	dropped // the sender gave up before it began
)

// queue is what one connection still has to send, and who may write: the connection's
// writer, which takes all there is at once, or a sender of a large piece that finds
// nothing before it and is spared two changes of goroutine.
type queue struct {
	to     kevlard.NodeID
	summed bool       // a checksum follows each body
	pool   *sync.Pool // of *[]byte with blockBytes of capacity

	mu      sync.Mutex
	items   []*work
	bytes   int           // in blocks
	pieces  int           // large ones
	waiters int           // senders that wait for room
	writing bool          // somebody uses the connection's output
	uses    uint64        // pieces accepted
	room    chan struct{} // closed when the writer has taken the items
	err     error         // set once: nothing is accepted any more
	wake    chan struct{} // capacity 1: there are items, or err is set
}

func newQueue(to kevlard.NodeID, summed bool, pool *sync.Pool) *queue {
	return &queue{to: to, summed: summed, pool: pool, room: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// put waits for room and queues a piece. A large piece is returned, to wait for; if
// now is true, the caller is to write it itself and then call release.
func (q *queue) put(ctx context.Context, header []byte, body [][]byte, size int) (w *work, now bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && (q.bytes >= queueBytes || q.pieces >= queuePieces) {
		if q.waiters >= maxWaiters {
			return nil, false, fmt.Errorf("send to %s: %w (%d): let earlier ones finish first", q.to, mover.ErrBusy, maxWaiters)
		}
		if err := q.await(ctx); err != nil {
			return nil, false, err
		}
	}
	if q.err != nil {
		return nil, false, q.err
	}
	q.uses++
	if size <= smallPiece {
		q.copyLocked(header, body, size)
		q.stir()
		return nil, false, nil
	}
	w = &work{header: header, body: body, size: size}
	if !q.writing && len(q.items) == 0 {
		q.writing = true
		return w, true, nil
	}
	w.done = make(chan error, 1)
	q.items = append(q.items, w)
	q.pieces++
	q.stir()
	return w, false, nil
}

// release ends the caller's use of the output.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = false
	if len(q.items) > 0 || q.err != nil {
		q.stir()
	}
}

// used returns how many pieces were accepted.
func (q *queue) used() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.uses
}

// await waits, unlocked, until the writer has taken the items.
func (q *queue) await(ctx context.Context) error {
	room := q.room
	q.waiters++
	q.mu.Unlock()
	var err error
	select {
	case <-room:
	case <-ctx.Done():
		err = fmt.Errorf("send to %s: waiting for room: %w", q.to, context.Cause(ctx))
	}
	q.mu.Lock()
	q.waiters--
	return err
}

// copyLocked appends a whole piece to the last block, or to a new one.
func (q *queue) copyLocked(header []byte, body [][]byte, size int) {
	need := headLen + len(header) + size + sumLen
	var w *work
	if n := len(q.items); n > 0 && q.items[n-1].block != nil && cap(q.items[n-1].block)-len(q.items[n-1].block) >= need {
		w = q.items[n-1]
	} else {
		w = &work{block: (*q.pool.Get().(*[]byte))[:0]}
		q.items = append(q.items, w)
	}
	w.block = appendHead(w.block, header, size)
	at := len(w.block)
	for _, b := range body {
		w.block = append(w.block, b...)
	}
	if q.summed {
		w.block = binary.BigEndian.AppendUint64(w.block, sumOf(w.block[at:]))
	}
	q.bytes += need
}

// open reports whether pieces are accepted.
func (q *queue) open() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err == nil
}

// stir wakes the writer.
func (q *queue) stir() {
	select {
	case q.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

// take returns all items, and err if the queue was ended. If there is either, the
// output is the caller's until release. There is neither while somebody else writes, who
// will wake the writer.
func (q *queue) take(into []*work) ([]*work, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.writing {
		return into[:0], nil
	}
	q.writing = len(q.items) > 0 || q.err != nil
	into = append(into[:0], q.items...)
	clear(q.items)
	q.items, q.bytes, q.pieces = q.items[:0], 0, 0
	if q.waiters > 0 {
		close(q.room)
		q.room = make(chan struct{})
	}
	return into, q.err
}

// drain returns all items of a queue that has ended, even if somebody still writes.
func (q *queue) drain() []*work {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// begin reports whether a large piece is still wanted, and if so makes it one that
// cannot be dropped.
func (q *queue) begin(w *work) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.state == dropped {
		return false
	}
	w.state = writing
	return true
}

// drop reports whether a large piece was taken back before it began.
func (q *queue) drop(w *work) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.state == waiting {
		w.state = dropped
	}
	return w.state == dropped
}

// end refuses further pieces with err and wakes all that wait. The first err stays.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	q.err = err
	close(q.room)
	q.room = make(chan struct{})
	q.stir()
}

// recycle gives a block back to the pool.
func (q *queue) recycle(w *work) { q.pool.Put(&w.block) }
