package node

import (
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// peer is what this node knows of another from its own links, which is faster
// and narrower than what the ring says.
type peer struct {
	node    kevlard.NodeID
	boot    kevlard.BootID
	up      bool
	silent  bool // on a route, connected, and not heard for too long
	watched bool // on a route of a session owned here
	heardAt kevlard.Instant
	load    int  // sessions held there, as it said last
	free    int  // KV positions free there, as it said last less what was sent since
	told    bool // free is known

	pingSeq  uint64
	pingSent [maxPings]kevlard.Instant // by sequence number modulo maxPings
	pingNext kevlard.Instant
	rtt, dev time.Duration // smoothed round trip and mean deviation (RFC 6298)
}

// maxPings is how many pings may be under way and still be measured: on a link
// whose round trip exceeds the interval, several are.
const maxPings = 32

// silence is how long the peer may be quiet.
func (p *peer) silence(t Timing) time.Duration { return max(t.Silence, 8*(p.rtt+4*p.dev)) }

// unmeasure forgets the pings under way: their answers would count the time that
// one side was away as the link's.
func (p *peer) unmeasure() { p.pingSeq += maxPings }

// silentAt is when the peer counts as silent if nothing is heard.
func (p *peer) silentAt(t Timing) kevlard.Instant {
	if !p.up || !p.watched || p.silent {
		return kevlard.Never
	}
	return p.heardAt.Add(p.silence(t))
}

// reach reports whether work can be sent to a node now.
func (m *Machine) reach(n kevlard.NodeID) bool {
	if n == m.cfg.Self {
		return true
	}
	p := m.peers[n]
	return p != nil && p.up && !p.silent
}

func (m *Machine) peerUp(now kevlard.Instant, ev PeerUp, out []Effect) []Effect {
	p := m.peers[ev.Node]
	if p == nil {
		p = &peer{node: ev.Node}
		m.peers[ev.Node] = p
		m.names = m.names[:0]
	}
	if p.up && p.boot != ev.Boot { // the old life ended unseen
		out = m.peerDown(now, ev.Node, "reset", out)
	}
	if p.boot != ev.Boot { // what it is blamed for, another life did
		for _, s := range m.sessions {
			s.Pardon(ev.Node)
		}
	}
	*p = peer{node: ev.Node, boot: ev.Boot, up: true, heardAt: now, load: p.load, watched: p.watched, pingNext: now}
	for i, s := range m.stages {
		out = m.fromStage(now, i, s.OwnerGone(now, ev.Node, ev.Boot, false, nil), out)
	}
	m.copies.OwnerGone(ev.Node, ev.Boot, false)
	m.pingAt, m.rewatch = now, true
	out = m.tellOldOwner(protocol.Life{Node: ev.Node, Boot: ev.Boot}, out)
	return m.hurryStandbys(now, m.hurry(now, m.compare(out)))
}

func (m *Machine) peerDown(now kevlard.Instant, n kevlard.NodeID, cause string, out []Effect) []Effect {
	if p := m.peers[n]; p != nil {
		if p.up && cause == "reset" { // the last word of its host
			p.heardAt = now
		}
		p.up, p.silent = false, false
	}
	out = m.evidence(now, n, cause, out)
	out = m.ownerGone(n, out)
	out = m.followersGone(now, func(f *follower) bool { return f.node == n }, out)
	out = m.standbyGone(now, n, out)
	return m.nextGone(now, n, out)
}

// nextGone warns the owners of sessions whose work goes on to a node that this
// one can no longer reach.
func (m *Machine) nextGone(now kevlard.Instant, n kevlard.NodeID, out []Effect) []Effect {
	for i, s := range m.stages {
		hints := slices.DeleteFunc(s.NextGone(n, nil), func(e stage.Effect) bool {
			r, ok := e.(stage.Reply)
			return ok && !m.connected(r.To) // it knows, or its own evidence comes first
		})
		out = m.fromStage(now, i, hints, out)
	}
	return out
}

// connected reports whether a message to n can be queued.
func (m *Machine) connected(n kevlard.NodeID) bool {
	return n == m.cfg.Self || m.peers[n] != nil && m.peers[n].up
}

// evidence tells every session that runs through a node what was seen.
func (m *Machine) evidence(now kevlard.Instant, n kevlard.NodeID, cause string, out []Effect) []Effect {
	for _, id := range m.sortedSessions() {
		if !m.sessions[id].Route().Uses(n) {
			continue
		}
		out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Evidence(now, n, cause, e)
		})
	}
	return out
}

