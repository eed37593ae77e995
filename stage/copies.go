package stage

import (
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// transfer is an export or a load that the shell works on.
type transfer struct {
	slot     *slot
	from, to kevlard.Pos
	started  kevlard.Instant
	keep     bool // an export to this node's own memory

	// Of a load: the copy, and the prepare that is answered at its end.
	load   bool
	pinned index.Pinned
	msg    protocol.Prepare
}

// reads reports whether cells that the next work writes are being read for a standby:
// all of the session waits then, or later work would overtake.
func (s *slot) reads() bool { return s.export != nil && s.held < s.export.to }

// policy says when rows are worth sending, in this stage's sizes.
func (m *Machine) policy() index.Policy {
	piece := max(1, min(protocol.MaxRowsTokens, m.cfg.Limits.PieceBytes/max(1, m.cellBytes)))
	return index.Policy{
		Tokens: m.cfg.Limits.ReplicateTokens, Delay: m.cfg.Timing.Replicate, Gap: m.cfg.Timing.ReplicateGap, Slow: m.cfg.Timing.SlowStandby,
		Piece: piece, Window: max(2*m.cfg.Limits.ReplicateTokens, m.cfg.Limits.WindowBytes/max(1, m.cellBytes)),
	}
}

// Transfers returns how many exports and loads the shell works on.
func (m *Machine) Transfers() int { return len(m.transfers) }

// begin numbers a transfer. The shell works on one after the other, so there is one
// deadline for all: it leaves time for what each of them moves, and starts again with
// each that ends.
func (m *Machine) begin(now kevlard.Instant, t *transfer) uint64 {
	m.transfer++
	t.started = now
	if len(m.transfers) == 0 {
		m.due = now.Add(m.cfg.Timing.Stall)
	}
	m.due = m.due.Add(time.Duration(t.to-t.from) * transferPosition)
	m.transfers[m.transfer] = t
	return m.transfer
}

// judge sets the deadline of the transfers that are under way anew.
func (m *Machine) judge(now kevlard.Instant) {
	m.due = kevlard.Never
	if len(m.transfers) == 0 {
		return
	}
	n := 0
	for _, t := range m.transfers {
		n += t.to - t.from
	}
	m.due = now.Add(m.cfg.Timing.Stall + time.Duration(n)*transferPosition)
}

// fill starts to load what this node has of a copy of the session beyond what its
// cells hold, and answers the prepare when that is done: what a stage says it holds
// is in its cells, checked. The last known token is always computed again, so its
// position is not needed.
func (m *Machine) fill(now kevlard.Instant, s *slot, p protocol.Prepare, out []Effect) []Effect {
	if m.cfg.Copies == nil || m.cellBytes == 0 {
		return m.answer(now, s, p, out)
	}
	pinned := m.cfg.Copies.Pin(m.cfg.Key, m.class, p.Salt, p.Session, p.Tokens[:len(p.Tokens)-1], s.held)
	if pinned.N <= s.held {
		return m.answer(now, s, p, out)
	}
	t := &transfer{slot: s, from: s.held, to: pinned.N, load: true, pinned: pinned, msg: p}
	s.load = t
	return append(out, Load{m.engine, m.begin(now, t), s.id, s.held, s.cells.cell + s.held, pinned.Runs})
}

// Loaded ends a load: n positions were checked and written.
func (m *Machine) Loaded(now kevlard.Instant, engine, id uint64, n int, damaged bool, out []Effect) []Effect {
	t := m.transfers[id]
	if engine != m.engine || t == nil || !t.load {
		return out
	}
	out = m.end(now, id, out)
	m.cfg.Copies.Unpin(t.pinned, n, damaged)
	s := t.slot
	s.load = nil
	if s.closed {
		out = m.settle(now, s, out)
		if p := s.parked; p != nil { // of a hot copy that went meanwhile
			s.parked = nil
			return m.Prepare(now, p.from, p.msg, p.link, false, out)
		}
		return m.schedule(now, out)
	}
	n = max(0, min(n, t.to-t.from))
	s.held = t.from + n
	s.tokens = append(s.tokens[:t.from:t.from], t.msg.Tokens[t.from:s.held]...)
	m.counters.Loaded += uint64(n)
	if s.parked != nil { // a newer term: it finds the cells as they are now
		return m.schedule(now, m.unpark(now, s, out))
	}
	if m.warm[s.id] == s {
		if t.from+n < t.to && !damaged { // the engine does not take it: the next rows try again
			return out
		}
		return m.Warm(now, s.id, out) // more may have come meanwhile
	}
	return m.schedule(now, m.answer(now, s, t.msg, out))
}

// Exported ends the reading of cells for a standby; the rows are on their way.
func (m *Machine) Exported(now kevlard.Instant, engine, id uint64, failed string, out []Effect) []Effect {
	t := m.transfers[id]
	if engine != m.engine || t == nil || t.load {
		return out
	}
	out = m.end(now, id, out)
	s := t.slot
	s.export = nil
	if failed != "" {
		s.ending = false
	}
	switch {
	case !t.keep:
		s.standby.Left(now)
	case failed != "":
		out = m.unkept(now, s, out)
	default:
		if len(m.keeping) == maxKeeping {
			m.keeping = slices.Delete(m.keeping, 0, 1)
		}
		m.keeping = append(m.keeping, keeping{s, t.to})
	}
	if s.closed {
		return m.schedule(now, m.settle(now, s, out))
	}
	if failed != "" && !t.keep {
		out = m.standbyLost(s, "unreadable: "+failed, out)
	}
	out = m.unpark(now, s, out)
	out = m.replicate(now, s, out)
	if failed == "" {
		out = m.keep(now, s, out)
	}
	return m.schedule(now, out)
}

// end forgets a transfer; its engine answers.
func (m *Machine) end(now kevlard.Instant, id uint64, out []Effect) []Effect {
	delete(m.transfers, id)
	m.judge(now)
	if m.state == topology.Stalled && m.batch == nil && len(m.transfers) == 0 {
		m.state, m.reason = topology.Ready, ""
		out = append(out, Changed{}, Note{Type: "engine-awake", Detail: "a late transfer of KV came to its end"})
	}
	return out
}

// abortTransfers forgets the transfers of an engine that is gone.
func (m *Machine) abortTransfers() {
	for _, t := range m.transfers {
		if t.load {
			m.cfg.Copies.Unpin(t.pinned, t.to-t.from, false)
		}
		t.slot.load, t.slot.export = nil, nil
	}
	clear(m.transfers)
	m.due = kevlard.Never
}

// overdueTransfers treats an engine that does not move its KV like one that does
// not compute.
func (m *Machine) overdueTransfers(now kevlard.Instant, out []Effect) []Effect {
	if now < m.due {
		return out
	}
	since := now
	for _, t := range m.transfers {
		since = min(since, t.started)
	}
	if m.state == topology.Stalled {
		return m.kill(since, now, out)
	}
	return m.stall(now, since, out)
}

// assign gives a session its standby.
func (m *Machine) assign(now kevlard.Instant, s *slot, to kevlard.NodeID, out []Effect) []Effect {
	if m.cellBytes == 0 {
		return out
	}
	if to == s.standby.To {
		s.standby.Computed(now, s.held)
		return out
	}
	s.standby = index.Stream{}
	if to == "" {
		return out
	}
	m.streams++
	s.standby = index.NewStream(now, to, m.streams)
	s.standby.Computed(now, s.held)
	tokens := s.known
	if len(s.tokens) > len(tokens) {
		tokens = s.tokens[:len(s.tokens):len(s.tokens)]
	}
	return append(out, Reply{to, protocol.Offer{
		Session: s.id, Fence: s.fence, Owner: s.owner, OwnerBoot: s.ownerBoot, Stage: m.cfg.Key, Class: m.class,
		CellBytes: m.cellBytes, Salt: s.salt, Tokens: tokens, Positions: s.positions,
		Number: m.streams,
	}})
}

// Replicate takes the owner's word on who the standby is.
func (m *Machine) Replicate(now kevlard.Instant, from kevlard.NodeID, r protocol.Replicate, out []Effect) []Effect {
	s := m.slots[r.Session]
	if s == nil || s.owner != from || s.fence != r.Fence || s.unanswered() {
		return out // a prepare names the standby anew
	}
	return m.assign(now, s, r.Standby, out)
}

// Stored takes a standby's word on what it has.
func (m *Machine) Stored(now kevlard.Instant, from kevlard.NodeID, a protocol.Stored, out []Effect) []Effect {
	s := m.slots[a.Session]
	if s == nil || s.standby.To != from || a.Fence.Epoch != s.fence.Epoch {
		return out
	}
	if !s.standby.Stored(now, a) {
		return m.standbyLost(s, "refused: "+a.Detail, out)
	}
	return m.replicate(now, s, out)
}

// StandbyGone gives a standby up for one session, or for all (session "").
func (m *Machine) StandbyGone(n kevlard.NodeID, id kevlard.SessionID, cause string, out []Effect) []Effect {
	for _, s := range m.sorted() {
		if s.standby.To == n && (id == "" || id == s.id) {
			out = m.standbyLost(s, cause, out)
		}
	}
	return out
}

func (m *Machine) standbyLost(s *slot, cause string, out []Effect) []Effect {
	if s.standby.To == "" {
		return out
	}
	lost := protocol.StandbyLost{Session: s.id, Fence: s.fence, Lo: m.cfg.Key.Layers.Lo, Standby: s.standby.To, Cause: cause}
	s.standby = index.Stream{}
	return append(out, Reply{s.owner, lost})
}

// mayReplicate reports whether rows could be read now: one export at a time, and
// none before the last prepare is answered.
func (s *slot) mayReplicate() bool { return s.export == nil && !s.unanswered() }

// replicateDue sends what is due. When rows of one session have waited for long enough,
// those of the others go too: a burst of pieces wakes each process on their way once,
// and wakes are most of what a small piece costs. It keeps the sessions in step.
func (m *Machine) replicateDue(now kevlard.Instant, out []Effect) []Effect {
	policy := m.policy()
	all := m.sorted()
	if slices.ContainsFunc(all, func(s *slot) bool { return s.mayReplicate() && s.standby.Due(now, policy) }) {
		policy.Delay = 0
	}
	for _, s := range all {
		out = m.replicateBy(now, s, policy, out)
	}
	return out
}

// replicate sends the rows that are due to the session's standby.
func (m *Machine) replicate(now kevlard.Instant, s *slot, out []Effect) []Effect {
	return m.replicateBy(now, s, m.policy(), out)
}

func (m *Machine) replicateBy(now kevlard.Instant, s *slot, policy index.Policy, out []Effect) []Effect {
	if s.standby.To == "" || s.closed || m.state != topology.Ready || m.slots[s.id] != s {
		return out
	}
	if s.standby.Overdue(now, policy) {
		return m.standbyLost(s, "slow", out)
	}
	if !s.mayReplicate() {
		return out
	}
	from, to := s.standby.Next(now, policy)
	if from == to {
		return out
	}
	t := &transfer{slot: s, from: from, to: to}
	s.export = t
	s.standby.Sent(now, to)
	m.counters.Exported += uint64(to - from)
	return append(out, Export{m.engine, m.begin(now, t), s.cells.cell + from, s.standby.To, protocol.Rows{
		Session: s.id, Fence: s.fence, Stage: m.cfg.Key, Class: m.class, CellBytes: m.cellBytes, Pos: from, Tokens: s.tokens[from:to:to],
		Try: s.standby.Try(),
	}})
}
