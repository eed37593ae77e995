package membership

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
)

// table is the view: what memberlist's callbacks said, plus the dead and the
// left. Its mutex is a leaf: memberlist calls in with its node lock held, so
// nothing here logs, blocks or calls memberlist.
type table struct {
	self    kevlard.NodeID
	peer    string
	boot    kevlard.BootID
	vouch   time.Duration // how long Vouch holds
	changed chan struct{} // capacity 1: signals coalesce
	ended   chan struct{} // capacity 1: a member was lost; read by rejoin
	live    atomic.Int32  // alive members, ourselves included
	revived atomic.Uint64 // boots that came back from the dead: false deaths

	mu       sync.Mutex
	expiring bool // somebody is doomed, and expire will be called
	entries  map[kevlard.NodeID]*entry
	goners   map[bootOf]goneAt
}

type entry struct {
	Member
	retired []kevlard.BootID // earlier boots of this peer under this name, oldest first
	buried  bool             // dead by an inquest, and memberlist has not said so yet
	vouched time.Time        // when this boot was last heard beside gossip
	doomed  time.Time        // since when memberlist calls it dead, while it is vouched for; else zero
}

type bootOf struct {
	name kevlard.NodeID
	boot kevlard.BootID
}

type goneAt struct {
	forced bool
	at     time.Time
}

func newTable(self kevlard.NodeID, m Meta) *table {
	return &table{
		self: self, peer: m.Peer, boot: m.Boot,
		changed: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		entries: make(map[kevlard.NodeID]*entry),
		goners:  make(map[bootOf]goneAt),
	}
}

// signal tells the reader of changed. The mutex is held.
func (t *table) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// admit decides whether an alive message may be believed. It changes nothing:
// memberlist may still drop the message as old.
func (t *table) admit(name kevlard.NodeID, m Meta) error {
	if err := checkName(string(name)); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if name == t.self {
		if m.Peer != t.peer {
			return fmt.Errorf("peer %s claims our name", m.Peer)
		}
		// An older boot of ours must pass: memberlist refutes it with our meta,
		// which is how the ring learns of the restart.
		return nil
	}
	e := t.entries[name]
	switch {
	case e == nil:
		if int(t.live.Load()) >= maxMembers {
			return fmt.Errorf("the ring is full: %d members", maxMembers)
		}
	case e.Meta.Peer != m.Peer && e.State != StateLeft:
		return fmt.Errorf("peer %s claims a name held by peer %s (%s at %s)", m.Peer, e.Meta.Peer, e.State, e.Addr)
	case slices.Contains(e.retired, m.Boot):
		return fmt.Errorf("boot %s was replaced by boot %s", m.Boot, e.Meta.Boot)
	}
	return nil
}

// alive records that memberlist accepted an alive message.
func (t *table) alive(name kevlard.NodeID, addr string, m Meta, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[name]
	if e == nil {
		e = &entry{Member: Member{Name: name}}
		t.entries[name] = e
	}
	if e.State == StateDead && e.Meta.Boot == m.Boot && e.Meta.Peer == m.Peer {
		if e.buried { // an old rumour of it; that it lives would show in a ping
			e.Addr, e.Meta = addr, m
			return
		}
		t.revived.Add(1)
	}
	e.buried, e.doomed = false, time.Time{}
	if old := e.Meta; old.Boot != m.Boot || old.Peer != m.Peer {
		if old.Peer == m.Peer && old.Boot != "" {
			if len(e.retired) == maxRetired {
				e.retired = slices.Delete(e.retired, 0, 1)
			}
			e.retired = append(e.retired, old.Boot)
		} else {
			e.retired = nil
		}
		e.RTT, e.Since, e.vouched = 0, now, time.Time{}
	}
	if e.State != StateAlive {
		e.State, e.Since = StateAlive, now
		t.live.Add(1)
	}
	e.Addr, e.Meta = addr, m
	// Seen alive again, a boot that was forced out counts as present.
	if g, ok := t.goners[bootOf{name, m.Boot}]; ok && g.forced {
		delete(t.goners, bootOf{name, m.Boot})
	}
	t.signal()
}

