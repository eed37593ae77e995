package daemon

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// sender sends what was exported. Rows of one session and stage stay in order; a
// peer is sent sendLines pieces at a time. Nothing waits for a peer but its own
// pieces: what is over the bounds is not sent, and the machine is told.
type sender struct {
	mover   mover.Mover // nil: this node sends and takes no KV
	codec   *protocol.Codec
	buffers *kvstream.Pool
	post    func(node.Event) bool
	sent    func(bytes int)
	wake    chan struct{} // capacity 1: there are new lines

	mu      sync.Mutex
	lines   map[lineID][]outgoing // those that a goroutine of run works on, or will
	started []lineID              // those that have none yet
	waiting map[kevlard.NodeID]int64
	ended   bool
}

// lineID names one of the queues to a peer.
type lineID struct {
	to   kevlard.NodeID
	line mover.Lane
}

// outgoing is rows on their way out. Its body is of the sender's buffers.
type outgoing struct {
	node.Export
	layout kvstream.Layout
	body   []byte
}

func newSender(m mover.Mover, codec *protocol.Codec, post func(node.Event) bool, sent func(int)) *sender {
	return &sender{
		mover: m, codec: codec, buffers: kvstream.NewPool(maxLeavingBytes), post: post, sent: sent,
		wake: make(chan struct{}, 1), lines: map[lineID][]outgoing{}, waiting: map[kevlard.NodeID]int64{},
	}
}

// room returns a buffer for rows to a peer; nil and the cause if they can't be sent.
func (s *sender) room(to kevlard.NodeID, n int) ([]byte, string) {
	if s.mover == nil {
		return nil, "this node has no bulk address"
	}
	s.mu.Lock()
	full := s.waiting[to]+int64(n) > maxLeavingPeer
	s.mu.Unlock()
	if full {
		return nil, fmt.Sprintf("%d bytes for it wait already, at most %d do", n, int64(maxLeavingPeer))
	}
	b := s.buffers.Get(n)
	if b == nil {
		return nil, fmt.Sprintf("no buffer of %d bytes: at most %d are used", n, int64(maxLeavingBytes))
	}
	return b, ""
}

// lane keeps the rows of one session and stage in order.
func lane(r protocol.Rows) mover.Lane {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.Session)) // never fails
	return mover.Lane(h.Sum64() + uint64(r.Stage.Layers.Lo))
}

// send queues rows and does not block.
func (s *sender) send(o outgoing) {
	id := lineID{o.To, lane(o.Rows) % sendLines}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.buffers.Put(o.body)
		return
	}
	s.waiting[o.To] += int64(len(o.body))
	line, works := s.lines[id]
	s.lines[id] = append(line, o)
	if works {
		return
	}
	s.started = append(s.started, id)
	select {
	case s.wake <- struct{}{}:
	default: // run has not yet looked
	}
}

// run gives each line that has rows a goroutine, until ctx ends.
func (s *sender) run(ctx context.Context) {
	var lines sync.WaitGroup
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.wake:
		}
		s.mu.Lock()
		started := s.started
		s.started = nil
		s.mu.Unlock()
		for _, id := range started {
			lines.Go(func() { s.empty(ctx, id) })
		}
	}
	lines.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, id := range s.started { // queued since
		for _, o := range s.lines[id] {
			s.buffers.Put(o.body)
		}
	}
}

// empty sends the rows of a line until there are none.
func (s *sender) empty(ctx context.Context, id lineID) {
	for {
		s.mu.Lock()
		line := s.lines[id]
		if len(line) == 0 {
			delete(s.lines, id)
			s.mu.Unlock()
			return
		}
		o := line[0]
		line[0] = outgoing{} // let go of the body
		s.lines[id] = line[1:]
		s.mu.Unlock()
		err := s.transmit(ctx, o)
		s.mu.Lock()
		if s.waiting[o.To] -= int64(len(o.body)); s.waiting[o.To] == 0 {
			delete(s.waiting, o.To)
		}
		s.mu.Unlock()
		s.buffers.Put(o.body)
		if err != nil {
			s.post(node.RowsUnsent{To: o.To, Session: o.Rows.Session, Stage: o.Stage, Cause: err.Error()})
		}
	}
}

func (s *sender) transmit(ctx context.Context, o outgoing) error {
	o.Rows.Sums = o.layout.Sums(make([]uint64, 0, len(o.Rows.Tokens)), o.body, len(o.Rows.Tokens))
	header, err := s.codec.EncodeRows(o.Rows)
	if err != nil {
		return err
	}
	if err := s.mover.Send(ctx, o.To, lane(o.Rows), header, o.body); err != nil {
		return fmt.Errorf("send KV to node %s: %w", o.To, err)
	}
	s.sent(len(o.body))
	return nil
}
