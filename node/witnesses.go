package node

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/topology"
)

// life is this node in its present life.
func (m *Machine) life() protocol.Life { return protocol.Life{Node: m.cfg.Self, Boot: m.cfg.Boot} }

// chooseWitnesses fills up the witnesses of a session: other nodes, in other zones
// first, spread by session. Fewer than two are of no use.
func (m *Machine) chooseWitnesses(s *session.Machine, keep []protocol.Life) []protocol.Life {
	zones := map[string]bool{}
	if n, ok := m.view.Node(m.cfg.Self); ok {
		zones[n.Zone] = true
	}
	var may []topology.Node
	for _, n := range m.view.Nodes {
		l := protocol.Life{Node: n.ID, Boot: n.Boot}
		switch {
		case slices.Contains(keep, l):
			zones[n.Zone] = true
		case n.ID != m.cfg.Self && m.mayWitness(n) && !s.UnfitWitness(l):
			may = append(may, n)
		}
	}
	slices.SortFunc(may, func(a, b topology.Node) int {
		return cmp.Or(cmp.Compare(rank(s.ID(), a.ID), rank(s.ID(), b.ID)), cmp.Compare(a.ID, b.ID))
	})
	out := slices.Clone(keep)
	for _, other := range []bool{true, false} {
		for _, n := range may {
			l := protocol.Life{Node: n.ID, Boot: n.Boot}
			if len(out) < protocol.MaxWitnesses && !slices.Contains(out, l) && (!other || !zones[n.Zone]) {
				out = append(out, l)
				zones[n.Zone] = true
			}
		}
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

func (m *Machine) mayWitness(n topology.Node) bool {
	return n.State != topology.Dead && n.State != topology.Left && n.State != topology.Draining && m.reach(n.ID) && m.peers[n.ID].boot == n.Boot
}

// rank spreads sessions over nodes.
func rank(id kevlard.SessionID, n kevlard.NodeID) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id))
	h.Write([]byte{0})
	h.Write([]byte(n))
	return h.Sum32()
}

// findWitnesses replaces the witnesses that are gone, and adds those that are missing.
func (m *Machine) findWitnesses(now kevlard.Instant, out []Effect) []Effect {
	gone := func(l protocol.Life) bool {
		n, ok := m.view.Node(l.Node)
		return !ok || n.State == topology.Dead || n.State == topology.Left || l.Node == m.cfg.Self ||
			m.peers[l.Node] == nil || m.peers[l.Node].up && m.peers[l.Node].boot != l.Boot
	}
	replace := func(s *session.Machine, e []session.Effect) []session.Effect {
		keep, misses := s.MissesWitness(gone)
		if !misses {
			return e
		}
		to := m.chooseWitnesses(s, keep)
		if len(to) <= len(keep) {
			return e
		}
		return s.ReplaceWitnesses(now, to, e)
	}
	for _, id := range m.sortedSessions() {
		out = m.withSession(now, id, out, replace)
	}
	for _, s := range m.resting.all() {
		if s.State() == session.Paused {
			for _, e := range replace(s, s.Remind(now, nil)) {
				out = m.fromSession(s, e, out)
			}
		}
	}
	return out
}

// schedule sees to it that the witnesses of a session hear of what it has generated.
func (m *Machine) schedule(now kevlard.Instant, s *session.Machine) {
	some, urgent := s.Unlogged()
	switch {
	case !some:
		return
	case urgent:
		m.logAt = now
	default:
		m.logAt = min(m.logAt, now.Add(m.cfg.Timing.Log))
	}
	m.unlogged[s.ID()] = true
}

// tellWitnesses sends them what was generated since the last time: one message to each
// node, whatever the number of sessions.
func (m *Machine) tellWitnesses(now kevlard.Instant, out []Effect) []Effect {
	if now < m.logAt {
		return out
	}
	m.logAt = kevlard.Never
	to := map[kevlard.NodeID][]protocol.LogEntry{}
	for _, id := range slices.Sorted(maps.Keys(m.unlogged)) {
		s := m.sessions[id]
		if s == nil {
			continue
		}
		for _, l := range s.Witnesses() {
			if e, ok := s.Unsaid(now, l); ok {
				to[l.Node] = append(to[l.Node], e)
			}
		}
		m.timers.set(id, s.Deadline())
	}
	clear(m.unlogged)
	for _, n := range slices.Sorted(maps.Keys(to)) {
		for entries := range slices.Chunk(to[n], maxLogEntries) {
			out = append(out, Send{n, protocol.Log{Entries: entries}})
		}
	}
	return out
}

