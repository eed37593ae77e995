package prefer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Choice is one of the two movers.
type Choice struct {
	Name  string // for people and metrics
	Mover mover.Mover
}

// Config is what a Mover is made of.
type Config struct {
	Better, Other Choice
	// Insist forbids the other mover, which may then be the zero Choice.
	Insist bool
	// Probe finds out whether the better mover reaches a peer. It takes as long as ctx lets it.
	Probe func(ctx context.Context, to kevlard.NodeID) error
	// Handler is told of changes by Lost. It is the one behind the Gate of both movers, or
	// the Gate.
	Handler mover.Handler
	// Changed is told when a peer's mover changes, and when its first probe has failed. It
	// must not block.
	Changed func(Change)
}

// Change is a new state of a peer.
type Change struct {
	Peer  kevlard.NodeID
	Using string // name of the mover; "" while there is none
	Why   error  // why it is not the better one; nil if it is
}

// Mover is both movers. It owns them: Close closes them.
type Mover struct {
	cfg  Config
	life uint64
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // probes

	mu     sync.Mutex
	closed bool
	peers  map[kevlard.NodeID]*peer
}

var _ mover.Mover = (*Mover)(nil)

// peer is what is known of one; Mover.mu guards it.
type peer struct {
	better     bool
	generation uint64
	why        error // of the last probe or failure; nil: not yet known
	told       bool  // Changed knows why
	probing    bool
	wait       time.Duration // before the first probe
	since      time.Time     // the better mover is used
	used       time.Time
}