// lost records that memberlist declared name dead or left; it cannot say which,
// so a goodbye decides: the leaving flag, or a gone message. Where the boot is vouched for,
// it stays alive for now, and doomed is true if nobody calls expire yet.
func (t *table) lost(name kevlard.NodeID, now time.Time) (doomed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[name]
	if e == nil {
		return false
	}
	e.buried = false
	_, left := t.goners[bootOf{name, e.Meta.Boot}]
	switch {
	case e.State != StateAlive:
	case now.Sub(e.vouched) < t.vouch && !left && !e.Meta.Leaving:
		e.doomed = now
		doomed = !t.expiring
		t.expiring = true
		return doomed
	default:
		t.end(e, now)
	}
	return false
}

// expire ends the doomed who are vouched for no longer, or were doomed for mostDoomed, and
// reports whether some are left.
func (t *table) expire(now time.Time) (left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		switch {
		case e.doomed.IsZero():
		case now.Sub(e.vouched) >= t.vouch || now.Sub(e.doomed) >= mostDoomed:
			t.end(e, now)
		default:
			left = true
		}
	}
	t.expiring = left
	return left
}

// attest notes that a boot was heard beside gossip.
func (t *table) attest(name kevlard.NodeID, boot kevlard.BootID, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[name]
	if e == nil || e.Meta.Boot != boot {
		return
	}
	e.vouched = now
	if e.buried && e.State == StateDead {
		t.unbury(e, now)
	}
}

// end makes a member dead, or left. The mutex is held.
func (t *table) end(e *entry, now time.Time) {
	e.State, e.Since, e.RTT, e.doomed = StateDead, now, 0, time.Time{}
	t.live.Add(-1)
	if _, ok := t.goners[bootOf{e.Name, e.Meta.Boot}]; ok || e.Meta.Leaving {
		e.State = StateLeft
	}
	t.signal()
	select {
	case t.ended <- struct{}{}:
	default:
	}
}

// bury makes a boot dead that an inquest found gone, before memberlist does. It reports
// false where the view has moved on.
func (t *table) bury(name kevlard.NodeID, boot kevlard.BootID, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[name]
	if e == nil || name == t.self || e.State != StateAlive || e.Meta.Boot != boot {
		return false
	}
	e.buried = e.doomed.IsZero() // else memberlist has its own verdict, and takes it back itself
	t.end(e, now)
	return true
}

// heard takes a sign of life of a boot ("" from builds that do not name it): the inquest
// that buried it was wrong.
func (t *table) heard(name kevlard.NodeID, boot kevlard.BootID, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[name]
	if e == nil || !e.buried || e.State != StateDead || boot != "" && boot != e.Meta.Boot {
		return
	}
	t.unbury(e, now)
}

// unbury takes back what an inquest found. The mutex is held.
func (t *table) unbury(e *entry, now time.Time) {
	e.buried = false
	e.State, e.Since = StateAlive, now
	t.live.Add(1)
	t.revived.Add(1)
	t.signal()
}

// farewell records a gone message and reports whether it is news.
func (t *table) farewell(g gone, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := bootOf{g.Name, g.Boot}
	if _, known := t.goners[key]; known || g.Age >= tombAge || g.Name == t.self && g.Boot == t.boot {
		return false
	}
	e := t.entries[g.Name]
	same := e != nil && e.Meta.Boot == g.Boot
	if g.Forced && same && e.State == StateAlive {
		// The issuer saw a death that we have not: it comes, or is refuted. If it
		// comes, push/pull brings this message again.
		return false
	}
	if len(t.goners) == maxGone {
		t.dropOldestGone()
	}
	t.goners[key] = goneAt{forced: g.Forced, at: now.Add(-g.Age)}
	if same && !g.Forced && !e.doomed.IsZero() {
		t.end(e, now)
	}
	if same && e.State == StateDead {
		if g.Forced {
			delete(t.entries, g.Name)
		} else {
			e.State, e.Since = StateLeft, now
		}
		t.signal()
	}
	return true
}

func (t *table) dropOldestGone() {
	var oldest bootOf
	var at time.Time
	for k, g := range t.goners {
		if at.IsZero() || g.at.Before(at) {
			oldest, at = k, g.at
		}
	}
	delete(t.goners, oldest)
}

