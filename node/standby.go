package node

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/session"
)

// standbys chooses the standby of each hop of a new route; one that has a copy
// keeps its part.
func (m *Machine) standbys(now kevlard.Instant, s *session.Machine, r kevlard.Route, class string) []kevlard.NodeID {
	out := make([]kevlard.NodeID, len(r))
	if m.cfg.Standbys == 0 {
		return out
	}
	before := s.Standbys()
	for i, h := range r {
		for j, old := range s.Previous() {
			if j < len(before) && old == h && before[j] != "" && before[j] != h.Node && m.usable(before[j]) && !s.Avoids(now, before[j]) {
				out[i] = before[j]
			}
		}
		if out[i] == "" {
			out[i] = m.standby(now, s, r, i, class)
		}
	}
	return out
}

// standby chooses the standby of one hop.
func (m *Machine) standby(now kevlard.Instant, s *session.Machine, r kevlard.Route, hop int, class string) kevlard.NodeID {
	fit := func(n kevlard.NodeID) bool { return m.usable(n) && !s.Avoids(now, n) && !s.Unfit(now, n) }
	return scheduler.Standby(m.view, m.view.Candidates(s.Model()), r, hop, class, fit, m.load)
}

// findStandbys gives a session the standbys that it lacks.
func (m *Machine) findStandbys(now kevlard.Instant, s *session.Machine, out []session.Effect) []session.Effect {
	if m.cfg.Standbys == 0 {
		return out
	}
	for {
		hop := s.WantsStandby(now)
		if hop < 0 {
			return out
		}
		n := m.standby(now, s, s.Route(), hop, s.RouteClass())
		out = s.SetStandby(now, hop, n, out)
	}
}

// hurryStandbys looks for missing standbys: a node has come.
func (m *Machine) hurryStandbys(now kevlard.Instant, out []Effect) []Effect {
	if m.cfg.Standbys == 0 {
		return out
	}
	for _, id := range m.sortedSessions() {
		m.sessions[id].HurryStandby(now)
		if m.sessions[id].WantsStandby(now) >= 0 {
			out = m.withSession(now, id, out, func(_ *session.Machine, e []session.Effect) []session.Effect { return e })
		}
	}
	return out
}

// offer answers a stage that wants a copy kept here.
func (m *Machine) offer(now kevlard.Instant, from kevlard.NodeID, o protocol.Offer) protocol.Stored {
	for _, s := range m.stages {
		if s.Key() != o.Stage {
			continue
		}
		if a := s.Advertise(); a.Class != "" && a.Class != o.Class {
			return protocol.Stored{
				Session: o.Session, Fence: o.Fence, Stage: o.Stage, Refusal: protocol.RefusedNoStage,
				Detail: fmt.Sprintf("numerics class %s at the sender, %s here", o.Class, a.Class),
			}
		}
		if n := s.CellBytes(); n > 0 && n != o.CellBytes {
			return protocol.Stored{
				Session: o.Session, Fence: o.Fence, Stage: o.Stage, Refusal: protocol.RefusedNoStage,
				Detail: fmt.Sprintf("one position takes %d bytes at the sender and %d here", o.CellBytes, n),
			}
		}
	}
	return m.copies.Offer(now, from, o)
}

func (m *Machine) rowsArrived(now kevlard.Instant, ev RowsArrived, out []Effect) []Effect {
	m.heard(now, ev.From)
	runs, answer := m.copies.Arrived(now, ev.From, ev.Piece, ev.Rows, ev.Intact)
	if runs != nil {
		out = append(out, StoreRows{ev.Rows.Stage, ev.Piece, runs})
	} else {
		out = append(out, DropRows{ev.Piece})
	}
	if answer != nil {
		out = append(out, Send{answer.To, answer.Message})
	}
	return out
}

// standbyGone tells the stages that a node takes no more rows.
func (m *Machine) standbyGone(now kevlard.Instant, n kevlard.NodeID, out []Effect) []Effect {
	for i, s := range m.stages {
		out = m.fromStage(now, i, s.StandbyGone(n, "", "unreachable", nil), out)
	}
	return out
}

// warm brings the engine's copy of a session up to date, if copies are to be hot.
func (m *Machine) warm(now kevlard.Instant, key kevlard.StageKey, id kevlard.SessionID, out []Effect) []Effect {
	if !m.cfg.KV.Hot {
		return out
	}
	for i, s := range m.stages {
		if s.Key() == key {
			out = m.fromStage(now, i, s.Warm(now, id, nil), out)
		}
	}
	return out
}

// cool gives up the engines' copies of what is kept no more.
func (m *Machine) cool() {
	for _, g := range m.copies.TakeGone() {
		for _, s := range m.stages {
			if s.Key() == g.Stage {
				s.Cool(g.Session)
			}
		}
	}
}
