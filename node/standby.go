package node

import (
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/topology"
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
		for j, old := range s.CopiedRoute() {
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
	if n := scheduler.Standby(m.view, m.candidates(s.Model()), r, hop, class, fit, m.load); n != "" {
		return n
	}
	return scheduler.Keeper(m.view, r, hop, fit, m.load)
}

// sources names, for each hop of a new route, who has a copy that the hop may lack.
func (m *Machine) sources(s *session.Machine, f *seeking, r kevlard.Route, class string) []session.Source {
	out := make([]session.Source, len(r))
	for i, h := range r {
		out[i] = s.BestCopy(h.Layers, func(n kevlard.NodeID) bool { return n != h.Node && m.usable(n) })
		if out[i].Node == "" && f != nil && len(s.Previous()) == 0 {
			out[i] = f.source(h, class, m.usable)
		}
	}
	return out
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
		m.sessions[id].HurryStandby()
		out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect { return m.upgrade(now, s, e) })
	}
	return out
}

// upgrade replaces keepers by nodes that could go on from their copies.
func (m *Machine) upgrade(now kevlard.Instant, s *session.Machine, out []session.Effect) []session.Effect {
	if s.State() != session.Prefill && s.State() != session.Decode {
		return out
	}
	all := m.candidates(s.Model())
	for i, h := range s.Route() {
		present := s.Standbys()[i]
		same := func(c topology.Candidate) bool { return c.Node == present && c.Layers == h.Layers }
		if present == "" || slices.ContainsFunc(all, same) {
			continue
		}
		fit := func(n kevlard.NodeID) bool { return m.usable(n) && !s.Avoids(now, n) && !s.Unfit(now, n) }
		if n := scheduler.Standby(m.view, all, s.Route(), i, s.RouteClass(), fit, m.load); n != "" {
			out = s.SetStandby(now, i, n, out)
		}
	}
	return out
}

