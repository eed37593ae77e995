package stage

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// fetching is a prepare that waits for a copy from another node.
type fetching struct {
	msg     protocol.Prepare
	through kevlard.Pos     // what the source sends; -1 until it has said so
	until   kevlard.Instant // when to go on with what is there
	limit   kevlard.Instant // until is never later: the owner waits for the answer
}

// fetchWorth is how many positions a copy at another node must probably save to be
// asked for: fewer are computed as fast.
const fetchWorth = 32

// fetchMost is how much longer than Timing.Fetch a session that has shown nothing waits
// for a copy in all, however long: its owner waits no longer either.
const fetchMost = 500 * time.Millisecond

// What a copy from another node costs, as far as it is not known better: a slow network
// is a reason to compute, not to wait.
const (
	fetchFixed = 5 * time.Millisecond
	fetchByte  = 10 * time.Nanosecond // 100 MB/s
)

// fetchPays reports whether so many positions of a copy are there sooner than they are
// computed. Where a session is under way, the other stages would have to compute too.
func (m *Machine) fetchPays(positions int) bool {
	fetch := fetchFixed + time.Duration(positions*m.cellBytes)*fetchByte
	return fetch < time.Duration(positions)*m.pace.row
}

// askFor asks the source that the owner named for what this node lacks.
func (m *Machine) askFor(now kevlard.Instant, s *slot, p protocol.Prepare, out []Effect) (bool, []Effect) {
	if p.Source == "" || m.cfg.Copies == nil || m.cellBytes == 0 {
		return false, out
	}
	local := m.cfg.Copies.Pin(m.cfg.Key, m.class, p.Salt, p.Session, p.Tokens[:len(p.Tokens)-1], s.held)
	m.cfg.Copies.Unpin(local, local.N, false)
	reach := min(p.Mark, len(p.Tokens)-1)
	if gain := reach - local.N; gain < fetchWorth || !p.Recovery && !m.fetchPays(gain) {
		return false, out
	}
	// What comes is kept like any other copy; this node is its own standby.
	a := m.cfg.Copies.Offer(now, p.Source, protocol.Offer{
		Session: s.id, Fence: s.fence, Owner: s.owner, OwnerBoot: s.ownerBoot, Stage: m.cfg.Key, Class: m.class,
		CellBytes: m.cellBytes, Salt: s.salt, Tokens: p.Tokens, Positions: s.positions,
	})
	if a.Refusal != "" || reach-a.Through < fetchWorth {
		return false, out
	}
	extra := time.Duration(len(p.Tokens)) * transferPosition / 2
	if !p.Recovery {
		extra = min(extra, fetchMost) // there is time to compute it yet
	}
	limit := now.Add(m.cfg.Timing.Fetch + extra)
	s.fetch = &fetching{msg: p, through: -1, until: now.Add(m.cfg.Timing.Fetch), limit: limit}
	return true, append(out, Reply{p.Source, protocol.Fetch{
		Session: s.id, Fence: s.fence, Stage: m.cfg.Key, Class: m.class, Salt: s.salt, From: a.Through, Tokens: p.Tokens[:len(p.Tokens)-1], Try: a.Try,
	}})
}

// Fetched takes the source's word on how far its rows go. The owner is told when it
// has not what it was believed to have, or can't send it.
func (m *Machine) Fetched(now kevlard.Instant, from kevlard.NodeID, a protocol.Fetched, out []Effect) []Effect {
	s := m.slots[a.Session]
	if s == nil || s.fetch == nil || s.fence != a.Fence || s.fetch.msg.Source != from {
		return out
	}
	if a.Refusal == "" {
		s.fetch.through, s.fetch.until = a.Through, min(s.fetch.limit, now.Add(m.cfg.Timing.Fetch))
		return m.fetchedAll(now, s, out)
	}
	if s.fetch.through < 0 || a.Through < s.fetch.through {
		s.fetch.through = a.Through
	}
	lost := protocol.StandbyLost{Session: s.id, Fence: s.fence, Lo: m.cfg.Key.Layers.Lo, Standby: from}
	switch a.Refusal {
	case protocol.RefusedUnknown:
		lost.Cause = "no copy: " + a.Detail
		out = append(out, Reply{s.owner, lost})
	case protocol.RefusedLink:
		lost.Cause = "unreachable: " + a.Detail
		out = append(out, Reply{s.owner, lost})
	}
	return m.fetchedAll(now, s, out)
}

// Grown tells that more is stored of a session on this node.
func (m *Machine) Grown(now kevlard.Instant, id kevlard.SessionID, out []Effect) []Effect {
	s := m.slots[id]
	if s == nil || s.fetch == nil {
		return out
	}
	s.fetch.until = min(s.fetch.limit, now.Add(m.cfg.Timing.Fetch))
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

// SourceGone goes on with what is there where a node was to send the rest.
func (m *Machine) SourceGone(now kevlard.Instant, n kevlard.NodeID, out []Effect) []Effect {
	for _, s := range m.sorted() {
		if s.fetch != nil && s.fetch.msg.Source == n {
			out = m.endFetch(now, s, out)
		}
	}
	return out
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
