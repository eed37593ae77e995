package rdma

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Mover is a mover.Mover over RDMA.
type Mover struct {
	cfg         Config
	incarnation [16]byte
	conns       *conns.Set[*outgoing]
	counts      conns.Counts
	attempts    atomic.Uint64 // set-ups sent: the numbers of connections

	out, in     *block // staging memory
	outgo, inco *staging
}

var _ mover.Mover = (*Mover)(nil)

// New registers the staging memory and returns a mover that works until Close. An error
// that wraps ErrMemory says what is missing to lock it.
func New(cfg Config) (*Mover, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Mover{cfg: cfg}
	rand.Read(m.incarnation[:]) // crypto/rand ends the process if it cannot
	var err error
	if m.out, err = newBlock(cfg.Staging, cfg.Devices...); err != nil {
		return nil, err
	}
	if m.in, err = newBlock(cfg.Staging, cfg.Devices...); err != nil {
		return nil, errors.Join(err, m.out.close())
	}
	m.outgo, m.inco = newStaging(m.out.mem), newStaging(m.in.mem)
	m.conns = conns.New(conns.Config[*outgoing]{
		Options: cfg.Options, Name: "rdma", Known: cfg.Known, Dial: m.dial, MaxGuests: maxGuests, Counts: &m.counts,
	})
	return m, nil
}

// Stats implements mover.Mover.
func (m *Mover) Stats() mover.Stats { return m.counts.Stats() }

// Send implements mover.Mover.
func (m *Mover) Send(ctx context.Context, to kevlard.NodeID, lane mover.Lane, header []byte, body ...[]byte) error {
	size, err := mover.Size(header, body)
	if err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send to %s: %w", to, context.Cause(ctx))
	}
	if !m.conns.Enter() {
		return fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	}
	defer m.conns.Leave()
	for paid := false; ; {
		c, err := m.conns.Get(ctx, to, lane)
		if err != nil {
			return err
		}
		if !paid {
			if err := m.pace(ctx, len(header)+size); err != nil {
				return fmt.Errorf("send to %s: %w", to, err)
			}
			paid = true
		}
		err = c.send(ctx, header, body, size)
		if errors.Is(err, errIdle) {
			continue // it ended just now, with nothing of ours in it
		}
		if err == nil {
			m.counts.Sent.Add(1)
			m.counts.SentBytes.Add(uint64(len(header) + size))
		}
		return err
	}
}

// pace waits until n more bytes may leave this node.
func (m *Mover) pace(ctx context.Context, n int) error {
	wait := m.cfg.Pacer.Take(n)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.conns.Life().Done():
		return mover.ErrClosed
	}
}

// Probe makes the connections to a peer that there are not, and asks its card over each: one
// that was not used since the peer's link went down still looks whole.
func (m *Mover) Probe(ctx context.Context, to kevlard.NodeID) error {
	all, err := m.conns.GetAll(ctx, to)
	for _, c := range all {
		if err == nil {
			err = c.reach(ctx)
		}
	}
	return err
}

// Forget ends all connections to and from a peer, because it left or is no longer
// admitted. A later Send dials anew.
func (m *Mover) Forget(node kevlard.NodeID) { m.conns.Forget(node) }

// Close implements mover.Mover.
func (m *Mover) Close() error {
	return m.conns.Close(func() error { return nil }, func() error { return errors.Join(m.out.close(), m.in.close()) })
}
