package plan

import (
	"slices"

	"github.com/kevlard/kevlard"
)

// take changes the state by what happened; advance draws the conclusions.
func (m *Machine) take(now kevlard.Instant, ev Event) {
	switch ev := ev.(type) {
	case Holder:
		m.announced(ev)
	case Gone:
		if h := m.holder(ev.Node); h != nil {
			h.gone = true
			m.forget(ev.Node)
		}
	case Listed:
		m.listed(now, ev)
	case NotListed:
		m.notListed(now, ev)
	case Compared:
		m.compared(ev)
	case Stored:
		m.stored(ev)
	case Wrong:
		if r, h := m.end(ev.Request); h != nil {
			m.fail(now, h)
			if h.wrong++; h.wrong >= m.cfg.MaxWrong {
				m.drop(h, r.unit, true)
			}
		}
	case Failed:
		if r, h := m.end(ev.Request); h != nil {
			if ev.Absent {
				m.absent(h, r.unit)
			} else {
				m.failed(now, h, r.unit)
			}
		}
	case Checked:
		m.checked(ev)
	case Wake:
	}
}

func (m *Machine) announced(ev Holder) {
	h := m.holder(ev.Node)
	if h == nil {
		h = &holder{node: ev.Node}
		i, _ := slices.BinarySearchFunc(m.holders, h, func(a, b *holder) int { return compareNodes(a.node, b.node) })
		m.holders = slices.Insert(m.holders, i, h)
	}
	if h.gone && h.wrong < m.cfg.MaxWrong {
		h.dropped, h.fails, h.rest = false, 0, 0 // it comes anew
	}
	h.gone, h.rank, h.units = false, ev.Rank, slices.Clone(ev.Units)
}

func (m *Machine) listed(now kevlard.Instant, ev Listed) {
	u := &m.units[ev.Unit]
	i := slices.IndexFunc(u.lists, func(a answer) bool { return a.node == ev.Node && !a.came })
	h := m.holder(ev.Node)
	if i < 0 || h == nil {
		return
	}
	u.lists[i].came, u.lists[i].list = true, ev.List
	h.fails = 0
	if u.first == 0 {
		u.first = now
	}
}

func (m *Machine) notListed(now kevlard.Instant, ev NotListed) {
	u := &m.units[ev.Unit]
	i := slices.IndexFunc(u.lists, func(a answer) bool { return a.node == ev.Node && !a.came })
	h := m.holder(ev.Node)
	if i < 0 || h == nil {
		return
	}
	u.lists = slices.Delete(u.lists, i, i+1)
	if ev.Absent {
		m.absent(h, ev.Unit)
	} else {
		m.failed(now, h, ev.Unit)
	}
}

func (m *Machine) compared(ev Compared) {
	u := &m.units[ev.Unit]
	if u.state != comparing {
		return
	}
	u.left, u.next = 0, 0
	for i := range u.have {
		u.have[i] = i < len(ev.Have) && ev.Have[i]
		if !u.have[i] {
			u.left++
		}
	}
	u.state = fetching
}

func (m *Machine) stored(ev Stored) {
	r, h := m.end(ev.Request)
	if h == nil {
		return
	}
	h.fails, h.rest = 0, 0
	u := &m.units[r.unit]
	if u.have[r.chunk] {
		return
	}
	u.have[r.chunk] = true
	u.left--
	for _, twin := range slices.Clone(m.requests) {
		if twin.unit == r.unit && twin.chunk == r.chunk {
			m.cancel(twin.id)
		}
	}
}

func (m *Machine) checked(ev Checked) {
	u := &m.units[ev.Unit]
	if u.state != checking {
		return
	}
	switch {
	case ev.OK:
		u.state, u.orphan = done, 0
		for _, a := range slices.Clone(u.lists) {
			if h := m.holder(a.node); h != nil && a.came && a.list != u.list {
				m.drop(h, ev.Unit, true)
			}
		}
		u.lists = nil
	case len(ev.Damaged) > 0:
		if u.rounds++; u.rounds > m.cfg.MaxRounds {
			m.giveUp(GaveUp{Damaged: []int{ev.Unit}})
			return
		}
		for _, c := range ev.Damaged {
			if u.have[c] {
				u.have[c] = false
				u.left++
			}
		}
		u.next, u.state = 0, fetching
	default:
		wrong := u.list
		for _, a := range slices.Clone(u.lists) {
			if h := m.holder(a.node); h != nil && a.came && a.list == wrong {
				m.drop(h, ev.Unit, true)
			}
		}
		// What does not match the next list is fetched again.
		u.lists = slices.DeleteFunc(u.lists, func(a answer) bool { return a.came && a.list == wrong })
		m.askAgain(ev.Unit)
	}
}

// askAgain lets another list be chosen.
func (m *Machine) askAgain(n int) {
	u := &m.units[n]
	for _, r := range slices.Clone(m.requests) {
		if r.unit == n {
			m.cancel(r.id)
		}
	}
	u.state = asking
	clear(u.have)
	u.left, u.next = len(u.have), 0
}

// end takes a request out. The holder is nil if there is no such request.
func (m *Machine) end(id uint64) (request, *holder) {
	i := slices.IndexFunc(m.requests, func(r request) bool { return r.id == id })
	if i < 0 {
		return request{}, nil
	}
	r := m.requests[i]
	m.requests = slices.Delete(m.requests, i, i+1)
	u := &m.units[r.unit]
	u.flying[r.chunk]--
	u.next = min(u.next, r.chunk)
	h := m.holder(r.node)
	h.flying--
	return r, h
}

func (m *Machine) cancel(id uint64) {
	if _, h := m.end(id); h != nil {
		m.emit(Cancel{id})
	}
}

// forget ends everything that is awaited of a node, and its lists.
func (m *Machine) forget(n kevlard.NodeID) {
	for _, r := range slices.Clone(m.requests) {
		if r.node == n {
			m.cancel(r.id)
		}
	}
	for i := range m.units {
		u := &m.units[i]
		u.lists = slices.DeleteFunc(u.lists, func(a answer) bool { return a.node == n })
	}
}

// absent notes that a holder no longer has a unit.
func (m *Machine) absent(h *holder, n int) {
	h.units[n] = false
	u := &m.units[n]
	u.lists = slices.DeleteFunc(u.lists, func(a answer) bool { return a.node == h.node })
}

// fail leaves a holder alone for a while.
func (m *Machine) fail(now kevlard.Instant, h *holder) {
	wait := m.cfg.BackoffMax
	if h.fails < 16 {
		wait = min(m.cfg.BackoffMin<<h.fails, wait)
	}
	h.fails++
	h.rest = now.Add(wait)
}

func (m *Machine) failed(now kevlard.Instant, h *holder, unit int) {
	if m.fail(now, h); h.fails >= m.cfg.MaxFails {
		m.drop(h, unit, false)
	}
}

func (m *Machine) drop(h *holder, unit int, wrong bool) {
	if h.dropped {
		return
	}
	h.dropped = true
	if wrong {
		h.wrong = max(h.wrong, m.cfg.MaxWrong) // for good
	}
	m.emit(Dropped{h.node, unit, wrong})
	m.forget(h.node)
}

func (m *Machine) giveUp(e GaveUp) {
	m.over = true
	m.requests = nil
	m.emit(e)
}
