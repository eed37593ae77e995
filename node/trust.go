package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/topology"
)

// What other nodes compute is audited (package audit), and what all find is weighed here.
// A node that is not believed gets no work, is no standby and gives nobody KV. Sessions
// that it has worked for end with an error, since what they have may be wrong and all that
// follows is made of it; so do those that began with KV that was found, which may come from
// one of them. Sessions that begin later have another salt, so that they find none of it.

// auditQueue is how many rows may wait at the stages here while this node audits.
const auditQueue = 256

// believed reports whether work may go to a node, and come from it, as far as it is known
// what it computes.
func (m *Machine) believed(n kevlard.NodeID) bool {
	return !m.trust.Distrusts(n) && !m.audits.Disputes(n)
}

// weigh takes the words on others that a new view has, and finds whom to audit.
func (m *Machine) weigh(now kevlard.Instant, out []Effect) []Effect {
	lost, regained := m.trust.See(now, m.view)
	if len(lost)+len(regained) > 0 {
		m.unsettled(now) // the plan goes by it, and the view may be an old one
	}
	for _, t := range lost {
		out = m.lostTrust(now, t, append(out, Report{Type: "distrusted", Node: t.Node, Cause: "audit", Detail: t.String()}))
	}
	if len(lost) > 0 {
		out = m.resalt(now, out)
	}
	for _, t := range regained {
		out = append(out, Report{Type: "trusted", Node: t.Node, Cause: "audit", Detail: t.String()})
	}
	return m.fromAudit(m.audits.See(now, m.view, m.auditable(), m.trust.Distrusts, nil), out)
}

// lostTrust ends the sessions that have to do with a node.
func (m *Machine) lostTrust(now kevlard.Instant, t audit.Tally, out []Effect) []Effect {
	for _, id := range m.sortedSessions() {
		if s := m.sessions[id]; s != nil && m.taints(t, s) {
			out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
				return s.Fail(now, disputed(t), e)
			})
		}
	}
	for _, s := range m.resting.all() { // an answer that is complete is not shown again
		if s.State() == session.Done && m.taints(t, s) {
			m.resting.take(s.ID())
			delete(m.unlogged, s.ID())
			for _, e := range s.Forget(nil) {
				out = m.fromSession(s, e, out)
			}
		}
	}
	return out
}

// tainted returns why a session can't go on, nil if it can.
func (m *Machine) tainted(s *session.Machine) *kevlard.Failure {
	for _, t := range m.trust.Bad() {
		if m.taints(t, s) {
			return disputed(t)
		}
	}
	return nil
}

// taints reports whether a session may have what a node computed that is not believed. Where
// one ran that was taken over is not known here, but that it began when its owner knew of
// the node.
func (m *Machine) taints(t audit.Tally, s *session.Machine) bool {
	foreign := s.Found() || s.Before() != protocol.Life{}
	return s.RanAt(t.Node) || foreign && s.Model() == t.Key.Model && !m.knowing(s)
}

// knowing reports whether what a session finds is of who knew of the losses of trust that
// this node has seen, and of no others: who has taken it over may not know of all, uses whom
// its last owner did not, and must not file that beside what was computed without.
func (m *Machine) knowing(s *session.Machine) bool {
	return audit.Suffix(s.Salt()) == m.trust.Suffix()
}

// resalt has sessions that go on find nothing any more that was computed before.
func (m *Machine) resalt(now kevlard.Instant, out []Effect) []Effect {
	for _, id := range m.sortedSessions() {
		if s := m.sessions[id]; s != nil && !m.knowing(s) {
			out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
				return s.Resalt(now, m.salted(s.Salt()), e)
			})
		}
	}
	return out
}

func disputed(t audit.Tally) *kevlard.Failure {
	return &kevlard.Failure{Code: "disputed", Status: 500, Message: fmt.Sprintf(
		"the answer may be wrong: node %s is found to compute otherwise than others that say they hold the same weights (%v); ask again", t.Node, t)}
}

