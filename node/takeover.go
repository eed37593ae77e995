package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/session/witness"
	"github.com/kevlard/kevlard/topology"
)

// bid is this node's attempt to take a session over.
type bid struct {
	callers []uint64 // numbers of the TakeOvers that wait
	until   kevlard.Instant
	at      kevlard.Instant             // when to act if nothing is heard
	asked   map[kevlard.NodeID]bool     // who was asked where the session is; true: has answered
	others  []protocol.Life             // those who said last that they don't own it
	holder  protocol.Life               // whom a witness hears from as the owner
	known   protocol.Located            // the newest record that was heard of
	highest uint64                      // the newest epoch that was heard of or asked for
	heard   uint64                      // the newest that others have spoken of
	round   *witness.Round              // nil: none is under way
	answers map[kevlard.NodeID]struct{} // in this round
	rivals  []protocol.Life             // whom witnesses named in this round, and who were asked since
	rounds  int
	owner   bool // a witness of this or the last round hears from the owner
	unheard bool // those who can't be asked may be the only ones that know the session
	// accepted: a caller's client may have the session. Else nothing changes hands.
	accepted bool
}

// takeOver begins to take a session over, unless that is under way.
func (m *Machine) takeOver(now kevlard.Instant, ev TakeOver, out []Effect) []Effect {
	answer := func(err *kevlard.Failure) []Effect {
		return append(out, TakenOver{Number: ev.Number, Session: ev.Session, Err: err})
	}
	b := m.bids[ev.Session]
	switch {
	case m.sessions[ev.Session] != nil || m.resting.get(ev.Session) != nil:
		return answer(nil)
	case b != nil && len(b.callers) < m.cfg.Limits.TakeOvers:
		b.callers = append(b.callers, ev.Number)
		b.accepted = b.accepted || ev.Accepted
		return out
	case m.drains.on:
		return answer(&kevlard.Failure{Code: "draining", Status: 503, Message: "this node is draining and takes no sessions over; ask another node"})
	case b != nil || len(m.bids) >= m.cfg.Limits.TakeOvers || len(m.sessions) >= m.cfg.Limits.Sessions:
		return answer(&kevlard.Failure{Code: "overloaded", Status: 429, Message: "this node takes over or owns as many sessions as it can; try again later"})
	}
	b = &bid{
		callers: []uint64{ev.Number}, until: now.Add(m.cfg.Timing.TakeOver), at: now.Add(m.cfg.Timing.Locate),
		asked: map[kevlard.NodeID]bool{}, accepted: ev.Accepted,
	}
	m.bids[ev.Session] = b
	dead := m.view.Absent
	for _, n := range m.view.Nodes {
		switch {
		case n.ID == m.cfg.Self || m.connected(n.ID):
			b.asked[n.ID] = false
			out = append(out, Send{n.ID, protocol.Locate{Session: ev.Session}})
		case n.State == topology.Dead:
			dead++
		case n.State != topology.Left:
			b.unheard = true
		}
	}
	b.unheard = b.unheard || mayHide(len(b.asked), dead)
	return out
}

// mayHide reports whether a session that runs, or could go on, may be known to none but
// dead nodes, of which the ring can't tell whether they are only cut off. Its owner and
// at least one witness know it; where there is only one other node, there is no witness.
func mayHide(asked, dead int) bool { return dead > 1 || dead == 1 && asked == 1 }

// located takes what a node knows of a session.
func (m *Machine) located(now kevlard.Instant, from protocol.Life, l protocol.Located, out []Effect) []Effect {
	b := m.bids[l.Session]
	if b == nil {
		return out
	}
	if _, ok := b.asked[from.Node]; !ok {
		return out
	}
	b.asked[from.Node] = true
	b.heard = max(b.heard, l.Epoch)
	b.highest = max(b.highest, b.heard)
	if !l.Owned && !slices.Contains(b.others, from) {
		b.others = append(b.others, from)
	}
	if l.Owned && l.Epoch >= b.heard && from.Node != m.cfg.Self {
		return m.decided(l.Session, TakenOver{Owner: from.Node}, out)
	}
	if l.Recorded && (!b.known.Recorded || cmp.Or(cmp.Compare(l.At, b.known.At), cmp.Compare(l.Witnesses.Version, b.known.Witnesses.Version)) > 0) {
		b.known = l
	}
	all := !slices.Contains(slices.Collect(maps.Values(b.asked)), false)
	switch {
	case b.round != nil || b.rounds > 0:
		return out
	case b.known.Recorded && (all || !m.connected(b.known.Owner.Node)): // else the owner has the first word
		return m.bidRound(now, l.Session, b, out)
	case all && !b.unheard:
		return m.decided(l.Session, TakenOver{Err: notFound()}, out)
	}
	return out
}

func notFound() *kevlard.Failure {
	return &kevlard.Failure{Code: "session_not_found", Status: 404, Message: "no node knows the session: it has ended, or its time to be resumed is over"}
}

// bidRound asks the witnesses for their promise, if the session's client is here.
func (m *Machine) bidRound(now kevlard.Instant, id kevlard.SessionID, b *bid, out []Effect) []Effect {
	if !b.accepted {
		return m.decided(id, TakenOver{Remembered: true}, out)
	}
	if n := b.known.Owner.Node; b.rounds > 0 && m.connected(n) && !b.asked[n] { // it may have woken up, or be connected again
		b.asked[n] = false
		out = append(out, Send{n, protocol.Locate{Session: id}})
	}
	b.highest++
	b.rounds++
	r := witness.NewRound(b.highest, b.known.At, b.known.Witnesses)
	b.round, b.answers, b.owner, b.at = &r, map[kevlard.NodeID]struct{}{}, false, now.Add(m.cfg.Timing.Round)
	b.rivals = nil
	return m.askVotes(id, b, nil, out)
}

