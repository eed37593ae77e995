package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
)

func compareNodes(a, b kevlard.NodeID) int { return strings.Compare(string(a), string(b)) }

// expire ends what took too long.
func (m *Machine) expire(now kevlard.Instant) {
	for _, r := range slices.Clone(m.requests) {
		if now < r.at.Add(m.cfg.ChunkTimeout) {
			continue
		}
		h := m.holder(r.node)
		m.cancel(r.id)
		m.failed(now, h, r.unit)
	}
	for i := range m.units {
		for _, a := range slices.Clone(m.units[i].lists) {
			if !a.came && now >= a.due {
				m.notListed(now, NotListed{Node: a.node, Unit: i})
			}
		}
	}
}

// advance does all that can be done now.
func (m *Machine) advance(now kevlard.Instant) {
	if m.over {
		return
	}
	open, all := 0, true
	for i := range m.units {
		u := &m.units[i]
		if u.state == done {
			continue
		}
		all = false
		m.orphaned(now, i)
		if open++; open > m.cfg.Open {
			continue
		}
		if u.state == waiting {
			u.state = asking
		}
		m.askLists(now, i)
		m.unit(now, i)
	}
	if all {
		m.over = true
		m.emit(Done{})
		return
	}
	m.assign(now)
	var missing []int
	due := false
	for i := range m.units {
		if at := m.units[i].orphan; at != 0 {
			missing = append(missing, i)
			due = due || now >= at.Add(m.cfg.NoHolder)
		}
	}
	if due {
		m.giveUp(GaveUp{Missing: missing})
	}
}

// orphaned notes since when nobody has a unit. One that is on disk needs nobody, but
// that shows only by a list.
func (m *Machine) orphaned(now kevlard.Instant, n int) {
	u := &m.units[n]
	switch {
	case u.state == checking || slices.ContainsFunc(m.holders, func(h *holder) bool { return h.has(n) }):
		u.orphan = 0
	case u.orphan == 0:
		u.orphan = now
	}
}

// askLists asks as many holders for their list as may be sources.
func (m *Machine) askLists(now kevlard.Instant, n int) {
	u := &m.units[n]
	if u.state != asking && u.state != comparing && u.state != fetching {
		return
	}
	var free []*holder
	for _, h := range m.holders {
		if h.has(n) && now >= h.rest && !slices.ContainsFunc(u.lists, func(a answer) bool { return a.node == h.node }) {
			free = append(free, h)
		}
	}
	slices.SortFunc(free, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(a.fails, b.fails), cmp.Compare(a.rank, b.rank), compareNodes(a.node, b.node))
	})
	for _, h := range free {
		if len(u.lists) >= m.cfg.Sources {
			return
		}
		u.lists = append(u.lists, answer{node: h.node, due: now.Add(m.cfg.ListTimeout + time.Duration(len(u.have))*m.cfg.ListChunk)})
		m.emit(AskList{h.node, n})
	}
}

// unit moves one unit on as far as it goes.
func (m *Machine) unit(now kevlard.Instant, n int) {
	u := &m.units[n]
	if u.state == fetching && u.left > 0 && !slices.ContainsFunc(m.holders, func(h *holder) bool { return m.source(n, h) }) {
		m.askAgain(n)
	}
	if u.state == asking {
		list, ok := m.choose(now, n)
		if !ok {
			return
		}
		u.list, u.state = list, comparing
		m.emit(Compare{n, list})
	}
	if u.state == fetching && u.left == 0 {
		u.state = checking
		m.emit(Check{n, u.list})
	}
}

// choose returns the list that most gave, when all who were asked have answered or
// ListWait is over.
func (m *Machine) choose(now kevlard.Instant, n int) (best kevlard.Digest, ok bool) {
	u := &m.units[n]
	count := map[kevlard.Digest]int{}
	for _, a := range u.lists {
		if !a.came && (u.first == 0 || now < u.first.Add(m.cfg.ListWait)) {
			return best, false
		}
		if a.came {
			count[a.list]++
		}
	}
	for _, a := range u.lists {
		if a.came && (!ok || cmp.Or(cmp.Compare(count[a.list], count[best]), slices.Compare(best[:], a.list[:])) > 0) {
			best, ok = a.list, true
		}
	}
	return best, ok
}

// assign asks for chunks, the first first, and if none is left for those that take long
// once more.
func (m *Machine) assign(now kevlard.Instant) {
	rest := false // there is work that nobody has room for
	for i := range m.units {
		u := &m.units[i]
		if u.state != fetching {
			continue
		}
		for c := u.next; c < len(u.have); c++ {
			if !u.have[c] && u.flying[c] == 0 {
				h := m.pick(now, i, "")
				if h == nil {
					rest = true
					break
				}
				m.ask(now, h, i, c)
			}
			if c == u.next {
				u.next++
			}
		}
	}
	if rest {
		return
	}
	for _, r := range slices.Clone(m.requests) {
		if now < r.at.Add(m.cfg.SlowAfter) {
			return // the rest is younger
		}
		if m.units[r.unit].flying[r.chunk] > 1 {
			continue
		}
		if h := m.pick(now, r.unit, r.node); h != nil {
			m.ask(now, h, r.unit, r.chunk)
		}
	}
}

// pick returns the source with the fewest requests under way, and a place for one more.
func (m *Machine) pick(now kevlard.Instant, n int, but kevlard.NodeID) (best *holder) {
	if len(m.requests) >= m.cfg.Total {
		return nil
	}
	for _, h := range m.holders {
		if h.node == but || now < h.rest || h.flying >= m.cfg.PerHolder || !m.source(n, h) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(h.flying, best.flying), cmp.Compare(h.rank, best.rank)) < 0 {
			best = h
		}
	}
	return best
}

func (m *Machine) ask(now kevlard.Instant, h *holder, n, chunk int) {
	m.number++
	m.requests = append(m.requests, request{id: m.number, node: h.node, unit: n, chunk: chunk, at: now})
	m.units[n].flying[chunk]++
	h.flying++
	m.emit(Ask{m.number, h.node, n, chunk, m.units[n].list})
}

// Deadline reports when Step must be called with Wake if nothing else happens first.
func (m *Machine) Deadline(now kevlard.Instant) kevlard.Instant {
	due := kevlard.Never
	if m.over {
		return due
	}
	soon := func(at kevlard.Instant) {
		if at > now {
			due = min(due, at)
		}
	}
	for i, r := range m.requests {
		due = min(due, r.at.Add(m.cfg.ChunkTimeout))
		if i < m.cfg.Total {
			soon(r.at.Add(m.cfg.SlowAfter))
		}
	}
	for i := range m.units {
		u := &m.units[i]
		if u.orphan != 0 {
			due = min(due, u.orphan.Add(m.cfg.NoHolder))
		}
		for _, a := range u.lists {
			if !a.came {
				due = min(due, a.due)
			}
		}
		if u.state == asking && u.first != 0 {
			soon(u.first.Add(m.cfg.ListWait))
		}
	}
	for _, h := range m.holders {
		if !h.gone && !h.dropped {
			soon(h.rest)
		}
	}
	return due
}
