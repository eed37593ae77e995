package witness

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Store is what one node keeps as a witness of others' sessions. Not safe for
// concurrent use.
type Store struct {
	self   protocol.Life
	limits Limits
	kept   map[kevlard.SessionID]*kept
	bytes  int
	sweep  kevlard.Instant // when leases are looked at next
	tombs  map[kevlard.SessionID]tomb
	ring   []kevlard.SessionID // of tombs; grows to its limit, then the oldest is at next
	next   int
}

// kept is one session.
type kept struct {
	Vote
	until kevlard.Instant
	ended bool
	bytes int
}

// tomb is what stays of a session that was forgotten: the promise binds, and no
// record that is shorter than the one acknowledged may take its place.
type tomb struct {
	promised  uint64
	candidate protocol.Life
	epoch     uint64
	through   int
}

// NewStore returns an empty store of a node in its present life.
func NewStore(self protocol.Life, limits Limits) *Store {
	limits = limits.withDefaults()
	return &Store{
		self: self, limits: limits, kept: map[kevlard.SessionID]*kept{}, sweep: kevlard.Never,
		tombs: map[kevlard.SessionID]tomb{},
	}
}

// Len returns the number of sessions and the bytes that they take.
func (s *Store) Len() (sessions, bytes int) { return len(s.kept), s.bytes }

// Deadline returns when Expire must be called.
func (s *Store) Deadline() kevlard.Instant { return s.sweep }

// Expire forgets the sessions whose owners were not heard of for too long.
func (s *Store) Expire(now kevlard.Instant) {
	if now < s.sweep {
		return
	}
	var over []kevlard.SessionID
	for id, k := range s.kept {
		if now >= k.until {
			over = append(over, id)
		}
	}
	s.sort(over)
	for _, id := range over {
		s.forget(id, s.kept[id])
	}
	s.sweep = kevlard.Never
	if len(s.kept) > 0 {
		s.sweep = now.Add(sweepEvery)
	}
}

// sort orders sessions by the end of their time: which are forgotten, and which of the
// forgotten are remembered, must not depend on a map.
func (s *Store) sort(ids []kevlard.SessionID) {
	slices.SortFunc(ids, func(a, b kevlard.SessionID) int {
		return cmp.Or(cmp.Compare(s.kept[a].until, s.kept[b].until), cmp.Compare(a, b))
	})
}

func (s *Store) forget(id kevlard.SessionID, k *kept) {
	if _, ok := s.tombs[id]; !ok {
		if len(s.ring) < s.limits.Tombs {
			s.ring = append(s.ring, id)
		} else {
			delete(s.tombs, s.ring[s.next])
			s.ring[s.next] = id
			s.next = (s.next + 1) % len(s.ring)
		}
	}
	s.tombs[id] = tomb{k.Promised, k.Candidate, k.Record.Epoch, len(k.Record.Tokens)}
	s.bytes -= k.bytes
	delete(s.kept, id)
}

// Take takes a record from an owner and returns the acknowledgement.
func (s *Store) Take(now kevlard.Instant, from protocol.Life, r protocol.Record) protocol.LoggedEntry {
	refuse := func(why protocol.WitnessReason) protocol.LoggedEntry {
		return protocol.LoggedEntry{Session: r.Session, Epoch: r.Epoch, Refusal: why}
	}
	k := s.kept[r.Session]
	switch {
	case from != r.Owner || !slices.Contains(All(r.Witnesses), s.self):
		return refuse(protocol.WitnessUnknown) // meant for, or from, another life
	case k == nil:
		k = &kept{}
		if t, ok := s.tombs[r.Session]; ok {
			if r.Epoch == t.epoch && len(r.Tokens) < t.through {
				return refuse(protocol.WitnessUnknown)
			}
			k.Promised, k.Candidate = t.promised, t.candidate
		}
		if !s.room(r.Session, size(r)) {
			return refuse(protocol.WitnessFull)
		}
	case !s.room(r.Session, size(r)-k.bytes):
		return refuse(protocol.WitnessFull)
	}
	answer := k.Take(r)
	if answer.Refusal == "" {
		if s.kept[r.Session] == nil {
			s.kept[r.Session] = k
		}
		s.weigh(k)
		s.renew(now, k)
	}
	return answer
}

// Append takes what an owner has generated since.
func (s *Store) Append(now kevlard.Instant, from protocol.Life, e protocol.LogEntry) protocol.LoggedEntry {
	k := s.kept[e.Session]
	if k == nil || from != k.Candidate && e.Epoch >= k.Promised {
		return protocol.LoggedEntry{Session: e.Session, Epoch: e.Epoch, Refusal: protocol.WitnessUnknown}
	}
	if !s.room(e.Session, 4*len(e.Tokens)+logprobBytes(e.Logprobs)) {
		return protocol.LoggedEntry{Session: e.Session, Epoch: e.Epoch, Refusal: protocol.WitnessFull}
	}
	answer := k.Append(e)
	if answer.Refusal == "" {
		s.weigh(k)
		s.renew(now, k)
	}
	return answer
}

