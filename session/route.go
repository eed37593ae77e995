package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// edge is a link between two nodes in the direction of the work.
type edge struct{ from, to kevlard.NodeID }

// avoidance remembers who was blamed, and until when.
type avoidance struct {
	nodes map[kevlard.NodeID]kevlard.Instant
	mute  map[kevlard.NodeID]bool // of nodes: blamed for silence alone
	edges map[edge]kevlard.Instant
}

func (a *avoidance) node(n kevlard.NodeID, until kevlard.Instant) {
	if a.nodes == nil {
		a.nodes = map[kevlard.NodeID]kevlard.Instant{}
	}
	a.nodes[n] = until
	delete(a.mute, n)
}

// silent notes that the last blame of a node was for its silence.
func (a *avoidance) silent(n kevlard.NodeID) {
	if a.mute == nil {
		a.mute = map[kevlard.NodeID]bool{}
	}
	a.mute[n] = true
}

func (a *avoidance) edge(e edge, until kevlard.Instant) {
	if a.edges == nil {
		a.edges = map[edge]kevlard.Instant{}
	}
	a.edges[e] = until
}

// Await makes a session that wants a route want it later, unless it is hurried.
func (m *Machine) Await(until kevlard.Instant) {
	if m.state == Routing {
		m.deadline = until
	}
}

// WantsRoute reports whether the session waits for SetRoute or NoRoute at now.
func (m *Machine) WantsRoute(now kevlard.Instant) bool {
	return m.state == Routing && now >= m.deadline
}

// Hurry makes a waiting session want a route at once: the view has changed.
func (m *Machine) Hurry(now kevlard.Instant) {
	if m.state == Routing {
		m.deadline = min(m.deadline, now)
	}
}

// Avoids reports whether a node was blamed lately.
func (m *Machine) Avoids(now kevlard.Instant, n kevlard.NodeID) bool { return now < m.avoid.nodes[n] }

// AvoidedEdges calls do for each link from one node to the next that was blamed lately,
// in no order.
func (m *Machine) AvoidedEdges(now kevlard.Instant, do func(from, to kevlard.NodeID)) {
	for e, until := range m.avoid.edges {
		if now < until {
			do(e.from, e.to)
		}
	}
}

// Class returns the numerics class that every further route must have; "" while
// nothing was generated, so that any will do.
func (m *Machine) Class() string {
	if m.Generated() == 0 && m.before == (protocol.Life{}) { // its last owner may have shown what is not in the log
		return ""
	}
	return m.class
}

// RouteClass returns the numerics class of the route in use or used last.
func (m *Machine) RouteClass() string { return m.class }

// Pardon forgets what a node was blamed for: it has started anew.
func (m *Machine) Pardon(n kevlard.NodeID) {
	delete(m.avoid.nodes, n)
	delete(m.avoid.mute, n)
	delete(m.unfit, n)
	maps.DeleteFunc(m.avoid.edges, func(e edge, _ kevlard.Instant) bool { return e.from == n || e.to == n })
}

// Heard forgets what a node was blamed for if that was its silence, which a word
// refutes.
func (m *Machine) Heard(n kevlard.NodeID) {
	if m.avoid.mute[n] {
		m.Pardon(n)
	}
}

// Previous returns the route used last, for a chooser that prefers to stay.
func (m *Machine) Previous() kevlard.Route {
	if m.route != nil {
		return m.route
	}
	if m.old != nil {
		return m.old
	}
	return m.hint
}

// SetRoute raises the term and prepares every stage of r at once. standbys has one
// node for each hop, "" for none; nil is none at all. sources likewise says who has a
// copy that the hop's own node may lack.
func (m *Machine) SetRoute(now kevlard.Instant, r kevlard.Route, class string, standbys []kevlard.NodeID, sources []Source, out []Effect) []Effect {
	// At the old fence: who is left now may get a part under the new one.
	out = m.closeHops(m.old, r, out)
	m.fence.Term++
	m.keepCopies()
	before, copies, marks := m.copied, m.standbys, m.marks
	m.route, m.copied, m.old, m.hint, m.class = r, r, nil, nil, class
	if standbys == nil {
		standbys = make([]kevlard.NodeID, len(r))
	}
	m.standbys, m.marks = standbys, make([]kevlard.Pos, len(r))
	m.standbyAt, m.namedAt = make([]kevlard.Instant, len(r)), now
	m.keepMarks(before, copies, marks)
	m.have = make([]int, len(r))
	m.started, m.again, m.alone = false, 0, m.solo
	for i, h := range r {
		m.touch(h.Node, h.Layers)
		m.runs(h.Node)
		m.touch(standbys[i], h.Layers)
		p := m.prepare(i)
		if sources != nil {
			p.Source, p.Mark = sources[i].Node, sources[i].Mark
			m.runs(p.Source)
		}
		if i == 0 && !p.Recovery && !p.Solo {
			p.Await = len(m.tokens) - 1
		}
		out = append(out, Send{h.Node, p})
	}
	out = m.guardRoute(now, out)
	m.state = Preparing
	m.awaitAnswers(now)
	return out
}

