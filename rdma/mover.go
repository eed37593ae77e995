package rdma

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Mover is a mover.Mover over RDMA.
type Mover struct {
	cfg         Config
	incarnation [16]byte
	counts      counts
	attempts    atomic.Uint64 // set-ups sent: the numbers of connections

	out, in     *block // staging memory
	outgo, inco *staging

	life context.Context // ends with Close
	stop context.CancelCauseFunc
	work sync.WaitGroup // all goroutines, and all calls that use memory

	closing  sync.Once
	closeErr error

	mu     sync.Mutex
	closed bool
	peers  map[kevlard.NodeID][]*slot
	guests map[guestKey]*guest
}

var _ mover.Mover = (*Mover)(nil)

// New registers the staging memory and returns a mover that works until Close. An error
// that wraps ErrMemory says what is missing to lock it.
func New(cfg Config) (*Mover, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Mover{cfg: cfg, peers: make(map[kevlard.NodeID][]*slot), guests: make(map[guestKey]*guest)}
	rand.Read(m.incarnation[:]) // crypto/rand ends the process if it cannot
	var err error
	if m.out, err = newBlock(cfg.Staging, cfg.Devices...); err != nil {
		return nil, err
	}
	if m.in, err = newBlock(cfg.Staging, cfg.Devices...); err != nil {
		return nil, errors.Join(err, m.out.close())
	}
	m.outgo, m.inco = newStaging(m.out.mem), newStaging(m.in.mem)
	m.life, m.stop = context.WithCancelCause(context.Background())
	return m, nil
}

// Stats implements mover.Mover.
func (m *Mover) Stats() mover.Stats { return m.counts.stats() }

// Send implements mover.Mover.
func (m *Mover) Send(ctx context.Context, to kevlard.NodeID, lane mover.Lane, header []byte, body ...[]byte) error {
	size, err := mover.Size(header, body)
	if err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send to %s: %w", to, context.Cause(ctx))
	}
	if !m.enter() {
		return fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	}
	defer m.work.Done()
	slots, err := m.peer(to)
	if err != nil {
		return err
	}
	s := slots[uint64(lane)%uint64(len(slots))]
	for {
		c, err := s.get(ctx)
		if err != nil {
			return err
		}
		err = c.send(ctx, header, body, size)
		if errors.Is(err, errIdle) {
			continue // it ended just now, with nothing of ours in it
		}
		if err == nil {
			m.counts.sent.Add(1)
			m.counts.sentBytes.Add(uint64(len(header) + size))
		}
		return err
	}
}

// Probe makes the connections to a peer that there are not, and asks its card over each: one
// that was not used since the peer's link went down still looks whole.
func (m *Mover) Probe(ctx context.Context, to kevlard.NodeID) error {
	slots, err := m.peer(to)
	if err != nil {
		return err
	}
	for _, s := range slots {
		c, err := s.get(ctx)
		if err != nil {
			return err
		}
		if err := c.reach(ctx); err != nil {
			return err
		}
	}
	return nil
}

// peer returns the slots of a peer.
func (m *Mover) peer(to kevlard.NodeID) ([]*slot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slots, ok := m.peers[to]
	switch {
	case m.closed:
		return nil, fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	case ok:
		return slots, nil
	case len(m.peers) >= maxPeers:
		return nil, fmt.Errorf("send to %s: %w: %d peers have connections: forget some", to, mover.ErrBusy, len(m.peers))
	case !m.cfg.Known(to):
		return nil, fmt.Errorf("send to %s: %w: wait until the mesh has found it", to, mover.ErrUnknownPeer)
	}
	for i := range m.cfg.Conns {
		slots = append(slots, &slot{mover: m, to: to, index: i})
	}
	m.peers[to] = slots
	return slots, nil
}

// Forget ends all connections to and from a peer, because it left or is no longer
// admitted. A later Send dials anew.
func (m *Mover) Forget(node kevlard.NodeID) {
	m.mu.Lock()
	slots := m.peers[node]
	delete(m.peers, node)
	var guests []*guest
	for k, g := range m.guests {
		if k.node == node {
			guests = append(guests, g)
		}
	}
	m.mu.Unlock()
	for _, s := range slots {
		s.end(fmt.Errorf("send to %s: %w: it was removed", node, mover.ErrUnreachable))
	}
	for _, g := range guests {
		g.fail(errors.New("the peer was removed"))
	}
}

// enter has Close wait for work.Done, unless it has begun.
func (m *Mover) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.work.Add(1)
	}
	return !m.closed
}

// spawn starts a goroutine of the mover, unless it is closed.
func (m *Mover) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.work.Go(f)
	return true
}

// lost tells the handler that a connection broke, unless that was Close.
func (m *Mover) lost(to kevlard.NodeID, err error) {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return
	}
	m.counts.broken.Add(1)
	m.cfg.Handler.Lost(to, fmt.Errorf("RDMA to %s: %w", to, err))
}

// Close implements mover.Mover.
func (m *Mover) Close() error {
	m.closing.Do(func() { m.closeErr = m.close() })
	return m.closeErr
}

func (m *Mover) close() error {
	m.mu.Lock()
	m.closed = true
	var slots []*slot
	for _, s := range m.peers {
		slots = append(slots, s...)
	}
	var guests []*guest
	for _, g := range m.guests {
		guests = append(guests, g)
	}
	m.mu.Unlock()
	var ending []*outgoing
	for _, s := range slots {
		if c := s.end(fmt.Errorf("send to %s: %w", s.to, mover.ErrClosed)); c != nil {
			ending = append(ending, c)
		}
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
wait:
	for _, c := range ending {
		select {
		case <-c.gone:
		case <-grace.C:
			break wait
		}
	}
	m.stop(mover.ErrClosed) // dials under way
	for _, c := range ending {
		c.fail(mover.ErrClosed)
	}
	for _, g := range guests {
		g.leave(mover.ErrClosed)
	}
	m.work.Wait()
	return errors.Join(m.out.close(), m.in.close())
}
