package stage

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// Prepare fences older terms of the session, reserves its room and answers how
// many of its leading positions are held. link says that the next stage's node
// is connected; draining refuses sessions that are new here.
func (m *Machine) Prepare(now kevlard.Instant, from kevlard.NodeID, p protocol.Prepare, link, draining bool, out []Effect) []Effect {
	refusal := func(why protocol.Refusal, epoch uint64, detail string) []Effect {
		m.counters.Refused++
		return append(out, Reply{from, protocol.Prepared{Session: p.Session, Fence: p.Fence, Lo: m.cfg.Key.Layers.Lo, Refusal: why, Detail: detail, Epoch: epoch}})
	}
	refuse := func(why protocol.Refusal, detail string) []Effect { return refusal(why, 0, detail) }
	s := m.slots[p.Session]
	if s != nil {
		order := p.Fence.Compare(s.fence)
		if order < 0 || p.Fence.Epoch == s.fence.Epoch && p.OwnerBoot != s.ownerBoot {
			m.counters.Fenced++
			return refusal(protocol.RefusedStale, s.fence.Epoch, fmt.Sprintf("at fence %v of owner %s", s.fence, s.owner))
		}
		if order == 0 && s.parked == nil && s.unanswered() {
			return out // asked again: answered when the copy is there
		}
		if order == 0 && s.parked == nil && (s.started || p.Await <= s.awaited) {
			return append(out, Reply{from, m.prepared(s)}) // asked again: same answer
		}
	} else if m.tombs.covers(p.Session, p.Fence) {
		m.counters.Fenced++
		return refusal(protocol.RefusedStale, m.tombs.fences[p.Session].Epoch, "the session is closed")
	}
	switch {
	case m.released:
		return refuse(protocol.RefusedNoStage, fmt.Sprintf("stage %v is being given up", m.cfg.Key.Layers))
	case m.state != topology.Ready:
		return refuse(protocol.RefusedNoStage, fmt.Sprintf("stage %v is %s", m.cfg.Key.Layers, m.state))
	case p.Last != m.cfg.Last:
		return refuse(protocol.RefusedNoStage, fmt.Sprintf("stage %v: last is %v here", m.cfg.Key.Layers, m.cfg.Last))
	case draining && s == nil:
		return refuse(protocol.RefusedDraining, "the node is draining")
	case !link:
		return refuse(protocol.RefusedLink, fmt.Sprintf("no connection to %s", p.Next))
	}
	if w := m.warm[p.Session]; s == nil && w != nil && w.busy() {
		if w.parked == nil || p.Fence.Compare(w.parked.msg.Fence) >= 0 {
			w.parked = &parkedPrepare{from, p, link}
		}
		return out
	}
	if s != nil && s.busy() {
		if s.parked == nil || p.Fence.Compare(s.parked.msg.Fence) >= 0 {
			s.parked = &parkedPrepare{from, p, link}
		}
		return out // answered when its cells are at rest
	}
	if s == nil {
		if len(m.slots) >= m.cfg.Limits.Sessions {
			return refuse(protocol.RefusedCapacity, fmt.Sprintf("%d sessions, the most that are held", len(m.slots)))
		}
		if s = m.adopt(p.Session); s == nil {
			s = &slot{id: p.Session}
		}
	} else {
		m.counters.Fenced += uint64(m.unqueue(s))
	}
	if s.cells.n < p.Positions {
		m.cells.release(s.cells)
		// Growing loses what was held: the cells may be granted to another.
		s.cells, s.held, s.tokens = span{}, 0, nil
		grant, ok := m.cells.grant(p.Positions)
		for !ok && m.coolOne() {
			grant, ok = m.cells.grant(p.Positions)
		}
		if !ok {
			delete(m.slots, s.id)
			return refuse(protocol.RefusedCapacity, fmt.Sprintf("%d positions wanted, %d free of %d, at most %d in a row", p.Positions, m.cells.available(), m.cells.total, m.cells.largest()))
		}
		s.cells = grant
	}
	m.slots[p.Session] = s
	s.fence, s.owner, s.ownerBoot, s.next = p.Fence, from, p.OwnerBoot, p.Next
	s.sampling, s.solo, s.recovery, s.credit = p.Sampling, p.Solo, p.Recovery, p.Credit
	s.started, s.decoding, s.lease = false, false, now.Add(m.cfg.Timing.Lease)
	if s.salt != p.Salt { // what is kept of the session from now on must not be what was found under another
		s.held, s.tokens = 0, nil
	}
	s.positions, s.salt, s.known = p.Positions, p.Salt, p.Tokens
	// KV is held under its tokens, never by position alone.
	s.held = commonPrefix(s.tokens[:s.held], p.Tokens)
	s.tokens = s.tokens[:s.held:s.held]
	m.unwait(s)
	s.unkeep()
	m.prepares++
	s.fetch, s.wanted, s.order, s.awaited = nil, 0, m.prepares, p.Await
	if m.awaits(now, s, p, m.outlook()) {
		return m.schedule(now, m.urge(now, out))
	}
	return m.resume(now, s, p, out)
}