// New returns the mover.
func New(cfg Config) *Mover {
	var life [8]byte
	rand.Read(life[:]) // crypto/rand ends the process if it cannot
	m := &Mover{cfg: cfg, life: binary.BigEndian.Uint64(life[:]) | 1, peers: map[kevlard.NodeID]*peer{}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// errNotYet is why the better mover is not used before the first probe has ended.
var errNotYet = errors.New("it is being tried")

// Send implements mover.Mover.
func (m *Mover) Send(ctx context.Context, to kevlard.NodeID, lane mover.Lane, header []byte, body ...[]byte) error {
	if len(header) > MaxHeader {
		return fmt.Errorf("send to %s: %w: header of %d bytes: want at most %d", to, mover.ErrTooLarge, len(header), MaxHeader)
	}
	for {
		choice, t, err := m.choose(to)
		if err != nil {
			return err
		}
		tagged := t.append(make([]byte, 0, tagBytes+len(header)))
		err = choice.Mover.Send(ctx, to, lane, append(tagged, header...), body...)
		if err == nil || choice.Name != m.cfg.Better.Name {
			return err
		}
		unreachable := errors.Is(err, mover.ErrUnreachable)
		if !unreachable && !errors.Is(err, mover.ErrBroken) {
			return err
		}
		m.failed(to, t.generation, err)
		if !unreachable || m.cfg.Insist {
			return err // with a broken connection the piece may have arrived
		}
	}
}

// choose returns the mover of a peer, and the tag of what goes there.
func (m *Mover) choose(to kevlard.NodeID) (Choice, tag, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Choice{}, tag{}, fmt.Errorf("send to %s: %w", to, mover.ErrClosed)
	}
	p := m.peerLocked(to)
	p.used = time.Now()
	t := tag{m.life, p.generation}
	switch {
	case p.better:
		return m.cfg.Better, t, nil
	case m.cfg.Insist:
		return Choice{}, t, fmt.Errorf("send to %s: %w over %s: %w", to, mover.ErrUnreachable, m.cfg.Better.Name, p.because())
	}
	return m.cfg.Other, t, nil
}

func (p *peer) because() error {
	if p.why != nil {
		return p.why
	}
	return errNotYet
}

// peerLocked returns a peer, which is being probed unless the better mover reaches it.
func (m *Mover) peerLocked(to kevlard.NodeID) *peer {
	p, ok := m.peers[to]
	if !ok {
		if len(m.peers) >= maxPeers {
			for n, old := range m.peers {
				if !old.probing {
					delete(m.peers, n)
				}
			}
		}
		// Generations never go back, also for a peer that was forgotten.
		p = &peer{generation: uint64(time.Now().UnixNano())}
		m.peers[to] = p
	}
	if !p.better && !p.probing {
		p.probing = true
		wait := p.wait
		m.work.Go(func() { m.probe(to, p, wait) })
	}
	return p
}

// failed ends the use of the better mover for a peer, unless that has changed since.
func (m *Mover) failed(to kevlard.NodeID, generation uint64, err error) {
	m.mu.Lock()
	p := m.peers[to]
	if p == nil || !p.better || p.generation != generation || m.closed {
		m.mu.Unlock()
		return
	}
	p.better, p.why, p.told = false, err, true
	p.generation++
	// Probes may get through where pieces do not, such as larger packets.
	p.wait = longer(p.wait)
	if time.Since(p.since) >= steadyTime {
		p.wait = 0
	}
	m.peerLocked(to)
	m.mu.Unlock()
	m.changed(to, err)
}

// changed tells of a peer's mover.
func (m *Mover) changed(to kevlard.NodeID, why error) {
	c := Change{Peer: to, Using: m.cfg.Other.Name, Why: why}
	switch {
	case why == nil:
		c.Using = m.cfg.Better.Name
	case m.cfg.Insist:
		c.Using = ""
	}
	m.cfg.Changed(c)
}

// longer is the wait after a wait.
func longer(wait time.Duration) time.Duration { return min(max(2*wait, minWait), maxWait) }

// probe tries a peer until the better mover reaches it, or nobody sends to it any more.
func (m *Mover) probe(to kevlard.NodeID, p *peer, wait time.Duration) {
	for ; ; wait = longer(wait) {
		timer := time.NewTimer(wait)
		select {
		case <-m.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		ctx, cancel := context.WithTimeout(m.ctx, probeTime)
		err := m.cfg.Probe(ctx, to)
		cancel()
		if m.probed(to, p, err) {
			return
		}
	}
}

// probed notes the end of a probe, and reports whether it was the last.
func (m *Mover) probed(to kevlard.NodeID, p *peer, err error) bool {
	m.mu.Lock()
	if m.closed || m.peers[to] != p {
		m.mu.Unlock()
		return true
	}
	p.why = err
	if err != nil {
		p.probing = time.Since(p.used) < unusedTime
		last, tell := !p.probing, !p.told
		p.told = true
		m.mu.Unlock()
		if tell {
			m.changed(to, err)
		}
		return last
	}
	p.better, p.probing, p.since = true, false, time.Now()
	p.generation++
	m.mu.Unlock()
	if !m.cfg.Insist {
		m.cfg.Handler.Lost(to, fmt.Errorf("what was under way over %s is dropped if it comes after what goes over %s", m.cfg.Other.Name, m.cfg.Better.Name))
	}
	m.changed(to, nil)
	return true
}

// Using returns the name of a peer's mover, and why it is not the better one.
func (m *Mover) Using(to kevlard.NodeID) (name string, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.peers[to]
	switch {
	case ok && p.better:
		return m.cfg.Better.Name, nil
	case !ok:
		return "", nil
	case m.cfg.Insist:
		return "", p.because()
	}
	return m.cfg.Other.Name, p.because()
}

// Forget drops what is known of a peer. The movers are told by themselves.
func (m *Mover) Forget(to kevlard.NodeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.peers, to)
}

// Lost is to be told when a connection of the better mover broke: what is sent next need
// not find out by itself.
func (m *Mover) Lost(to kevlard.NodeID, err error) {
	m.mu.Lock()
	p := m.peers[to]
	var generation uint64
	if p != nil {
		generation = p.generation
	}
	m.mu.Unlock()
	if p != nil {
		m.failed(to, generation, err)
	}
}

// Stats implements mover.Mover: the sums of both.
func (m *Mover) Stats() mover.Stats {
	s := m.cfg.Better.Mover.Stats()
	if m.cfg.Other.Mover == nil {
		return s
	}
	o := m.cfg.Other.Mover.Stats()
	return mover.Stats{
		Sent: s.Sent + o.Sent, SentBytes: s.SentBytes + o.SentBytes,
		Received: s.Received + o.Received, ReceivedBytes: s.ReceivedBytes + o.ReceivedBytes,
		Refused: s.Refused + o.Refused, Aborted: s.Aborted + o.Aborted, Corrupt: s.Corrupt + o.Corrupt,
		Dials: s.Dials + o.Dials, Broken: s.Broken + o.Broken,
	}
}

// Close implements mover.Mover.
func (m *Mover) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	err := m.cfg.Better.Mover.Close()
	if m.cfg.Other.Mover != nil {
		err = errors.Join(err, m.cfg.Other.Mover.Close())
	}
	m.work.Wait()
	return err
}