// askVotes asks the witnesses of the newest list that were not asked before.
func (m *Machine) askVotes(id kevlard.SessionID, b *bid, before []protocol.Life, out []Effect) []Effect {
	vote := protocol.Vote{Session: id, Epoch: b.round.Epoch}
	for _, l := range []protocol.Life{b.known.Owner, b.holder} {
		if slices.Contains(b.others, l) {
			vote.Disowned = l
		}
	}
	for _, l := range b.round.Ask() {
		if m.connected(l.Node) && !slices.Contains(before, l) {
			out = append(out, Send{l.Node, vote})
		}
	}
	return out
}

// promised takes a witness's answer.
func (m *Machine) promised(now kevlard.Instant, from protocol.Life, p protocol.Promise, out []Effect) []Effect {
	b := m.bids[p.Session]
	if b == nil || b.round == nil || p.Epoch != b.round.Epoch {
		return out
	}
	before := b.round.Ask()
	won := b.round.Promised(from, p)
	b.heard = max(b.heard, p.Newer)
	b.highest = max(b.highest, b.round.Highest)
	if p.Refusal == protocol.WitnessOwner {
		b.owner, b.holder = true, p.Owner
	}
	b.answers[from.Node] = struct{}{}
	out = m.askRival(p, b, out)
	if won {
		return m.won(now, p.Session, b.round.Won(m.life()), b.round.Before(), out)
	}
	out = m.askVotes(p.Session, b, before, out) // a newer list of witnesses may have come with it
	for _, l := range b.round.Ask() {
		if _, ok := b.answers[l.Node]; !ok && m.connected(l.Node) {
			return out
		}
	}
	// All have answered, and it is not won: again in a while, which differs between
	// candidates, so that they do not split the votes for ever.
	b.round = nil
	b.at = now.Add(m.pause(p.Session, b.rounds))
	return out
}

// askRival asks who may have won instead, once in a round. If it owns the session it is
// followed: further rounds would win nothing, and promises to a loser end the winner's epoch.
func (m *Machine) askRival(p protocol.Promise, b *bid, out []Effect) []Effect {
	l := p.Owner
	if l.Node == "" || l.Node == m.cfg.Self || !m.connected(l.Node) || slices.Contains(b.rivals, l) {
		return out
	}
	b.rivals = append(b.rivals, l)
	b.others = slices.DeleteFunc(b.others, func(o protocol.Life) bool { return o == l }) // what it said may be over
	b.asked[l.Node] = false
	return append(out, Send{l.Node, protocol.Locate{Session: p.Session}})
}

// pause is the time before the next round, growing, and different for every node.
func (m *Machine) pause(id kevlard.SessionID, rounds int) time.Duration {
	unit := m.cfg.Timing.Round / 8
	spread := time.Duration(rank(id, m.cfg.Self+kevlard.NodeID(fmt.Sprint(rounds)))%16) * unit / 4
	return unit + spread*time.Duration(min(rounds, 4))
}

// bidsDue acts on attempts that wait for too long.
func (m *Machine) bidsDue(now kevlard.Instant, out []Effect) []Effect {
	if len(m.bids) == 0 {
		return out
	}
	for _, id := range slices.Sorted(maps.Keys(m.bids)) {
		b := m.bids[id]
		switch {
		case now < b.at:
		case now >= b.until && b.owner:
			out = m.decided(id, TakenOver{Err: &kevlard.Failure{
				Code: "session_busy", Status: 409, Message: fmt.Sprintf("node %s owns the session and lives, but it can't be reached from here; ask another node", cmp.Or(b.holder.Node, b.known.Owner.Node)),
			}}, out)
		case !b.known.Recorded && !b.unheard && !slices.Contains(slices.Collect(maps.Values(b.asked)), false):
			out = m.decided(id, TakenOver{Err: notFound()}, out)
		case !b.known.Recorded || now >= b.until:
			out = m.decided(id, TakenOver{Err: &kevlard.Failure{
				Code: session.CodeNoQuorum, Status: 409,
				Message: "too few nodes that know the session can be reached to take it over; try again, or ask another node",
			}}, out)
		default:
			out = m.bidRound(now, id, b, out)
		}
	}
	return out
}

func (m *Machine) decided(id kevlard.SessionID, t TakenOver, out []Effect) []Effect {
	b := m.bids[id]
	delete(m.bids, id)
	t.Session = id
	for _, n := range b.callers {
		t.Number = n
		out = append(out, t)
	}
	return out
}

// won makes this node the owner: the session is paused here until its client resumes
// it, and its first prepare fences what the old owner still has under way.
func (m *Machine) won(now kevlard.Instant, id kevlard.SessionID, r protocol.Record, before protocol.Life, out []Effect) []Effect {
	s, effects := session.TakenOver(r, m.life(), before, m.cfg.Timing.Session, now)
	for _, e := range effects {
		out = m.fromSession(s, e, out)
	}
	m.counters.TakeOvers++
	out = append(out, Report{Type: "takeover", Session: id, Node: before.Node, Cause: "dead", Detail: fmt.Sprintf("epoch %d, %d tokens", r.Epoch, s.Generated())})
	m.resting.add(s, now.Add(max(m.cfg.Timing.Resume, 0)))
	if m.connected(before.Node) {
		out = m.tellOldOwner(before, out)
	}
	return m.decided(id, TakenOver{}, out)
}