// resume goes on with a prepare that waits for no other session.
func (m *Machine) resume(now kevlard.Instant, s *slot, p protocol.Prepare, out []Effect) []Effect {
	if fetches, out := m.askFor(now, s, p, out); fetches {
		return m.schedule(now, out)
	}
	return m.schedule(now, m.fill(now, s, p, out))
}

// answer ends a prepare.
func (m *Machine) answer(now kevlard.Instant, s *slot, p protocol.Prepare, out []Effect) []Effect {
	if p.Source != "" && !p.Recovery { // a prefix that came from elsewhere stays as one that may be evicted
		m.cfg.Copies.Release(m.cfg.Key, s.id)
	}
	return m.assign(now, s, p.Standby, append(out, Reply{s.owner, m.prepared(s)}))
}

func (m *Machine) prepared(s *slot) protocol.Prepared {
	return protocol.Prepared{Session: s.id, Fence: s.fence, Lo: m.cfg.Key.Layers.Lo, Have: s.held}
}

func commonPrefix(a, b []kevlard.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Item takes one piece of work. from is its sender, which relays a refusal to
// the owner when this stage does not know it.
func (m *Machine) Item(now kevlard.Instant, from kevlard.NodeID, it protocol.Item, out []Effect) []Effect {
	s := m.slots[it.Session]
	if s == nil {
		if m.tombs.covers(it.Session, it.Fence) {
			m.counters.Fenced++
			return out
		}
		return m.refuse(from, it, protocol.RefusedUnknown, out)
	}
	newest := s.fence
	if s.parked != nil {
		newest = s.parked.msg.Fence
	}
	switch order := it.Fence.Compare(newest); {
	case order < 0:
		m.counters.Fenced++
		return out
	case order > 0:
		return m.refuse(from, it, protocol.RefusedUnknown, out)
	case s.unanswered(): // of a prepare that was never answered
		return m.refuse(s.owner, it, protocol.RefusedUnknown, out)
	}
	if why := m.accepts(s, it); why != "" {
		return m.refuse(s.owner, it, why, out)
	}
	if it.Start {
		s.started, s.held, s.advanced, s.gap = true, it.Pos, now, 0
		s.unkeep()
		s.tokens = s.tokens[:it.Pos:it.Pos]
		s.standby.Computed(now, s.held)
		out = m.awake(now, out)
	}
	// A prefill may end in a chunk of one token that looks like a decode; it must
	// not overtake the chunks before it.
	decode := it.Sample && len(it.Tokens) == 1 && s.queued == 0
	s.tokens = append(s.tokens, it.Tokens...)
	s.queued += len(it.Tokens)
	s.lease = now.Add(m.cfg.Timing.Lease)
	if s.recovery || decode {
		m.fast = append(m.fast, work{s, it})
	} else {
		m.slow = append(m.slow, work{s, it})
	}
	return m.schedule(now, out)
}

// accepts returns why an item at the session's own fence cannot be taken.
func (m *Machine) accepts(s *slot, it protocol.Item) protocol.Refusal {
	switch {
	case it.Start && (s.started || it.Pos > s.held):
		return protocol.RefusedGap
	case !it.Start && (!s.started || it.Pos != len(s.tokens)):
		return protocol.RefusedGap
	case it.End() > s.cells.n:
		return protocol.RefusedGap
	case m.cfg.Key.Layers.Lo > 0 && (it.Width != m.cfg.Width || len(it.Rows) != it.Width*len(it.Tokens)):
		return protocol.RefusedGap
	case s.queued+len(it.Tokens) > s.credit:
		return protocol.RefusedCredit
	}
	return ""
}

func (m *Machine) refuse(to kevlard.NodeID, it protocol.Item, why protocol.Refusal, out []Effect) []Effect {
	m.counters.Refused++
	return append(out, Reply{to, protocol.Refused{Session: it.Session, Fence: it.Fence, Lo: m.cfg.Key.Layers.Lo, Pos: it.Pos, Reason: why}})
}
