package witness

import (
	"slices"

	"github.com/kevlard/kevlard/protocol"
)

// Guard is the owner's side of one epoch: what its witnesses have acknowledged.
type Guard struct {
	epoch     uint64
	witnesses protocol.Witnesses
	acks      []ack
	needed    uint64 // version whose acknowledgement opens
	open      bool
	committed int
	newer     uint64
}

// ack is what one witness has of this epoch.
type ack struct {
	from    protocol.Life
	version uint64
	through int
}

// NewGuard returns the guard of an epoch whose witnesses know nothing of it yet.
func NewGuard(epoch uint64, w protocol.Witnesses) Guard {
	return Guard{epoch: epoch, witnesses: w, needed: w.Version}
}

// Witnesses returns the list that goes into the next record.
func (g *Guard) Witnesses() protocol.Witnesses { return g.witnesses }

// Open reports whether enough witnesses have the record: something may be shown.
func (g *Guard) Open() bool { return g.open }

// Committed returns how many generated tokens every later owner will have.
func (g *Guard) Committed() int { return g.committed }

// Newer returns the epoch that superseded this one, 0 if none is known.
func (g *Guard) Newer() uint64 { return g.newer }

// Acked returns what a witness has acknowledged: the version of its list (0: no
// record of this epoch) and how many generated tokens.
func (g *Guard) Acked(l protocol.Life) (version uint64, through int) {
	for _, a := range g.acks {
		if a.from == l {
			return a.version, a.through
		}
	}
	return 0, 0
}

// Settled reports whether no replacement of witnesses is under way and the present
// ones have acknowledged their list.
func (g *Guard) Settled() bool { return len(g.witnesses.Before) == 0 && g.has(g.witnesses.Version) }

func (g *Guard) has(version uint64) bool {
	return Commits(g.witnesses, func(l protocol.Life) bool {
		v, _ := g.Acked(l)
		return v >= version
	})
}

// Amend makes records that are sent from now on newer than those before, which a
// later owner must not go on from. Nothing may have been shown yet.
func (g *Guard) Amend() {
	g.witnesses.Version++
	g.needed, g.open = g.witnesses.Version, false
}

// Replace begins to put other witnesses in the place of the present ones. It
// reports false, and does nothing, while that is not possible.
func (g *Guard) Replace(now []protocol.Life) bool {
	if !g.Settled() || len(now) < least {
		return false
	}
	w := g.witnesses
	g.witnesses = protocol.Witnesses{Version: w.Version + 1, Now: now, Before: w.Now}
	return true
}

// Logged takes an acknowledgement. It reports whether the list of witnesses has
// changed, so that all must be told.
func (g *Guard) Logged(from protocol.Life, e protocol.LoggedEntry) (changed bool) {
	if e.Newer > g.epoch {
		g.newer = max(g.newer, e.Newer)
	}
	if e.Epoch != g.epoch || e.Refusal != "" {
		return false
	}
	i := slices.IndexFunc(g.acks, func(a ack) bool { return a.from == from })
	if i < 0 {
		g.acks = append(g.acks, ack{from: from})
		i = len(g.acks) - 1
	}
	g.acks[i].version, g.acks[i].through = max(g.acks[i].version, e.Version), max(g.acks[i].through, e.Through)
	g.open = g.open || g.has(g.needed)
	for _, a := range g.acks {
		if a.through > g.committed && g.known(a.through) {
			g.committed = a.through
		}
	}
	if len(g.witnesses.Before) > 0 && g.has(g.witnesses.Version) {
		g.witnesses = protocol.Witnesses{Version: g.witnesses.Version + 1, Now: g.witnesses.Now}
		g.acks = slices.DeleteFunc(g.acks, func(a ack) bool { return !slices.Contains(g.witnesses.Now, a.from) })
		return true
	}
	return false
}

// known reports whether enough witnesses have n tokens.
func (g *Guard) known(n int) bool {
	return Commits(g.witnesses, func(l protocol.Life) bool {
		_, through := g.Acked(l)
		return through >= n
	})
}
