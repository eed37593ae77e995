// Package plan decides how the weights that a node lacks come from those that hold them:
// which chunk from whom, whom to believe, when to ask somebody else, when to give up. It
// is pure: Step(now, event) -> effects, and Deadline.
//
// # Whom to believe
//
// A unit's digest covers all of it, so it says nothing about a chunk. Therefore each
// holder is asked for the sums of a unit's chunks: a list. Holders with equal lists are
// sources of each other's chunks, and a chunk that does not match the list is not kept.
// Whether the list is right shows at the end, by the unit's digest:
//
//	waiting --> asking --> comparing --> fetching --> checking --> done
//	              ^            |             |            |
//	              +------------+-------------+------------+
//	               no source is left, or the list was wrong
//
// Of several lists the one with most holders is tried first. If the digest is not the
// unit's, all who gave that list are dropped, and if it is, all who gave another. So each
// wrong list costs one unit's transfer at most, and a holder is dropped with each.
// Comparing finds the chunks on disk that match a list: those of an earlier life, and
// those that a wrong list and the right one have in common.
//
// # Whom to ask
//
// Each holder has few requests under way, so a slow one is given less. When no chunk is
// left that is not under way, those that take long are asked of a second holder too;
// the first answer counts. A holder that fails is left alone for a while that doubles; one
// that fails too often, or sends wrong bytes, is dropped.
package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
)

// Config is what a plan is made of. The zero value of a field is its default.
type Config struct {
	// Chunks is the number of chunks of each unit, all at least 1.
	Chunks []int
	// PerHolder and Total bound the requests under way, at one holder and in all.
	// Default 4 and 16.
	PerHolder, Total int
	// Open bounds the units that are worked on at once. Default 2: the next one's lists
	// come while the last chunks of the one before do.
	Open int
	// Sources bounds the holders asked for the list of one unit, which costs them a
	// pass over it. Default 6.
	Sources int
	// MaxWrong chunks from a holder, or MaxFails failures in a row, drop it. Default 3 and 8.
	MaxWrong, MaxFails int
	// MaxRounds is how often chunks that were damaged on this node's disk are fetched
	// again. Default 2.
	MaxRounds int

	// ChunkTimeout and ListTimeout bound a request. Default 15 s, and 2 min. A holder
	// reads the whole unit for its list, so each chunk of it adds ListChunk, default 40 ms:
	// a disk that others are using.
	ChunkTimeout, ListTimeout, ListChunk time.Duration
	// ListWait is how long others may take to give their list after the first. Default 3 s.
	ListWait time.Duration
	// SlowAfter is the age from which a request is made twice when nothing else is left to ask for. Default 2 s.
	SlowAfter time.Duration
	// BackoffMin doubles to BackoffMax with each failure of a holder. Default 250 ms and 8 s.
	BackoffMin, BackoffMax time.Duration
	// NoHolder is how long a unit may have no holder. Default 5 s.
	NoHolder time.Duration
}

func (c Config) withDefaults() Config {
	c.PerHolder, c.Total = cmp.Or(c.PerHolder, 4), cmp.Or(c.Total, 16)
	c.Open, c.Sources = cmp.Or(c.Open, 2), cmp.Or(c.Sources, 6)
	c.MaxWrong, c.MaxFails, c.MaxRounds = cmp.Or(c.MaxWrong, 3), cmp.Or(c.MaxFails, 8), cmp.Or(c.MaxRounds, 2)
	c.ChunkTimeout, c.ListTimeout = cmp.Or(c.ChunkTimeout, 15*time.Second), cmp.Or(c.ListTimeout, 2*time.Minute)
	c.ListChunk = cmp.Or(c.ListChunk, 40*time.Millisecond)
	c.ListWait, c.SlowAfter = cmp.Or(c.ListWait, 3*time.Second), cmp.Or(c.SlowAfter, 2*time.Second)
	c.BackoffMin, c.BackoffMax = cmp.Or(c.BackoffMin, 250*time.Millisecond), cmp.Or(c.BackoffMax, 8*time.Second)
	c.NoHolder = cmp.Or(c.NoHolder, 5*time.Second)
	return c
}

