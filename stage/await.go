package stage

import (
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Sessions that begin alike compute it once: a prepare waits for another session here,
// the donor, as long as that really gets on.
//
// What a donor has computed is in the block memory a moment later, at every stage, and
// nothing else has to happen for that. What it has still to compute depends on other
// stages, and two sessions that waited for each other at two stages would do so for ever.
// So an owner makes its prepares wait for that (Prepare.Await) at one stage after the
// other. Who waits at one waits for a session that has passed it and waits, if at all, at
// a later one; that chain has an end, which computes. Sessions that were only asked for
// room yet come last, and are not waited for long: they may wait anywhere.

// awaiting is a prepare that waits.
type awaiting struct {
	msg   protocol.Prepare
	since kevlard.Instant
	word  kevlard.Instant // when to tell the owner again
	until kevlard.Instant // when to go on with what is there

	donor *slot
	order uint64          // of the donor's prepare
	reach kevlard.Pos     // how much of the prompt the donor has, or will have
	got   int             // how far it is with that
	moved kevlard.Instant // when got last grew, or the donor was chosen
}

const (
	// awaitWorth is how many positions that are still being computed are worth waiting
	// for.
	awaitWorth = 32
	// awaitPause is how long nobody waits for other sessions after there was no room for
	// what one of them computed, and nothing is kept.
	awaitPause = time.Second
	// awaitShare is how much longer than this engine needs for a prompt's rows alone a
	// session waits for them in all, while the donor gets on: they share the engine with
	// those of other sessions, and pass through the other stages as well.
	awaitShare = 16
	// awaitGaps times the longest pause that the donor has made so far it may pause.
	awaitGaps = 3
	// awaitWord is how often the owner is told: well within its patience.
	awaitWord = 250 * time.Millisecond
)

// donor finds the session here that has the most of a session's tokens beyond those that
// are in the block memory, or will have them soon. reach is how much that is, stored how
// much is in the memory.
func (m *Machine) donor(s *slot, p protocol.Prepare) (best *slot, reach, stored kevlard.Pos) {
	tokens := p.Tokens[:len(p.Tokens)-1]
	stored = max(s.held, m.cfg.Copies.Held(m.cfg.Key, m.class, p.Salt, tokens))
	reach = stored
	soon := tokens[:min(p.Await, len(tokens))]
	consider := func(d *slot) {
		if d == s || d.salt != p.Salt || d.await != nil || d.parked != nil {
			return
		}
		least := reach + 1
		if best != nil && d.before(best) {
			least = reach
		}
		k := reaches(d.tokens[:d.computed()], tokens, least)
		if !d.closed {
			k = max(k, reaches(d.soon(), soon, max(least, stored+awaitWorth)))
		}
		if k >= least {
			best, reach = d, k
		}
	}
	for _, d := range m.slots {
		consider(d)
	}
	for _, d := range m.leaving {
		consider(d)
	}
	for _, k := range m.keeping {
		consider(k.slot)
	}
	return best, reach, stored
}

// before orders donors that are of equal use.
func (s *slot) before(o *slot) bool {
	if s.started != o.started {
		return s.started
	}
	if (s.awaited > 0) != (o.awaited > 0) {
		return s.awaited > 0
	}
	return s.order < o.order
}

// computed returns how many positions in a session's cells others can have.
func (s *slot) computed() kevlard.Pos {
	if s.started || s.closed {
		return min(s.held, len(s.tokens))
	}
	return 0
}

// reaches returns how many leading tokens two lists have in common, 0 if these are less
// than least. Most sessions that begin alike go on differently, so it looks there first.
func reaches(have, tokens []kevlard.Token, least int) int {
	if len(have) < least || len(tokens) < least || least > 0 && have[least-1] != tokens[least-1] {
		return 0
	}
	if n := commonPrefix(have, tokens); n >= least {
		return n
	}
	return 0
}

// gives reports whether a waiting session can still have something from its donor.
func (m *Machine) gives(a *awaiting) bool {
	d := a.donor
	switch {
	case d == nil || d.order != a.order || d.stored >= a.reach:
		return false
	case !d.closed:
		return d.await == nil && d.parked == nil && m.slots[d.id] == d
	}
	return slices.Contains(m.leaving, d) || slices.ContainsFunc(m.keeping, func(k keeping) bool { return k.slot == d })
}

// awaits makes a prepare wait if another session has more than the block memory.
func (m *Machine) awaits(now kevlard.Instant, s *slot, p protocol.Prepare, o outlook) bool {
	if !m.keeps() || p.Recovery || p.Solo || now < m.fullTill {
		return false
	}
	a := s.await
	if a == nil {
		a = &awaiting{msg: p, since: now, word: now.Add(awaitWord)}
	}
	if !m.gives(a) {
		d, reach, stored := m.donor(s, p)
		if d == nil {
			return false
		}
		if min(d.stored, reach) > stored { // it was evicted since
			if a.donor == d && a.order == d.order {
				return false // there is no room for it
			}
			d.unkeep()
		}
		a.donor, a.order, a.reach, a.got, a.moved = d, d.order, reach, 0, now
	}
	d := a.donor
	if !d.closed {
		d.wanted = max(d.wanted, min(a.reach, d.computed()))
	}
	if got := min(a.reach, d.computed()) + min(a.reach, d.stored); got > a.got {
		a.got, a.moved = got, now
	}
	if a.until = m.patience(a, o); now >= a.until {
		return false
	}
	if s.await == nil {
		s.await = a
		m.waiting = append(m.waiting, s)
	}
	return true
}

// patience returns until when a session waits for its donor. One that is to start does so
// within its owner's patience with the other stages, or leaves. One that has started
// computes behind what is queued here, with the pauses that it makes: it waits for other
// stages too. In all it is as long as the prompt may take.
func (m *Machine) patience(a *awaiting, o outlook) kevlard.Instant {
	d := a.donor
	pause := max(m.cfg.Timing.Await, awaitGaps*d.gap) + o.queue
	if a.reach > d.computed() && !d.started && d.awaited > 0 {
		pause = m.cfg.Timing.Start
	}
	most := m.cfg.Timing.Start + m.cfg.Timing.Await + awaitShare*m.expect(len(a.msg.Tokens), o.batch)
	return min(a.moved.Add(pause), a.since.Add(most))
}

// outlook is what the engine will probably do; the same for all that wait.
type outlook struct {
	batch int           // rows of its batches
	queue time.Duration // until it has done what waits and what it works on
}

func (m *Machine) outlook() outlook {
	o := outlook{batch: min(m.cfg.Limits.BatchRows, m.pace.rows(m.batchTime()))}
	rows := m.QueuedRows()
	if m.batch != nil {
		rows += m.batch.rows
	}
	o.queue = m.expect(rows, o.batch)
	return o
}

// expect returns how long so many rows will probably take this engine.
func (m *Machine) expect(rows, batch int) time.Duration {
	d := time.Duration(rows)*m.pace.row + time.Duration((rows+batch-1)/batch)*m.pace.fixed
	if m.pace.lessons < warmUp { // nothing is known of this engine yet
		d = max(d, time.Duration(rows)*warmUpRow)
	}
	return d
}

// urge keeps what others wait for.
func (m *Machine) urge(now kevlard.Instant, out []Effect) []Effect {
	for _, s := range m.waiting {
		if d := s.await.donor; d.wanted > 0 {
			out = m.keep(now, d, out)
		}
	}
	return out
}

// awake looks again at the prepares that wait for other sessions.
func (m *Machine) awake(now kevlard.Instant, out []Effect) []Effect {
	if len(m.waiting) == 0 {
		return out
	}
	o := m.outlook()
	for _, s := range slices.Clone(m.waiting) {
		if s.await != nil && !m.awaits(now, s, s.await.msg, o) {
			out = m.endAwait(now, s, out)
		}
	}
	return m.urge(now, out)
}

// overdueAwait goes on with what is there, or tells the owner that it waits.
func (m *Machine) overdueAwait(now kevlard.Instant, s *slot, out []Effect) []Effect {
	a := s.await
	switch {
	case a == nil:
		return out
	case now >= a.until:
		return m.endAwait(now, s, out)
	case now >= a.word:
		a.word = now.Add(awaitWord)
		return append(out, Reply{s.owner, protocol.Prepared{Session: s.id, Fence: s.fence, Lo: m.cfg.Key.Layers.Lo, Waits: true}})
	}
	return out
}

func (m *Machine) endAwait(now kevlard.Instant, s *slot, out []Effect) []Effect {
	p := s.await.msg
	m.unwait(s)
	return m.resume(now, s, p, out)
}

// unwait forgets that a session waits.
func (m *Machine) unwait(s *slot) {
	if s.await != nil {
		s.await = nil
		m.waiting = slices.DeleteFunc(m.waiting, func(o *slot) bool { return o == s })
	}
}