// offer answers a stage that wants a copy kept here.
func (m *Machine) offer(now kevlard.Instant, from kevlard.NodeID, o protocol.Offer) protocol.Stored {
	if !m.believed(from) {
		return protocol.Stored{Session: o.Session, Fence: o.Fence, Stage: o.Stage, Refusal: protocol.RefusedNoStage, Detail: "what the sender computes is disputed"}
	}
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
	out = m.heard(now, ev.From, out)
	if ev.From == m.cfg.Self {
		return m.keepRows(now, ev, out)
	}
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

// keepRows gives rows that a stage here computed their places.
func (m *Machine) keepRows(now kevlard.Instant, ev RowsArrived, out []Effect) []Effect {
	if runs := m.copies.Keep(ev.Piece, ev.Rows); runs != nil {
		m.keeps[ev.Piece] = keep{ev.Rows.Stage, ev.Rows.Session, ev.Rows.End()}
		return append(out, StoreRows{ev.Rows.Stage, ev.Piece, runs})
	}
	return m.kept(now, keep{ev.Rows.Stage, ev.Rows.Session, ev.Rows.End()}, false, append(out, DropRows{ev.Piece}))
}

// keep names rows of a stage here on their way to the block memory.
type keep struct {
	stage   kevlard.StageKey
	session kevlard.SessionID
	end     kevlard.Pos
}

// kept tells a stage what became of its rows.
func (m *Machine) kept(now kevlard.Instant, k keep, stored bool, out []Effect) []Effect {
	for i, s := range m.stages {
		if s.Key() == k.stage {
			out = m.fromStage(now, i, s.Kept(now, k.session, k.end, stored, nil), out)
		}
	}
	return out
}

func (m *Machine) rowsStored(now kevlard.Instant, ev RowsStored, out []Effect) []Effect {
	var a *index.Answer
	if ev.Failed != "" {
		a = m.copies.Unstored(ev.Piece, ev.Failed)
	} else {
		a = m.copies.Stored(now, ev.Piece)
	}
	if k, own := m.keeps[ev.Piece]; own {
		delete(m.keeps, ev.Piece)
		return m.kept(now, k, ev.Failed == "", out)
	}
	if a == nil {
		return out
	}
	out = append(out, Send{a.To, a.Message})
	return m.grown(now, a.Message.Stage, a.Message.Session, out)
}

// standbyGone tells the stages that a node takes no more rows.
func (m *Machine) standbyGone(now kevlard.Instant, n kevlard.NodeID, out []Effect) []Effect {
	for i, s := range m.stages {
		out = m.fromStage(now, i, s.StandbyGone(n, "", "unreachable", nil), out)
		out = m.fromStage(now, i, s.SourceGone(now, n, nil), out)
	}
	return out
}

// fetch sends what is kept of a session here to the node that takes over its stage.
func (m *Machine) fetch(now kevlard.Instant, from kevlard.NodeID, f protocol.Fetch, out []Effect) []Effect {
	refuse := func(why protocol.Refusal, detail string) []Effect {
		return append(out, Send{from, protocol.Fetched{Session: f.Session, Fence: f.Fence, Stage: f.Stage, Through: f.From, Refusal: why, Detail: detail}})
	}
	if len(m.fetches) >= m.cfg.Limits.Fetches {
		return refuse(protocol.RefusedCapacity, fmt.Sprintf("%d pieces are being sent, the most at once", len(m.fetches)))
	}
	cell := m.copies.CellBytes(f.Stage)
	rest := m.copies.Pin(f.Stage, f.Class, f.Salt, f.Session, f.Tokens, f.From)
	if cell == 0 || rest.N <= f.From {
		return refuse(protocol.RefusedUnknown, fmt.Sprintf("nothing is kept from position %d on", f.From))
	}
	out = append(out, Send{from, protocol.Fetched{Session: f.Session, Fence: f.Fence, Stage: f.Stage, Through: rest.N}})
	size := m.copies.BlockTokens()
	piece := max(size, min(protocol.MaxRowsTokens, fetchPiece/cell)/size*size) // whole blocks are found by their names
	for at := f.From; len(rest.Runs) > 0; {
		var pinned index.Pinned
		pinned, rest = rest.Split(at/size*size + piece - at)
		m.fetched++
		m.fetches[m.fetched] = pinned
		out = append(out, SendStored{m.fetched, from, f.Stage, pinned.Runs, protocol.Rows{
			Session: f.Session, Fence: f.Fence, Stage: f.Stage, Class: f.Class, CellBytes: cell, Pos: at, Tokens: f.Tokens[at:pinned.N], Try: f.Try,
		}})
		at = pinned.N
	}
	return out
}

// fetchPiece is the bytes of one piece of a copy that is sent to who takes over.
const fetchPiece = 1 << 20

func (m *Machine) storedSent(ev StoredSent) {
	if p, ok := m.fetches[ev.ID]; ok {
		delete(m.fetches, ev.ID)
		m.copies.Unpin(p, ev.N, ev.Damaged)
	}
}

// storedUnsent tells who waits for stored rows that no more come.
func (m *Machine) storedUnsent(ev StoredUnsent, out []Effect) []Effect {
	if !m.connected(ev.To) {
		return out // it knows
	}
	why := protocol.RefusedLink
	if ev.Damaged {
		why = protocol.RefusedUnknown
	}
	return append(out, Send{ev.To, protocol.Fetched{
		Session: ev.Session, Fence: ev.Fence, Stage: ev.Stage, Through: ev.From, Refusal: why, Detail: ev.Cause,
	}})
}

// grown tells the stage that more is stored of a session: it may wait for that, and
// its engine's copy is brought up to date, if copies are to be hot.
func (m *Machine) grown(now kevlard.Instant, key kevlard.StageKey, id kevlard.SessionID, out []Effect) []Effect {
	for i, s := range m.stages {
		if s.Key() != key {
			continue
		}
		out = m.fromStage(now, i, s.Grown(now, id, nil), out)
		if m.cfg.KV.Hot {
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