// Machine is the plan of one fetch. It is bounded by its units, their chunks and the
// holders that it is told of.
type Machine struct {
	cfg      Config
	units    []unit
	holders  []*holder // by node
	requests []request // under way, the oldest first
	number   uint64    // of the last request
	over     bool      // Done or GaveUp was said
	out      []Effect
}

type unitState uint8

const (
	waiting unitState = iota
	asking
	comparing
	fetching
	checking
	done
)

type unit struct {
	state  unitState
	lists  []answer // of holders that were asked, in the order of asking
	list   kevlard.Digest
	first  kevlard.Instant // when the first list came; 0: none has
	have   []bool
	flying []uint8 // requests under way, by chunk
	left   int     // chunks that are not there
	next   int     // all before are there or under way
	rounds int
	orphan kevlard.Instant // since when nobody has it; 0: somebody does
}

// answer is a holder's list of one unit.
type answer struct {
	node kevlard.NodeID
	came bool // else it is awaited
	list kevlard.Digest
	due  kevlard.Instant // until when it is awaited
}

type holder struct {
	node    kevlard.NodeID
	rank    uint64
	units   []bool
	gone    bool
	dropped bool
	flying  int
	fails   int
	wrong   int
	rest    kevlard.Instant // not to be asked before
}

type request struct {
	id          uint64
	node        kevlard.NodeID
	unit, chunk int
	at          kevlard.Instant
}

// New returns the plan of a fetch. Nothing happens before holders are known.
func New(cfg Config) *Machine {
	m := &Machine{cfg: cfg.withDefaults()}
	for _, n := range cfg.Chunks {
		m.units = append(m.units, unit{have: make([]bool, n), flying: make([]uint8, n), left: n})
	}
	return m
}

// Step consumes ev (at first a Wake, or what is known of holders), appends the resulting effects to out, and returns it. now must not go
// back and be above 0.
func (m *Machine) Step(now kevlard.Instant, ev Event, out []Effect) []Effect {
	m.out = out
	if !m.over {
		m.take(now, ev)
		m.expire(now)
		m.advance(now)
	}
	out, m.out = m.out, nil
	return out
}

// Left returns the chunks of a unit that are not there.
func (m *Machine) Left(u int) int { return m.units[u].left }

// Waiting reports whether no chunk is to come until something has ended that shows no
// progress: a unit is read here, or a holder is making its list that has not failed before.
func (m *Machine) Waiting() bool {
	if m.over || len(m.requests) > 0 {
		return false
	}
	for i := range m.units {
		u := &m.units[i]
		if u.state == comparing || u.state == checking {
			return true
		}
		for _, a := range u.lists {
			if h := m.holder(a.node); !a.came && h != nil && h.fails == 0 {
				return true
			}
		}
	}
	return false
}

// UnitDone reports whether a unit was verified.
func (m *Machine) UnitDone(u int) bool { return m.units[u].state == done }

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// holder finds what is known of a node, nil if nothing.
func (m *Machine) holder(n kevlard.NodeID) *holder {
	i, ok := slices.BinarySearchFunc(m.holders, n, func(h *holder, n kevlard.NodeID) int { return cmp.Compare(h.node, n) })
	if !ok {
		return nil
	}
	return m.holders[i]
}

func (h *holder) has(u int) bool { return !h.gone && !h.dropped && h.units[u] }

// source reports whether chunks of u may come from h under the list chosen.
func (m *Machine) source(u int, h *holder) bool {
	return h.has(u) && slices.ContainsFunc(m.units[u].lists, func(a answer) bool {
		return a.node == h.node && a.came && a.list == m.units[u].list
	})
}