// prepare returns what one hop of the route is asked, and marks it as asked.
func (m *Machine) prepare(i int) protocol.Prepare {
	m.have[i] = -1
	p := protocol.Prepare{
		Session: m.id, Fence: m.fence, OwnerBoot: m.boot, Stage: kevlard.StageKey{Model: m.req.Model, Layers: m.route[i].Layers},
		Last: i == len(m.route)-1, Tokens: m.tokens[:len(m.tokens):len(m.tokens)], Positions: m.Positions(),
		Sampling: m.req.Sampling, Solo: m.alone, Recovery: m.pending != nil, Credit: m.timing.Window,
		Standby: m.standbys[i], Salt: m.req.Salt,
	}
	if !p.Last {
		p.Next = m.route[i+1].Node
	}
	return p
}

// awaitAnswers sets the time within which stages must answer. They do so at the end of
// their running batch, which a slow one takes long for, and when they have loaded what
// they may have.
func (m *Machine) awaitAnswers(now kevlard.Instant) {
	load := time.Duration(len(m.tokens)) * loadPosition
	if m.pending == nil {
		load = min(load, loadMost)
	}
	m.askedAt, m.deadline = now, now.Add(max(m.timing.Prepare, 16*m.pace)+load)
}

// prolong gives the stages their time again: one waits for another session. That time is
// not spent on finding a route, as little as the time to compute would be.
func (m *Machine) prolong(now kevlard.Instant) {
	m.giveUp = m.giveUp.Add(now.Sub(m.askedAt))
	m.awaitAnswers(now)
}

// askAgain asks the next stage once more that has less than all before it. At first only
// the first stage waits for sessions that begin alike: what they compute there, they
// compute at the others too. In the order of the layers no two sessions wait for each other,
// and none for what it can't use, because a stage before lacks it.
func (m *Machine) askAgain(now kevlard.Instant, out []Effect) (asked bool, _ []Effect) {
	if m.pending != nil || m.alone {
		return false, out
	}
	for m.again+1 < len(m.route) {
		m.again++
		i, least := m.again, slices.Min(m.have[:m.again])
		if m.have[i]+againWorth <= least {
			p := m.prepare(i)
			p.Await = least
			m.prolong(now)
			return true, append(out, Send{m.route[i].Node, p})
		}
	}
	return false, out
}

// NoRoute says that no route exists now; missing names the layers that nobody
// serves. The session waits until its deadline.
func (m *Machine) NoRoute(now kevlard.Instant, missing []kevlard.Layers, out []Effect) []Effect {
	if now < m.giveUp {
		m.deadline = min(now.Add(m.timing.Retry), m.giveUp)
		out = m.closeHops(m.old, nil, out) // hold nothing while waiting
		m.old = nil
		return out
	}
	return m.exhausted(now, missing, out)
}

// exhausted ends a session whose time for finding a route is over.
func (m *Machine) exhausted(now kevlard.Instant, missing []kevlard.Layers, out []Effect) []Effect {
	if len(missing) > 0 {
		names := make([]string, len(missing))
		for i, l := range missing {
			names[i] = l.String()
		}
		return m.fail(now, &kevlard.Failure{Code: "no_route", Status: 503, Message: "no route for the model: no live node serves layers " + strings.Join(names, ", ")}, out)
	}
	if r := m.refusal; r.Refusal == protocol.RefusedCapacity {
		return m.fail(now, &kevlard.Failure{Code: "capacity", Status: 503, Message: "every route is full: " + r.Detail}, out)
	}
	why := "every route is blamed or unreachable"
	if m.barren >= maxBarren {
		why = fmt.Sprintf("%d routes in a row were prepared and brought nothing", m.barren)
	} else if m.refusal.Refusal != "" {
		why = fmt.Sprintf("every route is blamed or refuses: %s: %s", m.refusal.Refusal, m.refusal.Detail)
	}
	return m.fail(now, &kevlard.Failure{Code: "no_route", Status: 503, Message: "no route for the model: " + why}, out)
}