// Promise answers a candidate. heard reports whether a node is heard of, in the life
// that owns the session: then there is nothing to take over, unless that node itself
// has said that it owns the session no longer. (It was told of a newer epoch by a
// witness whose promise won no round.)
func (s *Store) Promise(now kevlard.Instant, from protocol.Life, v protocol.Vote, heard func(protocol.Life) bool) protocol.Promise {
	k := s.kept[v.Session]
	if k == nil {
		return protocol.Promise{Session: v.Session, Epoch: v.Epoch, Refusal: protocol.WitnessUnknown}
	}
	if owner := k.Record.Owner; from != owner && v.Disowned != owner && heard(owner) {
		return protocol.Promise{Session: v.Session, Epoch: v.Epoch, Refusal: protocol.WitnessOwner, Owner: owner}
	}
	p := k.Promise(v.Session, v.Epoch, from)
	if p.Refusal == "" {
		k.until, k.ended = max(k.until, now.Add(s.limits.Lease)), false
	}
	return p
}

// Get returns the record of a session. It must not be changed.
func (s *Store) Get(id kevlard.SessionID) (protocol.Record, bool) {
	k := s.kept[id]
	if k == nil {
		return protocol.Record{}, false
	}
	return k.Record, true
}

// Locate says what is known of a session.
func (s *Store) Locate(id kevlard.SessionID) protocol.Located {
	k := s.kept[id]
	if k == nil {
		return protocol.Located{Session: id}
	}
	return protocol.Located{Session: id, Recorded: true, Epoch: k.Promised, Owner: k.Record.Owner, Witnesses: k.Record.Witnesses, At: k.Record.Epoch}
}

// Renew keeps the records of an owner's sessions. Those that were promised to
// another are returned, to be told.
func (s *Store) Renew(now kevlard.Instant, from protocol.Life, ids []kevlard.SessionID) []protocol.LoggedEntry {
	var superseded []protocol.LoggedEntry
	for _, id := range ids {
		k := s.kept[id]
		switch {
		case k == nil:
		case k.Candidate == from:
			s.renew(now, k)
		default:
			superseded = append(superseded, protocol.LoggedEntry{Session: id, Epoch: k.Record.Epoch, Newer: k.Promised, Refusal: protocol.WitnessPromised})
		}
	}
	return superseded
}

// Forget takes an owner's word that a session has ended.
func (s *Store) Forget(now kevlard.Instant, from protocol.Life, f protocol.Forget) {
	k := s.kept[f.Session]
	if k == nil || k.Candidate != from || k.Promised != f.Epoch {
		return
	}
	if f.Ended {
		k.until, k.ended = now.Add(s.limits.Ended), true
		return
	}
	s.forget(f.Session, k)
}

func (s *Store) renew(now kevlard.Instant, k *kept) {
	k.until, k.ended = now.Add(s.limits.Lease), false
	s.sweep = min(s.sweep, now.Add(sweepEvery))
}

// room makes room for so many bytes more of a session, if it can, by forgetting
// sessions that have ended.
func (s *Store) room(id kevlard.SessionID, more int) bool {
	sessions := 1
	if s.kept[id] != nil {
		sessions = 0
	}
	full := func() bool { return len(s.kept)+sessions > s.limits.Records || s.bytes+more > s.limits.Bytes }
	if !full() {
		return true
	}
	var ended []kevlard.SessionID
	for o, k := range s.kept {
		if k.ended && o != id {
			ended = append(ended, o)
		}
	}
	s.sort(ended)
	for _, o := range ended {
		s.forget(o, s.kept[o])
		if !full() {
			return true
		}
	}
	return false
}

// weigh counts what a session takes now.
func (s *Store) weigh(k *kept) {
	n := size(k.Record)
	s.bytes += n - k.bytes
	k.bytes = n
}

// size is roughly what a record takes in memory.
func size(r protocol.Record) int {
	return 512 + 4*(len(r.Prompt)+len(r.Tokens)+len(r.EOG)) + len(r.Envelope) + logprobBytes(r.Logprobs)
}

func logprobBytes(l []kevlard.Logprobs) int {
	n := 0
	for i := range l {
		n += 32 + 8*len(l[i].Top)
	}
	return n
}

// Fitting returns the last of some log probabilities that fit a record.
func Fitting(l []kevlard.Logprobs) []kevlard.Logprobs {
	n := 0
	for i := len(l); i > 0; i-- {
		if n += 16 + 12*len(l[i-1].Top); n > maxLogprobBytes {
			return l[i:len(l):len(l)]
		}
	}
	return l[:len(l):len(l)]
}
