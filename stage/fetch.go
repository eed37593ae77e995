package stage

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// fetching is a prepare that waits for a copy from another node.
type fetching struct {
	msg     protocol.Prepare
	through kevlard.Pos     // what the source sends; -1 until it has said so
	until   kevlard.Instant // when to go on with what is there
}

// fetchWorth is how many positions a copy at another node must probably save to be
// asked for: fewer are computed as fast.
const fetchWorth = 32

// askFor asks the source that the owner named for what this node lacks.
func (m *Machine) askFor(now kevlard.Instant, s *slot, p protocol.Prepare, out []Effect) (bool, []Effect) {
	if p.Source == "" || m.cfg.Copies == nil || m.cellBytes == 0 {
		return false, out
	}
	have := s.held
	if c, ok := m.cfg.Copies.Copy(m.cfg.Key, s.id); ok {
		have = max(have, commonPrefix(c.Tokens, p.Tokens))
	}
	if len(p.Tokens)-have < fetchWorth {
		return false, out
	}
	// What comes is kept like any other copy; this node is its own standby.
	a := m.cfg.Copies.Offer(now, p.Source, protocol.Offer{
		Session: s.id, Fence: s.fence, Owner: s.owner, OwnerBoot: s.ownerBoot, Stage: m.cfg.Key, Class: m.class,
		CellBytes: m.cellBytes, Salt: s.salt, Tokens: p.Tokens, Positions: s.positions,
	})
	if a.Refusal != "" {
		return false, out
	}
	s.fetch = &fetching{msg: p, through: -1, until: now.Add(m.cfg.Timing.Fetch)}
	return true, append(out, Reply{p.Source, protocol.Fetch{
		Session: s.id, Fence: s.fence, Stage: m.cfg.Key, Class: m.class, Salt: s.salt, From: a.Through, Tokens: p.Tokens[:len(p.Tokens)-1], Try: a.Try,
	}})
}

// Fetched takes the source's word on how far its rows go.
func (m *Machine) Fetched(now kevlard.Instant, from kevlard.NodeID, a protocol.Fetched, out []Effect) []Effect {
	s := m.slots[a.Session]
	if s == nil || s.fetch == nil || s.fence != a.Fence || s.fetch.msg.Source != from {
		return out
	}
	s.fetch.through, s.fetch.until = a.Through, now.Add(m.cfg.Timing.Fetch)
	return m.fetchedAll(now, s, out)
}

// Grown tells that more is stored of a session on this node.
func (m *Machine) Grown(now kevlard.Instant, id kevlard.SessionID, out []Effect) []Effect {
	s := m.slots[id]
	if s == nil || s.fetch == nil {
		return out
	}
	s.fetch.until = now.Add(m.cfg.Timing.Fetch)
	return m.fetchedAll(now, s, out)
}

// fetchedAll goes on when all that the source has is here.
func (m *Machine) fetchedAll(now kevlard.Instant, s *slot, out []Effect) []Effect {
	c, ok := m.cfg.Copies.Copy(m.cfg.Key, s.id)
	if f := s.fetch; ok && (f.through < 0 || len(c.Tokens) < f.through) {
		return out
	}
	return m.endFetch(now, s, out)
}

// overdueFetch goes on with what is there when the source is too slow.
func (m *Machine) overdueFetch(now kevlard.Instant, s *slot, out []Effect) []Effect {
	if s.fetch == nil || now < s.fetch.until || m.slots[s.id] != s {
		return out
	}
	return m.endFetch(now, s, out)
}

func (m *Machine) endFetch(now kevlard.Instant, s *slot, out []Effect) []Effect {
	p := s.fetch.msg
	s.fetch = nil
	return m.schedule(now, m.fill(now, s, p, out))
}
