package daemon

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// sender sends what was exported, and carries out SendStored. Rows of one session and
// stage stay in order; a peer is sent sendLines pieces at a time. Nothing waits for a
// peer but its own pieces: what is over the bounds is not sent.
type sender struct {
	mover   mover.Mover // nil: this node sends and takes no KV
	store   *kvstream.Store
	codec   *protocol.Codec
	buffers *kvstream.Pool
	post    func(node.Event) bool
	sent    func(to kevlard.NodeID, bytes int)
	reject  func(reason string, from kevlard.NodeID, detail string)
	ctx     context.Context // of the goroutines of lines, ended by cancel
	cancel  context.CancelFunc
	emptied sync.WaitGroup // the goroutines of lines

	mu      sync.Mutex
	lines   map[lineID][]outgoing // each has a goroutine
	waiting map[kevlard.NodeID]int64
	ended   bool
}

// lineID names one of the queues to a peer.
type lineID struct {
	to   kevlard.NodeID
	line mover.Lane
}

// outgoing is rows on their way out.
type outgoing struct {
	to   kevlard.NodeID
	rows protocol.Rows
	body []byte           // of the sender's buffers; of stored rows not yet there
	from *node.SendStored // of stored rows
}

func newSender(store *kvstream.Store, codec *protocol.Codec, post func(node.Event) bool, reject func(string, kevlard.NodeID, string)) *sender {
	ctx, cancel := context.WithCancel(context.Background())
	return &sender{
		store: store, codec: codec, buffers: kvstream.NewPool(maxLeavingBytes), post: post, reject: reject,
		ctx: ctx, cancel: cancel, lines: map[lineID][]outgoing{}, waiting: map[kevlard.NodeID]int64{},
	}
}

// room returns a buffer for rows to a peer; the error says why they can't be sent.
func (s *sender) room(to kevlard.NodeID, n int) ([]byte, error) {
	if s.mover == nil {
		return nil, errors.New("this node has no bulk transport: set [mesh] bulk_port, and a transport that it has")
	}
	s.mu.Lock()
	waiting := s.waiting[to]
	s.mu.Unlock()
	if waiting+int64(n) > maxLeavingPeer {
		return nil, fmt.Errorf("%d bytes for it wait already, at most %d do", waiting, int64(maxLeavingPeer))
	}
	b := s.buffers.Get(n)
	if b == nil {
		return nil, fmt.Errorf("no buffer of %d bytes: %d of at most %d are in use", n, s.buffers.Used(), int64(maxLeavingBytes))
	}
	return b, nil
}

// lane keeps the rows of one session and stage in order.
func lane(r protocol.Rows) mover.Lane {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.Session)) // never fails
	return mover.Lane(h.Sum64() + uint64(r.Stage.Layers.Lo))
}

// sendStored queues stored rows and does not block. The machine bounds them.
func (s *sender) sendStored(ev node.SendStored) {
	s.send(outgoing{to: ev.To, rows: ev.Rows, from: &ev})
}

// send queues rows and does not block.
func (s *sender) send(o outgoing) {
	id := lineID{o.to, lane(o.rows) % sendLines}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.free(o)
		return
	}
	s.waiting[o.to] += int64(len(o.body))
	line, works := s.lines[id]
	s.lines[id] = append(line, o)
	if works {
		return
	}
	s.emptied.Go(func() { s.empty(id) })
}

func (s *sender) free(o outgoing) {
	if o.body != nil {
		s.buffers.Put(o.body)
	}
}

// run waits for the end of ctx, and then until nothing is sent any more.
func (s *sender) run(ctx context.Context) {
	<-ctx.Done()
	s.mu.Lock()
	s.ended = true // no line begins from now on
	s.mu.Unlock()
	s.cancel()
	s.emptied.Wait()
}

// empty sends the rows of a line until there are none.
func (s *sender) empty(id lineID) {
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
		waited := int64(len(o.body))
		var err error
		if o.from != nil {
			o.rows, o.body, err = s.gather(*o.from)
		}
		if err == nil {
			err = s.transmit(s.ctx, o)
		}
		if err == nil && o.from != nil && len(o.rows.Tokens) < len(o.from.Rows.Tokens) {
			o.rows.Pos, err = o.rows.End(), errDamaged
		}
		s.free(o)
		s.mu.Lock()
		if s.waiting[o.to] -= waited; s.waiting[o.to] == 0 {
			delete(s.waiting, o.to)
		}
		s.mu.Unlock()
		if err != nil {
			s.unsent(o, err)
		}
	}
}

// unsent tells the machine that rows will not arrive.
func (s *sender) unsent(o outgoing, err error) {
	r := o.rows
	if o.from == nil {
		s.post(node.RowsUnsent{To: o.to, Session: r.Session, Stage: r.Stage, Cause: err.Error()})
		return
	}
	s.post(node.StoredUnsent{
		To: o.to, Session: r.Session, Fence: r.Fence, Stage: r.Stage, From: r.Pos, Damaged: errors.Is(err, errDamaged), Cause: err.Error(),
	})
}

// errDamaged marks stored rows that are not what was stored.
var errDamaged = errors.New("a stored position is damaged")

// transmit hands rows to the mover.
func (s *sender) transmit(ctx context.Context, o outgoing) error {
	n := len(o.rows.Tokens)
	if o.from == nil {
		layout, err := kvstream.LayoutOf(o.rows.Stage.Layers, o.rows.CellBytes)
		if err != nil {
			return err
		}
		o.rows.Sums = layout.Sums(make([]uint64, 0, n), o.body, n)
	}
	header, err := s.codec.EncodeRows(o.rows)
	if err != nil {
		return err
	}
	if err := s.mover.Send(ctx, o.to, lane(o.rows), header, o.body); err != nil {
		return fmt.Errorf("send KV to node %s: %w", o.to, err)
	}
	s.sent(o.to, len(o.body))
	return nil
}

// gather reads stored rows, as far as they are whole, with their sums. The block
// memory is free again when it returns.
func (s *sender) gather(ev node.SendStored) (r protocol.Rows, body []byte, err error) {
	done := node.StoredSent{ID: ev.ID}
	defer func() { s.post(done) }()
	r = ev.Rows
	size := len(r.Tokens) * r.CellBytes
	if body, err = s.room(ev.To, size); err != nil {
		return r, nil, err
	}
	sums, damaged := s.store.Get(ev.Stage, r.CellBytes, ev.From, body)
	done.N, done.Damaged = len(sums), damaged
	if damaged {
		s.reject(rejectedDamaged, "", fmt.Sprintf("stored position %d of session %s at layers %v", r.Pos+len(sums), r.Session, ev.Stage.Layers))
	}
	if len(sums) == 0 {
		s.buffers.Put(body)
		return r, nil, errDamaged
	}
	r.Tokens, r.Sums = r.Tokens[:len(sums)], sums
	return r, body[:len(sums)*r.CellBytes], nil
}