// sendFailed acts on what could not even be queued. A full queue is nobody's
// death: the session concerned tries again after a pause.
func (m *Machine) sendFailed(now kevlard.Instant, ev SendFailed, out []Effect) []Effect {
	switch ev.Cause {
	case SendFull, SendOversize:
		return m.withSession(now, ev.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Unsent(now, ev.Cause == SendOversize, e)
		})
	default:
		return m.standbyGone(now, ev.Node, m.evidence(now, ev.Node, "reset", out))
	}
}

// tellAll pings every peer at once: they hold this node's room to be what it was
// while its engine loaded, and would send nobody here until the next idle ping.
func (m *Machine) tellAll(now kevlard.Instant) {
	for _, p := range m.peers {
		p.pingNext = now
	}
	m.pingAt = now
}

// heard notes a sign of life.
func (m *Machine) heard(now kevlard.Instant, n kevlard.NodeID, out []Effect) []Effect {
	p := m.peers[n]
	if p == nil {
		return out
	}
	p.heardAt = now
	if !p.silent {
		return out
	}
	p.silent = false
	p.unmeasure()
	for _, s := range m.sessions {
		s.Heard(n)
	}
	return m.hurry(now, out)
}

// links pings peers, finds the silent ones and renews leases.
func (m *Machine) links(now kevlard.Instant, out []Effect) []Effect {
	m.watch(now)
	out = m.findSilent(now, out)
	if now >= m.pingAt {
		out = m.pings(now, out)
	}
	if now >= m.renewAt {
		out = m.findWitnesses(now, m.hurryStandbys(now, m.keepFollowing(now, m.keepRecords(m.renew(out)))))
		m.renewAt = now.Add(m.cfg.Timing.Renew)
	}
	return out
}

// watch marks the peers that sessions owned here run through. A peer that
// becomes watched starts with a clean slate.
func (m *Machine) watch(now kevlard.Instant) {
	on := m.inUse()
	if !m.rewatch {
		return
	}
	m.rewatch = false
	owners := map[kevlard.NodeID]bool{}
	for _, f := range m.following {
		owners[f.owner] = true
	}
	m.watched = m.watched[:0]
	for n, p := range m.peers {
		if (on[n] > 0 || owners[n]) && !p.watched {
			p.heardAt = max(p.heardAt, now)
			p.pingNext = now
			m.pingAt = min(m.pingAt, now)
		}
		if p.watched = on[n] > 0 || owners[n]; p.watched {
			m.watched = append(m.watched, p)
		}
	}
}

// inUse counts the owned sessions that run through each node.
func (m *Machine) inUse() map[kevlard.NodeID]int {
	if m.rerouted {
		m.rerouted = false
		m.used, m.usedBefore = m.usedBefore, m.used
		clear(m.used)
		for _, s := range m.sessions {
			for i, h := range s.Route() {
				if !s.Route()[:i].Uses(h.Node) {
					m.used[h.Node]++
				}
			}
		}
		for n := range m.used {
			if m.used[n] != m.usedBefore[n] {
				m.reload(n)
			}
		}
		for n := range m.usedBefore {
			if m.used[n] == 0 {
				m.reload(n)
			}
		}
		m.rewatch = true
	}
	return m.used
}

func (m *Machine) findSilent(now kevlard.Instant, out []Effect) []Effect {
	var quiet []kevlard.NodeID
	watched := 0
	for _, p := range m.watched {
		if p.up && p.watched && !p.silent {
			watched++
			if now >= p.silentAt(m.cfg.Timing) {
				quiet = append(quiet, p.node)
			}
		}
	}
	if len(quiet) == 0 {
		return out
	}
	slices.Sort(quiet)                          // effects must not depend on map order
	if watched >= 3 && len(quiet)*2 > watched { // more likely this node's own trouble
		m.counters.SelfDoubt++
		for _, n := range quiet {
			m.peers[n].heardAt = now
		}
		return append(out, Report{Type: "self-doubt", Cause: "silence", Detail: "over half of the watched peers look silent"})
	}
	for _, n := range quiet {
		p := m.peers[n]
		out = append(out, Report{Type: "silent", Node: n, Cause: "silence", Took: now.Sub(p.heardAt)})
		p.silent = true
		out = m.ownerGone(n, m.evidence(now, n, "silence", out))
	}
	return out
}

