package stage

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// What a session computes is kept in this node's block memory under its name, block by
// block as it is finished, and the open block when the session ends or when another
// one waits for it: the next turn, and others that begin alike, load it from there.

// keeping is a piece that was read out of an engine and is not yet in the block memory.
type keeping struct {
	slot *slot
	end  kevlard.Pos
}

// keep sends what is finished and not yet kept to the block memory. It comes after the
// rows for standbys: one export of a session at a time.
func (m *Machine) keep(now kevlard.Instant, s *slot, out []Effect) []Effect {
	if !m.keeps() || m.state != topology.Ready || s.export != nil || s.load != nil || now < m.fullTill {
		return out
	}
	if s.closed && !s.ending || !s.closed && (m.slots[s.id] != s || s.unanswered()) {
		return out // its cells may be another's
	}
	size := m.cfg.Copies.BlockTokens()
	tokens := s.tokens[:s.held]
	if s.kept > s.held || s.kept == 0 {
		s.kept, s.keptName = 0, index.Seed(m.cfg.Key, m.class, s.salt)
	}
	next := func() index.Name { return index.Chain(s.keptName, tokens[s.kept:s.kept+size]) }
	for s.kept+size <= len(tokens) {
		name := next()
		if !m.cfg.Copies.Has(m.cfg.Key, name) {
			break
		}
		if s.stored == s.kept {
			s.stored += size
		}
		s.kept, s.keptName = s.kept+size, name
	}
	from, before := s.kept, s.keptName
	piece := max(size, m.policy().Piece/size*size)
	for s.kept+size <= min(len(tokens), from+piece) {
		s.keptName = next()
		s.kept += size
	}
	to := s.kept
	if end := m.openEnd(s); to < from+piece && to == len(tokens)/size*size && end > max(to, s.keptOpen) {
		if m.cfg.Copies.Held(m.cfg.Key, m.class, s.salt, tokens[:end]) < end {
			to, s.keptOpen = end, end
		} else {
			s.stored = max(s.stored, end)
		}
	}
	if s.wanted <= to {
		s.wanted = 0
	}
	if to == from {
		return out
	}
	t := &transfer{slot: s, from: from, to: to, keep: true}
	s.export = t
	return append(out, Export{m.engine, m.begin(now, t), s.cells.cell + from, "", protocol.Rows{
		Session: s.id, Fence: s.fence, Stage: m.cfg.Key, Class: m.class, CellBytes: m.cellBytes, Pos: from, Tokens: tokens[from:to:to], Before: before,
	}})
}

// Kept tells that the rows of a session before end are in the block memory now, or that
// there was no room for them.
func (m *Machine) Kept(now kevlard.Instant, id kevlard.SessionID, end kevlard.Pos, stored bool, out []Effect) []Effect {
	i := slices.IndexFunc(m.keeping, func(k keeping) bool { return k.slot.id == id && k.end == end })
	if i < 0 {
		return out
	}
	s := m.keeping[i].slot
	m.keeping = slices.Delete(m.keeping, i, i+1)
	if !stored {
		return m.unkept(now, s, out)
	}
	s.stored = max(s.stored, end)
	return m.awake(now, out)
}

// unkept notes that rows of a session were not kept: they are tried again after a pause,
// and nobody waits for them until then.
func (m *Machine) unkept(now kevlard.Instant, s *slot, out []Effect) []Effect {
	s.unkeep()
	m.fullTill = now.Add(awaitPause)
	return m.awake(now, out)
}

// unkeep lets a session look anew for what of it is not kept.
func (s *slot) unkeep() { s.kept, s.keptOpen, s.stored = 0, 0, 0 }

// keeps reports whether what is computed here is kept.
func (m *Machine) keeps() bool { return m.cfg.Keep && m.cfg.Copies != nil && m.cellBytes > 0 }

// openEnd returns how much of a session is to be kept, its open block included.
func (m *Machine) openEnd(s *slot) kevlard.Pos {
	if s.closed {
		return s.held
	}
	return min(s.held, s.wanted)
}

// touch counts what is kept of a session as used now.
func (m *Machine) touch(s *slot) {
	if m.keeps() && m.class != "" {
		m.cfg.Copies.Touch(m.cfg.Key, m.class, s.salt, s.tokens[:min(s.held, len(s.tokens))])
	}
}

// leave and left list the closed sessions whose last rows are being kept.
func (m *Machine) leave(s *slot) {
	if !slices.Contains(m.leaving, s) {
		m.leaving = append(m.leaving, s)
	}
}

func (m *Machine) left(s *slot) {
	m.leaving = slices.DeleteFunc(m.leaving, func(o *slot) bool { return o == s })
}

// Holds returns how many leading positions of tokens are here, in block memory or in
// the cells of a session, now or soon. class is that of the engine.
func (m *Machine) Holds(salt string, tokens []kevlard.Token) (n int, class string) {
	if m.state != topology.Ready || m.released || !m.keeps() {
		return 0, m.class
	}
	n = m.cfg.Copies.Held(m.cfg.Key, m.class, salt, tokens)
	for _, d := range m.slots {
		if d.salt == salt {
			n = max(n, reaches(d.soon(), tokens, n+1))
		}
	}
	for _, d := range m.leaving {
		if d.salt == salt {
			n = max(n, reaches(d.tokens[:d.held], tokens, n+1))
		}
	}
	return n, m.class
}

// soon returns the tokens of the positions that a session's cells hold or will in a
// moment: those known when it was prepared, and what it generated.
func (s *slot) soon() []kevlard.Token {
	if len(s.known) > s.held {
		return s.known
	}
	return s.tokens[:s.held]
}
