package node

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/session"
)

// A new session goes where the KV of its prompt is. Owners change from turn to turn, so
// none can remember where that was; and what one would tell the others is late when the
// next turn comes at once. So the owner asks all nodes that have a stage, which takes one
// round trip, and only when there is a choice.

// seeking is what one session was told.
type seeking struct {
	until kevlard.Instant
	left  map[kevlard.NodeID]bool // who has not answered
	held  map[holder]protocol.Holding
}

// holder is a stage at a node.
type holder struct {
	node   kevlard.NodeID
	layers kevlard.Layers
}

// positions returns how many leading positions a stage has.
func (f *seeking) positions(n kevlard.NodeID, l kevlard.Layers) int {
	return f.held[holder{n, l}].Positions
}

// holders appends what is known of all stages.
func (f *seeking) holders(out []scheduler.Held) []scheduler.Held {
	for at, h := range f.held {
		out = append(out, scheduler.Held{Hop: kevlard.Hop{Node: at.node, Layers: at.layers}, Positions: h.Positions})
	}
	return out
}

// source returns who has most of what a hop lacks; the zero value if nobody has more.
func (f *seeking) source(h kevlard.Hop, class string, usable func(kevlard.NodeID) bool) session.Source {
	best := session.Source{Mark: f.positions(h.Node, h.Layers)}
	for at, held := range f.held {
		if at.layers != h.Layers || at.node == h.Node || held.Class != class || !usable(at.node) {
			continue
		}
		if held.Positions > best.Mark || held.Positions == best.Mark && best.Node != "" && at.node < best.Node {
			best = session.Source{Node: at.node, Mark: held.Positions}
		}
	}
	if best.Node == "" {
		return session.Source{}
	}
	return best
}

// seek asks who has a part of a new session's prompt, unless it was asked. With wait the
// session has to wait for the answers.
func (m *Machine) seek(now kevlard.Instant, s *session.Machine, out []session.Effect) (f *seeking, wait bool, _ []session.Effect) {
	f = m.seekings[s.ID()]
	if f == nil {
		if len(s.Previous()) > 0 || len(s.Prompt()) < seekTokens {
			return nil, false, out
		}
		f, out = m.ask(now, s, out)
		m.seekings[s.ID()] = f
	}
	if len(f.left) == 0 || now >= f.until {
		return f, false, out
	}
	s.Await(f.until)
	return f, true, out
}

// ask sends a Seek to the nodes that a session could run through.
func (m *Machine) ask(now kevlard.Instant, s *session.Machine, out []session.Effect) (*seeking, []session.Effect) {
	f := &seeking{until: now.Add(m.cfg.Timing.Seek), left: map[kevlard.NodeID]bool{}, held: map[holder]protocol.Holding{}}
	var nodes []kevlard.NodeID
	choice, last := false, -1
	for _, c := range m.candidates(s.Model()) {
		if m.usable(c.Node) {
			choice = choice || c.Layers.Lo == last
			last = c.Layers.Lo
			nodes = append(nodes, c.Node)
		}
	}
	if !choice {
		return f, out
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if len(nodes) > maxSeek {
		slices.SortStableFunc(nodes, func(a, b kevlard.NodeID) int { return cmp.Compare(m.load(a), m.load(b)) })
		nodes = nodes[:maxSeek]
	}
	tokens := s.Prompt()
	ask := protocol.Seek{Session: s.ID(), Model: s.Model(), Salt: s.Salt(), Tokens: tokens[:min(len(tokens), protocol.MaxSeekTokens)]}
	var others []kevlard.NodeID
	for _, n := range nodes {
		if n == m.cfg.Self {
			f.take(n, m.holdings(ask))
			continue
		}
		f.left[n] = true
		others = append(others, n)
	}
	if len(others) > 0 {
		out = append(out, session.SendAll{To: others, Message: ask})
	}
	return f, out
}

func (f *seeking) take(from kevlard.NodeID, a protocol.Sought) {
	delete(f.left, from)
	for _, h := range a.Stages {
		f.held[holder{from, h.Layers}] = h
	}
}

// sought takes an answer; the last one ends the session's waiting.
func (m *Machine) sought(now kevlard.Instant, from kevlard.NodeID, a protocol.Sought, out []Effect) []Effect {
	f := m.seekings[a.Session]
	if f == nil || !f.left[from] {
		return out
	}
	f.take(from, a)
	if p := m.peers[from]; p != nil {
		m.loads(from, p, a.Load) // of now, as this node's own is: routes do not mix pipelines for want of news
	}
	if len(f.left) > 0 {
		return out
	}
	return m.withSession(now, a.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
		s.Hurry(now)
		return e
	})
}

// holdings says what the stages here have of a prompt. The last position is always
// computed.
func (m *Machine) holdings(f protocol.Seek) protocol.Sought {
	a := protocol.Sought{Session: f.Session, Load: m.held()}
	for _, s := range m.stages {
		if s.Key().Model != f.Model {
			continue
		}
		if n, class := s.Holds(f.Salt, f.Tokens); n > 0 {
			a.Stages = append(a.Stages, protocol.Holding{Layers: s.Key().Layers, Class: class, Positions: n})
		}
	}
	return a
}
