package conns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Conn is a connection that was dialled.
type Conn interface {
	comparable
	// Run sends until the connection ends, and takes it down.
	Run()
	// Ready waits, while Run runs, until pieces may be sent, or returns why not.
	Ready() error
	// Open reports whether pieces are accepted.
	Open() bool
	// End lets what was accepted be sent, and nothing more be accepted: that ends with err.
	End(err error)
	// Fail breaks it.
	Fail(err error)
	// Gone is closed by Run at its end.
	Gone() <-chan struct{}
	// Broke returns after that why it broke, nil if it ended in peace or may be dialled
	// again at once.
	Broke() error
}

// Config is what a Set is made of.
type Config[C Conn] struct {
	Options
	Name string // of the transport, for people
	// Known reports whether a node can be dialled.
	Known func(kevlard.NodeID) bool
	// Dial makes a connection for a slot of a peer.
	Dial      func(to kevlard.NodeID, slot int) (C, error)
	MaxGuests int
	Counts    *Counts
}

// Set is all connections of one mover.
type Set[C Conn] struct {
	cfg  Config[C]
	life context.Context // ends with Close
	stop context.CancelCauseFunc
	work sync.WaitGroup // goroutines of Spawn, and calls between Enter and Leave

	closing  sync.Once
	closeErr error

	mu     sync.Mutex
	closed bool
	peers  map[kevlard.NodeID][]*slot[C]
	guests map[guestKey]*Guest
}

// New returns a Set without connections.
func New[C Conn](cfg Config[C]) *Set[C] {
	s := &Set[C]{cfg: cfg, peers: map[kevlard.NodeID][]*slot[C]{}, guests: map[guestKey]*Guest{}}
	s.life, s.stop = context.WithCancelCause(context.Background())
	return s
}

// Life ends when Close begins.
func (s *Set[C]) Life() context.Context { return s.life }

// Get returns a connection that takes pieces of a lane, dialling if there is none.
func (s *Set[C]) Get(ctx context.Context, to kevlard.NodeID, lane mover.Lane) (C, error) {
	slots, err := s.peer(to)
	if err != nil {
		var none C
		return none, err
	}
	return slots[uint64(lane)%uint64(len(slots))].get(ctx)
}

// GetAll returns all connections to a peer, and makes those that there are not yet.
func (s *Set[C]) GetAll(ctx context.Context, to kevlard.NodeID) ([]C, error) {
	slots, err := s.peer(to)
	if err != nil {
		return nil, err
	}
	var all []C
	for _, slot := range slots {
		c, err := slot.get(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// peer returns the slots of a peer.
func (s *Set[C]) peer(to kevlard.NodeID) ([]*slot[C], error) {
	s.mu.Lock()
	slots, ok := s.peers[to]
	closed, n := s.closed, len(s.peers)
	s.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	case ok:
		return slots, nil
	case n >= maxPeers:
		return nil, fmt.Errorf("send to %s: %w: %d peers have connections: forget some", to, mover.ErrBusy, n)
	case !s.cfg.Known(to): // without the lock: it may take one of its own
		return nil, fmt.Errorf("send to %s: %w: wait until the mesh has found it", to, mover.ErrUnknownPeer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	}
	if slots, ok = s.peers[to]; ok {
		return slots, nil
	}
	for i := range s.cfg.Conns {
		slots = append(slots, &slot[C]{set: s, to: to, index: i})
	}
	s.peers[to] = slots
	return slots, nil
}

// Forget ends all connections to and from a peer, because it left or is no longer
// admitted: those from it at once; those to it, which are returned, when they have sent
// what they accepted. A later Get dials anew.
func (s *Set[C]) Forget(node kevlard.NodeID) []C {
	s.mu.Lock()
	slots := s.peers[node]
	delete(s.peers, node)
	var guests []*Guest
	for k, g := range s.guests {
		if k.node == node {
			guests = append(guests, g)
		}
	}
	s.mu.Unlock()
	for _, g := range guests {
		g.End(errors.New("the peer was removed"))
	}
	return endAll(slots, fmt.Errorf("send to %s: %w: it was removed", node, mover.ErrUnreachable))
}

// Len is how many connections there are, both ways.
func (s *Set[C]) Len() int {
	s.mu.Lock()
	peers, n := maps.Clone(s.peers), len(s.guests)
	s.mu.Unlock()
	var none C
	for _, slots := range peers {
		for _, slot := range slots {
			slot.mu.Lock()
			if slot.current != none {
				n++
			}
			slot.mu.Unlock()
		}
	}
	return n
}

// Enter has Close wait for Leave, unless it has begun.
func (s *Set[C]) Enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Add(1)
	}
	return !s.closed
}

// Leave ends what Enter began.
func (s *Set[C]) Leave() { s.work.Done() }

// Spawn runs f in a goroutine that Close waits for, unless Close has begun.
func (s *Set[C]) Spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(f)
	}
	return !s.closed
}

// Lost counts a broken connection, unless it was Close that broke it, and reports whether
// the handler is to be told.
func (s *Set[C]) Lost() bool {
	if s.life.Err() != nil {
		return false
	}
	s.cfg.Counts.Broken.Add(1)
	return true
}

// Close lets the connections send what they accepted, for CloseGrace in all, ends those of
// guests, and waits for all that runs. begin is called first, end last. A second Close
// returns when the first does.
func (s *Set[C]) Close(begin, end func() error) error {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.stop(mover.ErrClosed)
		err := begin()
		s.part()
		for _, g := range s.all() {
			g.bye(mover.ErrClosed)
		}
		s.work.Wait()
		s.closeErr = errors.Join(err, end())
	})
	return s.closeErr
}

// part ends all connections to peers.
func (s *Set[C]) part() {
	s.mu.Lock()
	peers := maps.Clone(s.peers)
	s.mu.Unlock()
	var left []C
	for to, slots := range peers {
		left = append(left, endAll(slots, fmt.Errorf("send to %s: %w", to, mover.ErrClosed))...)
	}
	grace := time.NewTimer(CloseGrace)
	defer grace.Stop()
	for i, c := range left {
		select {
		case <-c.Gone():
		case <-grace.C:
			for _, c := range left[i:] {
				c.Fail(mover.ErrClosed)
			}
			return
		}
	}
}
