package stage

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// awaiting is a prepare that waits until what another session here computes, or has
// computed, is in the block memory: sessions that begin alike compute it once.
type awaiting struct {
	msg   protocol.Prepare
	since kevlard.Instant
	done  kevlard.Pos     // what the other had computed when looked at last
	moved kevlard.Instant // when that last grew
	until kevlard.Instant
}

const (
	// awaitWorth is how many positions that are still being computed are worth waiting
	// for.
	awaitWorth = 32
	// awaitStart is how long a session waits for one with a greater id to start: two
	// that wait for each other at two stages must not do so for long.
	awaitStart = 50 * time.Millisecond
	// awaitPause is how long nobody waits for other sessions after there was no room for
	// what one of them computed.
	awaitPause = time.Second
	// awaitPosition is how much longer in all a prepare may wait for each of its tokens
	// while the other session makes progress, at most awaitMost; an owner's patience has
	// as much more.
	awaitPosition = 2 * time.Millisecond
	awaitMost     = time.Second
	// awaitTime is Timing.Await's default: less than an owner's patience with a prepare.
	awaitTime = 400 * time.Millisecond
)

// donor finds the session here that has the most of a session's tokens beyond what is
// in the block memory, or will have them soon. n is how much that is, done how much of
// it is computed.
func (m *Machine) donor(s *slot, p protocol.Prepare) (best *slot, n, done int) {
	tokens := p.Tokens[:len(p.Tokens)-1]
	n = max(s.held, m.cfg.Copies.Held(m.cfg.Key, m.class, p.Salt, tokens))
	stored := n
	consider := func(d *slot) {
		if d == s || d.salt != p.Salt || d.unanswered() {
			return
		}
		now := 0
		if d.started || d.closed {
			now = commonPrefix(d.tokens[:min(d.held, len(d.tokens))], tokens)
		}
		k := now
		if soon := commonPrefix(d.soon(), tokens); !d.closed && soon >= max(now, stored)+awaitWorth {
			k = soon
		}
		if k > n {
			best, n, done = d, k, now
		}
	}
	for _, d := range m.sorted() {
		consider(d)
	}
	for _, d := range m.leaving {
		consider(d)
	}
	return best, n, done
}

// awaits makes a prepare wait if another session has more than the block memory.
func (m *Machine) awaits(now kevlard.Instant, s *slot, p protocol.Prepare) bool {
	if !m.keeps() || p.Recovery || p.Solo || now < m.fullTill {
		return false
	}
	d, n, done := m.donor(s, p)
	if d == nil {
		return false
	}
	if !d.closed {
		d.wanted = max(d.wanted, min(n, done))
	}
	if s.await == nil {
		s.await = &awaiting{msg: p, since: now, moved: now}
	}
	a := s.await
	if done > a.done {
		a.done, a.moved = done, now
	}
	if !d.started && d.id > s.id {
		a.until = a.since.Add(min(m.cfg.Timing.Await, awaitStart))
		return now < a.until
	}
	most := m.cfg.Timing.Await + min(awaitMost, time.Duration(len(p.Tokens))*awaitPosition)
	a.until = min(a.moved.Add(m.cfg.Timing.Await), a.since.Add(most))
	return now < a.until
}

// urge keeps what others wait for.
func (m *Machine) urge(now kevlard.Instant, out []Effect) []Effect {
	for _, d := range m.sorted() {
		if d.wanted > 0 {
			out = m.keep(now, d, out)
		}
	}
	return out
}

// awake looks again at the prepares that wait for other sessions.
func (m *Machine) awake(now kevlard.Instant, out []Effect) []Effect {
	waiting := false
	for _, s := range m.slots {
		waiting = waiting || s.await != nil
	}
	if !waiting {
		return out
	}
	for _, s := range m.sorted() {
		if s.await != nil && m.slots[s.id] == s && !m.awaits(now, s, s.await.msg) {
			out = m.endAwait(now, s, out)
		}
	}
	return m.urge(now, out)
}

// Kept tells that rows of this stage are in the block memory now, or that there was no
// room for them.
func (m *Machine) Kept(now kevlard.Instant, stored bool, out []Effect) []Effect {
	if !stored {
		m.fullTill = now.Add(awaitPause)
	}
	return m.awake(now, out)
}

// overdueAwait goes on with what is there.
func (m *Machine) overdueAwait(now kevlard.Instant, s *slot, out []Effect) []Effect {
	if s.await == nil || now < s.await.until || m.slots[s.id] != s {
		return out
	}
	return m.endAwait(now, s, out)
}

func (m *Machine) endAwait(now kevlard.Instant, s *slot, out []Effect) []Effect {
	p := s.await.msg
	s.await = nil
	return m.resume(now, s, p, out)
}