// merge takes over another node's dead and gone. It returns the holder if
// someone else holds our name.
func (t *table) merge(s syncState, now time.Time) (holder *verdict, news []gone) {
	for _, g := range s.Gone {
		if t.farewell(g, now) {
			news = append(news, g)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range s.Tombs {
		if _, left := t.goners[bootOf{b.Name, b.Boot}]; left || b.Age >= tombAge {
			continue
		}
		if b.Name == t.self {
			if b.Peer != t.peer {
				holder = &verdict{From: b.Name, Shows: showsOther, Peer: b.Peer, Addr: b.Addr, State: StateDead}
			}
			continue
		}
		if t.entries[b.Name] != nil || len(t.entries) >= maxMembers+maxTombs {
			continue
		}
		t.entries[b.Name] = &entry{Member: Member{
			Name: b.Name, State: StateDead, Addr: b.Addr, Since: now.Add(-b.Age),
			Meta: Meta{Peer: b.Peer, Boot: b.Boot, Role: RoleHost},
		}}
		t.signal()
	}
	return holder, news
}

// sync returns the newest dead and gone, for a push/pull.
func (t *table) sync(now time.Time) syncState {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s syncState
	for k, g := range t.goners {
		s.Gone = append(s.Gone, gone{Name: k.name, Boot: k.boot, Forced: g.forced, Age: max(0, now.Sub(g.at))})
	}
	for _, e := range t.entries {
		if e.State == StateDead {
			s.Tombs = append(s.Tombs, tomb{
				Name: e.Name, Peer: e.Meta.Peer, Boot: e.Meta.Boot, Addr: e.Addr, Age: max(0, now.Sub(e.Since)),
			})
		}
	}
	slices.SortFunc(s.Gone, func(a, b gone) int { return cmp.Compare(a.Age, b.Age) })
	slices.SortFunc(s.Tombs, func(a, b tomb) int { return cmp.Compare(a.Age, b.Age) })
	s.Gone = s.Gone[:min(len(s.Gone), maxSync)]
	s.Tombs = s.Tombs[:min(len(s.Tombs), maxSync)]
	return s
}

// shows answers a claim.
func (t *table) shows(c claim) verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := verdict{Nonce: c.Nonce, From: t.self}
	e := t.entries[c.Name]
	switch {
	case e == nil || e.State == StateLeft:
		return v
	case e.Meta.Peer != c.Peer:
		v.Shows = showsOther
	case e.Meta.Boot == c.Boot && e.State == StateAlive && e.Addr == c.Addr:
		v.Shows = showsYou
	default:
		v.Shows = showsOld
	}
	v.Peer, v.Addr, v.State = e.Meta.Peer, e.Addr, e.State
	return v
}

// rtt folds one measured round trip into the average (weight 1/8, as TCP does).
func (t *table) rtt(name kevlard.NodeID, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[name]; e != nil && d > 0 {
		if e.RTT == 0 {
			e.RTT = d
		} else {
			e.RTT += (d - e.RTT) / 8
		}
	}
}

// sweep forgets the long dead and, beyond maxTombs, the oldest.
func (t *table) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, g := range t.goners {
		if now.Sub(g.at) >= tombAge {
			delete(t.goners, k)
		}
	}
	var tombs []*entry
	for _, e := range t.entries {
		if e.State == StateDead || e.State == StateLeft {
			tombs = append(tombs, e)
		}
	}
	slices.SortFunc(tombs, func(a, b *entry) int { return b.Since.Compare(a.Since) })
	for i, e := range tombs {
		if i >= maxTombs || now.Sub(e.Since) >= tombAge {
			delete(t.entries, e.Name)
			t.signal()
		}
	}
}

// missing reports whether some member is dead and has not left.
func (t *table) missing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if e.State == StateDead {
			return true
		}
	}
	return false
}

// get returns one member.
func (t *table) get(name kevlard.NodeID) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[name]; e != nil {
		return e.Member, true
	}
	return Member{}, false
}

// each calls f for each member, in any order, with the mutex held: f calls nothing of the
// table and keeps nothing.
func (t *table) each(f func(*Member)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		f(&e.Member)
	}
}

// members returns a copy of the view, sorted by name.
func (t *table) members() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Member, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, e.Member)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