// explain adds to an error for want of a route whom none may use.
func (m *Machine) explain(f *kevlard.Failure) *kevlard.Failure {
	bad := m.trust.Bad()
	if f == nil || f.Code != "no_route" || len(bad) == 0 {
		return f
	}
	told := *f
	told.Message += fmt.Sprintf("; node %s is not used, since holders of the same layers compute otherwise (%v)", bad[0].Node, bad[0])
	if more := len(bad) - 1; more > 0 {
		told.Message += fmt.Sprintf(", nor %d more like it", more)
	}
	return &told
}

// salted makes the salt of a session one that finds nothing computed before trust was last
// lost, nor what was filed by who knows more.
func (m *Machine) salted(salt string) string {
	suffix := m.trust.Suffix()
	if audit.Suffix(salt) != "" || len(salt)+len(suffix) > protocol.MaxSalt {
		h := sha256.Sum256([]byte(salt))
		salt = hex.EncodeToString(h[:])
	}
	return salt + suffix
}

// auditable lists the stages here that can be compared with others'.
func (m *Machine) auditable() []audit.Holding {
	var out []audit.Holding
	for _, s := range m.stages {
		if a := s.Advertise(); a.State == topology.Ready && !s.Released() {
			of := m.assigned[s.Key()]
			out = append(out, audit.Holding{Key: s.Key(), Class: a.Class, Width: of.Width, Vocab: of.Model.Vocab, Last: of.Layers.Hi == of.Model.Layers})
		}
	}
	return out
}

// mayAudit reports whether n positions are little beside what a peer and this node can do.
func (m *Machine) mayAudit(id kevlard.NodeID, n int) bool {
	peer, ok := m.view.Node(id)
	if !ok || m.drains.on || !m.reach(id) || peer.Boot != m.peers[id].boot || m.free() < 4*n {
		return false
	}
	return m.queued() <= auditQueue
}

// queued is how many rows wait at the stages here.
func (m *Machine) queued() (rows int) {
	for _, s := range m.stages {
		rows += s.QueuedRows()
	}
	return rows
}

// answered is the session that a message from a stage to an owner is about, "" for others.
func answered(msg protocol.Message) kevlard.SessionID {
	switch msg := msg.(type) {
	case protocol.Prepared:
		return msg.Session
	case protocol.Step:
		return msg.Session
	case protocol.Refused:
		return msg.Session
	case protocol.Lost:
		return msg.Session
	}
	return ""
}

// withWords adds to the stages of the record what this node found of others that hold
// them, disputes first.
func (m *Machine) withWords(stages []topology.Stage) []topology.Stage {
	room := audit.MaxNames
	take := func(names []kevlard.NodeID) []kevlard.NodeID {
		names = names[:min(len(names), room)]
		room -= len(names)
		return names
	}
	for i := range stages {
		_, disputes := m.audits.Words(stages[i].Key)
		stages[i].Disputes = take(disputes)
	}
	for i := range stages {
		agrees, _ := m.audits.Words(stages[i].Key)
		stages[i].Agrees = take(agrees)
	}
	return stages
}

// fromAudit carries the effects of audits over.
func (m *Machine) fromAudit(effects []audit.Effect, out []Effect) []Effect {
	for _, e := range effects {
		switch e := e.(type) {
		case audit.Send:
			out = append(out, Send{e.To, e.Message})
		case audit.SendFrame:
			out = append(out, SendFrame{e.To, e.Frame})
		case audit.Judged:
			if e.Verdict == audit.Disputes {
				out = append(out, Report{Type: "audit-differs", Node: e.Node, Cause: "audit", Detail: fmt.Sprintf(
					"layers %v of model %s: node %s computes otherwise than this node, %s, from the same input: %s", e.Key.Layers, e.Key.Model, e.Node, m.cfg.Self, e.Why)})
			}
			out = append(out, m.publish())
		default:
			panic(fmt.Sprintf("node: audit effect of unknown type %T", e))
		}
	}
	return out
}
