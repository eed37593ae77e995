package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// Why KV was not used: the reasons of kevlard_kv_rejected_total.
const (
	rejectedFormat  = "format"  // a piece that this build can't read
	rejectedFull    = "full"    // a piece for which there was no buffer
	rejectedDamaged = "damaged" // a checksum was wrong, on arrival or on use
	rejectedMemory  = "memory"  // no block memory was to be had
)

// keeper takes the pieces of KV that peers send, and carries out StoreRows, FreeSlots
// and DropRows, which never block. It is the mover's handler: those methods may block as
// long as the inbox is full, which holds up the connection that called.
type keeper struct {
	codec   *protocol.Codec
	buffers *kvstream.Pool
	store   *kvstream.Store
	post    func(node.Event) bool
	reject  func(reason string, from kevlard.NodeID, detail string)
	wake    chan struct{} // capacity 1: there are jobs

	mu      sync.Mutex
	pieces  uint64 // the number of the last one
	arrived map[uint64]arrived
	jobs    []storeJob // bounded: pieces as arrived is, by buffers, and slots by their number
}

// arrived is a piece that waits for the machine's word.
type arrived struct {
	cellBytes int
	sums      []uint64
	body      []byte // of buffers
}

// storeJob is a StoreRows with its piece, or a FreeSlots.
type storeJob struct {
	node.StoreRows
	arrived
	free *node.FreeSlots
}

func newKeeper(store *kvstream.Store, codec *protocol.Codec, post func(node.Event) bool, reject func(string, kevlard.NodeID, string)) *keeper {
	return &keeper{
		codec: codec, buffers: kvstream.NewPool(maxArrivingBytes), store: store, post: post, reject: reject,
		wake: make(chan struct{}, 1), arrived: map[uint64]arrived{},
	}
}

// Buffer implements mover.Handler.
func (k *keeper) Buffer(from kevlard.NodeID, _ []byte, n int) []byte {
	b := k.buffers.Get(n)
	if b == nil {
		k.reject(rejectedFull, from, fmt.Sprintf("a piece of %d bytes while %d of at most %d wait for their place", n, k.buffers.Used(), int64(maxArrivingBytes)))
	}
	return b
}

// Received implements mover.Handler.
func (k *keeper) Received(from kevlard.NodeID, header, body []byte) {
	r, layout, err := k.decode(header, body)
	if err != nil {
		k.reject(rejectedFormat, from, err.Error())
		k.free(body)
		return
	}
	n := len(r.Tokens)
	whole := layout.Whole(body, n, r.Sums)
	if whole < n {
		k.reject(rejectedDamaged, from, fmt.Sprintf("position %d of session %s at layers %v", r.Pos+whole, r.Session, r.Stage.Layers))
	}
	k.hand(from, r, body, whole == n)
}

// own takes rows that an engine of this node computed, with their sums. body is of the
// keeper's buffers.
func (k *keeper) own(self kevlard.NodeID, r protocol.Rows, body []byte) { k.hand(self, r, body, true) }

// hand tells the machine of a piece.
func (k *keeper) hand(from kevlard.NodeID, r protocol.Rows, body []byte, intact bool) {
	k.mu.Lock()
	k.pieces++
	piece := k.pieces
	k.arrived[piece] = arrived{r.CellBytes, r.Sums, body}
	k.mu.Unlock()
	if !k.post(node.RowsArrived{From: from, Piece: piece, Rows: r, Intact: intact}) {
		k.dropRows(node.DropRows{Piece: piece})
	}
}

func (k *keeper) decode(header, body []byte) (protocol.Rows, kvstream.Layout, error) {
	r, err := k.codec.DecodeRows(header, len(body))
	if err != nil {
		return r, kvstream.Layout{}, err
	}
	layout, err := kvstream.LayoutOf(r.Stage.Layers, r.CellBytes)
	return r, layout, err
}

// Aborted implements mover.Handler.
func (k *keeper) Aborted(_ kevlard.NodeID, _, body []byte) { k.free(body) }

// Lost implements mover.Handler. Nothing is to be done: the receiver misses what was
// lost when the next piece comes, and asks for it.
func (k *keeper) Lost(kevlard.NodeID, error) {}

func (k *keeper) free(body []byte) {
	if body != nil {
		k.buffers.Put(body)
	}
}

func (k *keeper) take(piece uint64) (arrived, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.arrived[piece]
	delete(k.arrived, piece)
	return a, ok
}

func (k *keeper) dropRows(ev node.DropRows) {
	if a, ok := k.take(ev.Piece); ok {
		k.free(a.body)
	}
}

func (k *keeper) storeRows(ev node.StoreRows) {
	a, ok := k.take(ev.Piece)
	if !ok {
		panic(fmt.Sprintf("daemon: piece %d is to be stored, but did not arrive", ev.Piece))
	}
	k.queue(storeJob{StoreRows: ev, arrived: a})
}

// freeSlots keeps its place among the pieces: one that comes later may use the slots.
func (k *keeper) freeSlots(ev node.FreeSlots) { k.queue(storeJob{free: &ev}) }

func (k *keeper) queue(j storeJob) {
	k.mu.Lock()
	k.jobs = append(k.jobs, j)
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default: // run has not yet looked
	}
}

// run moves pieces to their places and frees slots, in order, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		}
		k.mu.Lock()
		jobs := k.jobs
		k.jobs = nil
		k.mu.Unlock()
		for _, j := range jobs {
			if j.free == nil {
				k.put(j)
			} else if err := k.store.Free(j.free.Stage, j.free.Slots...); err != nil {
				k.reject(rejectedMemory, "", err.Error())
			}
		}
	}
}

func (k *keeper) put(j storeJob) {
	done := node.RowsStored{Piece: j.Piece}
	if err := k.store.Put(j.Stage, j.cellBytes, j.To, j.sums, j.body); err != nil {
		k.reject(rejectedMemory, "", err.Error())
		done.Failed = err.Error()
	}
	k.free(j.body)
	k.post(done)
}

// close gives everything back; nothing arrives and run has ended.
func (k *keeper) close() error {
	k.mu.Lock()
	for _, a := range k.arrived {
		k.free(a.body)
	}
	for _, j := range k.jobs {
		k.free(j.body)
	}
	k.jobs = nil
	clear(k.arrived)
	k.mu.Unlock()
	err := k.store.Close()
	if n := k.buffers.Used(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d bytes of buffers for KV were not given back", n))
	}
	return err
}
