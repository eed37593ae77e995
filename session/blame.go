package session

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// probing is the state of the question "how far are you?".
type probing struct {
	round   uint64 // 0: not asking
	answers []*protocol.Probed
	gap     gap // seen in the round before
}

// gap is the first place where work left one side and did not reach the other.
// The zero value is no gap.
type gap struct {
	found     bool
	hop       int // the receiving hop; len(route) is the owner
	left, got kevlard.Pos
}

// Evidence acts on a sign that a node of the route is gone: "reset", "silence",
// "dead". Evidence against others is ignored.
func (m *Machine) Evidence(now kevlard.Instant, node kevlard.NodeID, cause string, out []Effect) []Effect {
	if m.state == Done || m.state == Routing || !m.route.Uses(node) {
		return out
	}
	out = m.reroute(now, cause, node, m.timing.Avoid, out)
	if cause == "silence" {
		m.avoid.silent(node)
	}
	return out
}

// Lost acts on a stage's own word that it cannot go on.
func (m *Machine) Lost(now kevlard.Instant, from kevlard.NodeID, l protocol.Lost, out []Effect) []Effect {
	left := l.Fence.Term < m.fence.Term || l.Fence.Term == m.fence.Term && m.state == Routing
	if m.state != Done && l.Suspect && l.Fence.Epoch == m.fence.Epoch && left {
		// It has left that engine, for another reason; the next one is not to share its fate.
		m.strikes++
		m.solo = true
		return out
	}
	if m.state == Done || m.state == Routing || l.Fence != m.fence || m.hop(from, l.Lo) < 0 {
		return out
	}
	if l.Suspect {
		m.strikes++
		if m.strikes >= maxStrikes && m.alone {
			out = append(out, Note{Type: "poison", Node: from, Cause: l.Cause, Detail: fmt.Sprintf("killed %d engines", m.strikes)})
			return m.fail(now, &kevlard.Failure{
				Code: "poisoned", Status: 500,
				Message: "this request crashed the engine twice, the second time alone; it is not tried again",
			}, out)
		}
		m.solo = true
	}
	return m.reroute(now, cause(l.Cause), from, m.timing.Avoid/6, out)
}

// cause keeps what a peer names as a cause to those that are known: causes are
// counted by name.
func cause(s string) string {
	switch s {
	case "engine-exit", "engine-stall", "lease", "release", "drain":
		return s
	}
	return "other"
}

// Refused acts on work that a stage did not take.
func (m *Machine) Refused(now kevlard.Instant, r protocol.Refused, out []Effect) []Effect {
	running := m.state == Prefill || m.state == Decode
	if !running || r.Fence != m.fence {
		return out
	}
	if r.Reason == protocol.RefusedLink { // a hint from one side of an edge: ask everybody
		if m.probe.round == 0 {
			return m.ask(now, out)
		}
		return out
	}
	var node kevlard.NodeID
	for _, h := range m.route {
		if h.Layers.Lo == r.Lo {
			node = h.Node
		}
	}
	out = append(out, Note{Type: "refused", Node: node, Cause: string(r.Reason), Detail: fmt.Sprintf("item at position %d", r.Pos)})
	return m.reroute(now, "refused", node, m.timing.Retry, out)
}

// Wake acts on the session's deadline.
func (m *Machine) Wake(now kevlard.Instant, out []Effect) []Effect {
	if out = m.guardWake(now, out); now < m.deadline {
		return out
	}
	switch m.state {
	case Preparing:
		for i, h := range m.route {
			if m.have[i] < 0 {
				m.avoid.node(h.Node, now.Add(m.timing.Avoid))
				out = append(out, Note{Type: "refused", Node: h.Node, Cause: "prepare-timeout"})
			}
		}
		return m.reroute(now, "refused", "", 0, out)
	case Prefill, Decode:
		if m.probe.round > 0 {
			var blamed bool
			if blamed, out = m.judge(now, out); blamed {
				return out
			}
		}
		return m.ask(now, out)
	}
	return out
}

// ask begins a round of probes.
func (m *Machine) ask(now kevlard.Instant, out []Effect) []Effect {
	m.probe.round++
	m.probe.answers = make([]*protocol.Probed, len(m.route))
	for _, h := range m.route {
		out = append(out, Send{h.Node, protocol.Probe{Session: m.id, Fence: m.fence, Lo: h.Layers.Lo, Round: m.probe.round, Model: m.req.Model}})
	}
	m.deadline = now.Add(m.timing.ProbeEvery)
	return out
}

// Probed takes an answer to a probe.
func (m *Machine) Probed(from kevlard.NodeID, p protocol.Probed) {
	i := m.hop(from, p.Lo)
	if m.probe.round == 0 || p.Round != m.probe.round || p.Fence != m.fence || i < 0 {
		return
	}
	m.probe.answers[i] = &p
}

// judge looks at a finished round. It blames a stage that says it is stuck or
// does not know the session, and an edge whose gap has stood for two rounds.
// Work that waits in a queue is nobody's fault, and nodes that do not answer are
// left to the liveness of links, which knows when they were last heard.
func (m *Machine) judge(now kevlard.Instant, out []Effect) (bool, []Effect) {
	for i, a := range m.probe.answers {
		if a == nil {
			continue
		}
		if a.Stalled || !a.Known {
			cause := "engine-stall"
			if !a.Stalled {
				cause = "progress"
			}
			return true, m.reroute(now, cause, m.route[i].Node, m.timing.Avoid, out)
		}
	}
	g := m.firstGap()
	if !g.found || g != m.probe.gap {
		m.probe.gap = g
		return false, out
	}
	if m.budget == 0 && m.probe.round < patientRounds {
		return false, out
	}
	m.budget = max(m.budget-1, 0)
	from, to := m.edgeOf(g.hop)
	out = append(out, Note{Type: "edge-blamed", Node: to, Cause: "progress", Detail: fmt.Sprintf("%s sent to %d, %s has %d", from, g.left, to, g.got)})
	m.avoid.edge(edge{from, to}, now.Add(m.timing.Avoid))
	node := to
	if g.hop == len(m.route) || g.hop == 0 { // the owner is on the edge: avoid the other end
		node = m.route[min(g.hop, len(m.route)-1)].Node
		return true, m.reroute(now, "progress", node, m.timing.Avoid, out)
	}
	out = m.reroute(now, "progress", "", 0, out)
	m.pendingNode(node)
	return true, out
}

// pendingNode names who is left in the failover under way without avoiding it.
func (m *Machine) pendingNode(n kevlard.NodeID) {
	if m.pending != nil && m.pending.Node == "" {
		m.pending.Node = n
	}
}

// firstGap finds the first edge where work left and did not arrive. Unanswered
// stages hide the edges on both their sides.
func (m *Machine) firstGap() gap {
	left, known := m.sent, true
	for i, a := range m.probe.answers {
		if a == nil {
			known = false
			continue
		}
		got := max(a.Received, m.start)
		if known && got < left {
			return gap{true, i, left, got}
		}
		left, known = max(a.Done, m.start), true
	}
	if known && m.acked < left {
		return gap{true, len(m.route), left, m.acked}
	}
	return gap{}
}

// edgeOf names both ends of the edge into a hop.
func (m *Machine) edgeOf(hop int) (from, to kevlard.NodeID) {
	const owner = "owner"
	if hop == 0 {
		return owner, m.route[0].Node
	}
	if hop == len(m.route) {
		return m.route[hop-1].Node, owner
	}
	return m.route[hop-1].Node, m.route[hop].Node
}