func (m *Machine) pings(now kevlard.Instant, out []Effect) []Effect {
	m.pingAt = kevlard.Never
	held, free := m.held(), m.free()
	for _, n := range m.peerNames() {
		p := m.peers[n]
		if !p.up {
			continue
		}
		if now >= p.pingNext {
			p.pingSeq++
			p.pingSent[p.pingSeq%maxPings] = now
			p.pingNext = now.Add(m.cfg.Timing.IdlePing)
			if p.watched {
				p.pingNext = now.Add(m.cfg.Timing.Ping)
			}
			out = append(out, Send{n, protocol.Ping{Seq: p.pingSeq, Sessions: held, Free: free}})
		}
		m.pingAt = min(m.pingAt, p.pingNext)
	}
	return out
}

// peerNames lists the peers in order.
func (m *Machine) peerNames() []kevlard.NodeID {
	if len(m.names) == 0 {
		m.names = slices.AppendSeq(m.names, maps.Keys(m.peers))
		slices.Sort(m.names)
	}
	return m.names
}

func (m *Machine) pong(now kevlard.Instant, n kevlard.NodeID, pong protocol.Pong) {
	p := m.peers[n]
	if p == nil {
		return
	}
	m.loads(n, p, pong.Sessions)
	p.free, p.told = pong.Free, true
	if pong.Seq == 0 || pong.Seq > p.pingSeq || p.pingSeq-pong.Seq >= maxPings {
		return // not asked in this life, or so long ago that the time is gone
	}
	rtt := now.Sub(p.pingSent[pong.Seq%maxPings])
	if p.rtt == 0 {
		p.rtt, p.dev = rtt, rtt/2
		return
	}
	p.dev += ((rtt - p.rtt).Abs() - p.dev) / 4
	p.rtt += (rtt - p.rtt) / 8
}

// free is how many KV positions every stage of this node can grant one session. A stage
// without an engine says nothing about the others.
func (m *Machine) free() int {
	least := -1
	for _, s := range m.stages {
		if st := s.Advertise().State; st != topology.Ready && st != topology.Stalled {
			continue
		}
		if f := s.Room(); least < 0 || f < least {
			least = f
		}
	}
	return max(least, 0)
}

// roomFor reports whether a node is likely to grant n positions. Prepare has the
// last word; this keeps sessions from asking where there is none.
func (m *Machine) roomFor(id kevlard.NodeID, n int) bool {
	if id == m.cfg.Self {
		return m.free() >= n
	}
	p := m.peers[id]
	return p == nil || !p.told || p.free >= n
}

// held is how many sessions the stages of this node hold.
func (m *Machine) held() int {
	n := 0
	for _, s := range m.stages {
		n += s.Sessions()
	}
	return n
}

// renew keeps the leases of all owned sessions at their stages.
func (m *Machine) renew(out []Effect) []Effect {
	at := map[kevlard.NodeID][]kevlard.SessionID{}
	for _, id := range m.sortedSessions() {
		seen := map[kevlard.NodeID]bool{"": true}
		tell := func(n kevlard.NodeID) {
			if !seen[n] {
				at[n] = append(at[n], id)
				seen[n] = true
			}
		}
		for _, h := range m.sessions[id].Route() {
			tell(h.Node)
		}
		for _, n := range m.sessions[id].Standbys() {
			tell(n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(at)) {
		for ids := range slices.Chunk(at[n], protocol.MaxRenew) {
			out = append(out, Send{n, protocol.Renew{Sessions: ids}})
		}
	}
	return out
}

// viewChanged takes the ring's word on who is dead, left or back as another boot.
func (m *Machine) viewChanged(now kevlard.Instant, v topology.View, out []Effect) []Effect {
	m.view = v
	m.unsettled(now)
	clear(m.ready)
	out = m.weigh(now, out)
	known := map[kevlard.NodeID]bool{}
	for _, n := range v.Nodes {
		known[n.ID] = true
		p := m.peers[n.ID]
		up := p != nil && p.up
		if n.ID == m.cfg.Self || up && p.boot != n.Boot {
			continue // the record is of another life than the one that is connected
		}
		dead := n.State == topology.Dead || n.State == topology.Left
		if dead {
			out = m.ownerGone(n.ID, m.evidence(now, n.ID, "dead", out))
		}
		for i, s := range m.stages { // a link that stands says it lives; if not, the leases will tell
			out = m.fromStage(now, i, s.OwnerGone(now, n.ID, n.Boot, dead && !up, nil), out)
		}
		m.copies.OwnerGone(n.ID, n.Boot, dead && !up)
	}
	for n, p := range m.peers {
		if !known[n] && !p.up {
			delete(m.peers, n)
			m.names = m.names[:0]
		}
	}
	return m.hurryStandbys(now, m.hurry(now, m.compare(out)))
}