// Prepared takes a stage's answer.
func (m *Machine) Prepared(now kevlard.Instant, from kevlard.NodeID, p protocol.Prepared, out []Effect) []Effect {
	if p.Refusal == protocol.RefusedStale && p.Epoch > m.fence.Epoch && m.state != Done && m.state != Paused {
		return m.supersede(p.Epoch, out) // whatever was asked
	}
	i := m.hop(from, p.Lo)
	if m.state != Preparing || p.Fence != m.fence || i < 0 {
		return out // an answer to a question no longer asked
	}
	if p.Waits {
		m.prolong(now)
		return out
	}
	if p.Refusal != "" {
		m.refusal = p
		out = append(out, Note{Type: "refused", Node: from, Cause: string(p.Refusal), Detail: p.Detail})
		if p.Refusal == protocol.RefusedLink && i+1 < len(m.route) { // the edge, not its near end
			m.avoid.edge(edge{from, m.route[i+1].Node}, now.Add(m.timing.Avoid))
			return m.reroute(now, "refused", "", 0, out)
		}
		// Longer than the pause before the next try, or it would be asked for ever
		// while another has room.
		return m.reroute(now, "refused", from, max(m.timing.Retry, 2*m.backoff()), out)
	}
	m.have[i] = min(p.Have, len(m.tokens))
	start := len(m.tokens) - 1 // the last known token is always recomputed
	for _, h := range m.have {
		if h < 0 {
			return out
		}
		start = min(start, h)
	}
	if asked, out := m.askAgain(now, out); asked {
		return out
	}
	m.prepared, m.patience = now, m.giveUp.Sub(now)
	m.start, m.sent, m.acked, m.lastAck = start, start, start, now
	m.state, m.refusal, m.refusals = Prefill, protocol.Prepared{}, 0
	m.found = m.found || start > 0
	m.watch(now)
	if !m.begun {
		m.begun, m.reused = true, min(start, len(m.req.Prompt))
		if m.reused > 0 {
			out = append(out, Reused{m.reused})
		}
	}
	return m.pump(out)
}

// hop finds the index of a stage on the route, -1 if it is not there.
func (m *Machine) hop(n kevlard.NodeID, lo int) int {
	for i, h := range m.route {
		if h.Node == n && h.Layers.Lo == lo {
			return i
		}
	}
	return -1
}

// reroute leaves the present route. node, if given, is not chosen again for the
// time of avoid while there is another.
func (m *Machine) reroute(now kevlard.Instant, cause string, node kevlard.NodeID, avoid time.Duration, out []Effect) []Effect {
	again := node != "" && m.Avoids(now, node) // it was blamed already, and chosen for want of others
	if node != "" {
		m.avoid.node(node, now.Add(avoid))
	}
	running := m.state == Prefill || m.state == Decode
	recovering := m.state == Preparing && m.pending != nil && !again
	if running && m.pending == nil {
		m.pending = &kevlard.Failover{AtToken: m.Generated(), Cause: cause, Node: node, Detect: now.Sub(m.lastToken)}
		m.evidence = now
		out = append(out, Note{Type: "failover", Node: node, Cause: cause, Detail: fmt.Sprintf("at token %d, term %d", m.Generated(), m.fence.Term)})
	}
	switch {
	case running && m.acked > m.high: // the route brought something new: all its time again
		m.giveUp, m.barren, m.high = now.Add(m.whole()), 0, m.acked
	case running: // a route that brings nothing does not earn time, nor cost it
		m.giveUp = now.Add(m.patience)
		m.barren++
	}
	if m.route != nil {
		m.old, m.route = m.route, nil
	}
	if !running && now >= m.giveUp || m.barren >= maxBarren {
		return m.exhausted(now, nil, out)
	}
	m.state, m.deadline = Routing, now
	if (running || recovering) && cause != "refused" { // what the others hold is needed at once
		return out
	}
	// Do not spin on a mesh that refuses or fails at once, and hold nothing while
	// waiting: two sessions that keep half a route each would wait for ever.
	m.deadline = now.Add(m.backoff())
	m.refusals++
	out = m.closeHops(m.old, nil, out)
	m.old = nil
	return out
}

// Unsent acts on a message or item that could not be queued for a peer: its queue
// is full, which is nobody's fault, or no message is that large, which no route
// can help.
func (m *Machine) Unsent(now kevlard.Instant, oversize bool, out []Effect) []Effect {
	if m.state == Done || m.route == nil {
		return out
	}
	if oversize {
		return m.fail(now, &kevlard.Failure{
			Code: "too_large", Status: 400,
			Message: fmt.Sprintf("%d tokens are more than one message to a stage holds", len(m.tokens)),
		}, out)
	}
	return m.reroute(now, "refused", "", 0, out)
}

// backoff is the pause before the next try: a tenth of Retry at first, doubling
// to ten times Retry.
func (m *Machine) backoff() time.Duration {
	return min(m.timing.Retry/10<<min(m.refusals, 10), 10*m.timing.Retry)
}

// Desperate reports whether the session should rather try a blamed node than
// wait: an eighth of its time for finding a route has passed.
func (m *Machine) Desperate(now kevlard.Instant) bool {
	return m.giveUp.Sub(now) < m.whole()-m.whole()/8
}

// whole is how long the session may look for a route.
func (m *Machine) whole() time.Duration {
	if m.Generated() > 0 {
		return m.timing.RecoverDeadline
	}
	return m.timing.QueueDeadline
}
