package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Mover is a mover.Mover over TCP.
type Mover struct {
	cfg         Config
	identity    *identity // nil when plain
	listener    *net.TCPListener
	incarnation [16]byte
	began       time.Time
	blocks      sync.Pool // *[]byte, blockBytes of capacity
	counts      counts
	attempts    atomic.Uint64 // greetings sent: the numbers of connections

	life context.Context // ends with Close; every goroutine's
	stop context.CancelCauseFunc
	work sync.WaitGroup // all goroutines

	bucketMu sync.Mutex
	bucket   bucket

	mu        sync.Mutex
	closed    bool
	peers     map[kevlard.NodeID][]*slot
	guests    map[guestKey]*guest
	strangers int // accepted and not yet welcome
}

var _ mover.Mover = (*Mover)(nil)

// errGivenUp breaks a connection whose sender took a piece back in the middle.
var errGivenUp = errors.New("a sender gave up in the middle of a piece")

// New listens and returns a mover that works until Close.
func New(cfg Config) (*Mover, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Mover{
		cfg: cfg, began: time.Now(), bucket: newBucket(cfg.Bandwidth),
		peers: make(map[kevlard.NodeID][]*slot), guests: make(map[guestKey]*guest),
	}
	m.blocks.New = func() any {
		b := make([]byte, 0, blockBytes)
		return &b
	}
	rand.Read(m.incarnation[:]) // crypto/rand ends the process if it cannot
	if !cfg.Plain {
		var err error
		if m.identity, err = newIdentity(cfg.Key); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for bulk transfers: %w: free the port, or set another mesh.bulk_port", err)
	}
	m.listener = l.(*net.TCPListener)
	m.life, m.stop = context.WithCancelCause(context.Background())
	m.work.Go(m.accept)
	return m, nil
}

// Addr returns where the mover listens, as host:port.
func (m *Mover) Addr() string { return m.listener.Addr().String() }

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
		w, now, err := c.queue.put(ctx, header, body, size)
		switch {
		case now:
			err = c.direct(ctx, w)
		case w != nil:
			err = c.await(ctx, w)
		}
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

// peer returns the slots of a peer.
func (m *Mover) peer(to kevlard.NodeID) ([]*slot, error) {
	m.mu.Lock()
	slots, ok := m.peers[to]
	closed, n := m.closed, len(m.peers)
	m.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	case ok:
		return slots, nil
	case n >= maxPeers:
		return nil, fmt.Errorf("send to %s: %w: %d peers have connections: forget some", to, mover.ErrBusy, n)
	}
	if _, known := m.cfg.Resolve(to); !known {
		return nil, fmt.Errorf("send to %s: %w: wait until the mesh has found it", to, mover.ErrUnknownPeer)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slots, ok = m.peers[to]; ok {
		return slots, nil
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
		if c := s.end(fmt.Errorf("send to %s: %w: it was removed", node, mover.ErrUnreachable)); c != nil {
			c.fail(errors.New("the peer was removed"))
		}
	}
	for _, g := range guests {
		g.socket.reset()
	}
}

// Close implements mover.Mover.
func (m *Mover) Close() error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	var all []*slot
	for _, slots := range m.peers {
		all = append(all, slots...)
	}
	m.mu.Unlock()
	if again {
		m.work.Wait()
		return nil
	}
	m.stop(mover.ErrClosed)
	err := m.listener.Close()
	m.part(all)
	m.mu.Lock()
	for _, g := range m.guests {
		g.socket.reset()
	}
	m.mu.Unlock()
	m.work.Wait()
	if err != nil {
		return fmt.Errorf("close bulk listener %s: %w", m.Addr(), err)
	}
	return nil
}

// part lets the connections send what they accepted, for closeGrace in all.
func (m *Mover) part(slots []*slot) {
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	var left []*outgoing
	for _, s := range slots {
		if c := s.end(fmt.Errorf("send to %s: %w", s.to, mover.ErrClosed)); c != nil {
			left = append(left, c)
		}
	}
	late := false
	for _, c := range left {
		if !late {
			select {
			case <-c.gone:
			case <-timer.C:
				late = true
			}
		}
		if late {
			c.fail(mover.ErrClosed)
		}
	}
}

// spawn runs f in a goroutine that Close waits for, unless Close has begun.
func (m *Mover) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.work.Go(f)
	return true
}

// take takes n bytes from the node's bandwidth and returns how long to wait for them.
func (m *Mover) take(n int) time.Duration {
	if m.cfg.Bandwidth == 0 {
		return 0
	}
	m.bucketMu.Lock()
	defer m.bucketMu.Unlock()
	return m.bucket.take(kevlard.Instant(time.Since(m.began)), n)
}

// chunk is the most bytes of a piece in one write. Without a cap and without a second look at
// the bytes nothing is gained by more than one.
func (m *Mover) chunk() int {
	if m.cfg.Bandwidth == 0 && m.cfg.transport() == transportUnsummed {
		return mover.MaxBody
	}
	return m.bucket.chunk()
}

// lost counts a broken connection and tells the handler.
func (m *Mover) lost(c *outgoing) {
	m.counts.broken.Add(1)
	m.cfg.Log.Debug("bulk connection broke", "peer", c.slot.to, "slot", c.slot.index, "err", c.cause)
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if !closed {
		m.cfg.Handler.Lost(c.slot.to, c.cause)
	}
}