// maxLogEntries keeps a log within a message: an entry has what was generated in one
// interval.
const maxLogEntries = 64

// aboutOwner handles what owners, witnesses and candidates say to each other.
func (m *Machine) aboutOwner(now kevlard.Instant, from protocol.Life, msg protocol.Message, out []Effect) []Effect {
	reply := func(msg protocol.Message) []Effect { return append(out, Send{from.Node, msg}) }
	switch msg := msg.(type) {
	case protocol.Record:
		return reply(protocol.Logged{Entries: []protocol.LoggedEntry{m.records.Take(now, from, msg)}})
	case protocol.Log:
		var l protocol.Logged
		for _, e := range msg.Entries {
			l.Entries = append(l.Entries, m.records.Append(now, from, e))
		}
		return reply(l)
	case protocol.Forget:
		m.records.Forget(now, from, msg)
		return out
	case protocol.Keep:
		if lost := m.records.Renew(now, from, msg.Sessions); len(lost) > 0 {
			return reply(protocol.Logged{Entries: lost})
		}
		return out
	case protocol.Logged:
		for _, e := range msg.Entries {
			out = m.logged(now, from, e, out)
		}
		return out
	case protocol.Vote:
		return reply(m.records.Promise(now, from, msg, func(l protocol.Life) bool { return m.hears(now, l) }))
	case protocol.Locate:
		return reply(m.locate(msg.Session))
	case protocol.Located:
		return m.located(now, from, msg, out)
	case protocol.Promise:
		return m.promised(now, from, msg, out)
	default:
		panic(fmt.Sprintf("node: message of unknown type %T", msg))
	}
}

// hears reports whether a node was heard of lately in a life of it.
func (m *Machine) hears(now kevlard.Instant, l protocol.Life) bool {
	if l == m.life() {
		return true
	}
	p := m.peers[l.Node]
	return p != nil && p.up && p.boot == l.Boot && now.Sub(p.heardAt) < max(m.cfg.Timing.Heard, p.silence(m.cfg.Timing))
}

// logged brings a witness's answer to the session.
func (m *Machine) logged(now kevlard.Instant, from protocol.Life, e protocol.LoggedEntry, out []Effect) []Effect {
	if m.sessions[e.Session] != nil {
		return m.withSession(now, e.Session, out, func(s *session.Machine, f []session.Effect) []session.Effect {
			return s.Logged(now, from, e, f)
		})
	}
	s := m.resting.get(e.Session)
	if s == nil {
		return out
	}
	for _, f := range s.Logged(now, from, e, nil) {
		out = m.fromSession(s, f, out)
	}
	if s.Superseded() {
		m.resting.take(e.Session)
	}
	return out
}

// keepRecords tells the witnesses of all sessions that their owner lives.
func (m *Machine) keepRecords(out []Effect) []Effect {
	at := map[kevlard.NodeID][]kevlard.SessionID{}
	keep := func(s *session.Machine) {
		for _, l := range s.Witnesses() {
			at[l.Node] = append(at[l.Node], s.ID())
		}
	}
	for _, id := range m.sortedSessions() {
		keep(m.sessions[id])
	}
	for _, s := range m.resting.all() {
		if s.State() == session.Paused {
			keep(s)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(at)) {
		for ids := range slices.Chunk(at[n], protocol.MaxRenew) {
			out = append(out, Send{n, protocol.Keep{Sessions: ids}})
		}
	}
	return out
}

// tellOldOwner tells a node that is back which of its sessions were taken over.
func (m *Machine) tellOldOwner(l protocol.Life, out []Effect) []Effect {
	var e []protocol.LoggedEntry
	tell := func(s *session.Machine) {
		if s.Before() == l && len(e) < protocol.MaxRenew {
			epoch := s.Fence().Epoch
			e = append(e, protocol.LoggedEntry{Session: s.ID(), Epoch: epoch - 1, Newer: epoch, Refusal: protocol.WitnessPromised})
		}
	}
	for _, id := range m.sortedSessions() {
		tell(m.sessions[id])
	}
	for _, s := range m.resting.all() {
		tell(s)
	}
	if len(e) == 0 {
		return out
	}
	return append(out, Send{l.Node, protocol.Logged{Entries: e}})
}

// locate says what this node knows of a session, as its owner or as a witness.
func (m *Machine) locate(id kevlard.SessionID) protocol.Located {
	l := m.records.Locate(id)
	s := m.sessions[id]
	if s == nil {
		s = m.resting.get(id)
	}
	if s != nil && s.Resumable() && s.Fence().Epoch >= l.Epoch {
		l.Owned, l.Epoch = true, s.Fence().Epoch
	}
	return l
}
