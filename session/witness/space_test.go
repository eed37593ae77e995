package witness

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// The model: an owner, two candidates and three or four witnesses run the code of
// this package. Every message stays in flight for ever, so that any witness may get
// it at any time, never or twice, in any order; its answer arrives or is lost. The
// test visits every state that can be reached.
//
// Some things happen as soon as they can, because what follows can still be late: an
// owner generates its token and replaces its witness at once, and an answer that is
// not lost is not late either: what the others do with one only adds up, and what is
// checked does not depend on when it is checked.

// bounds of one exploration.
type bounds struct {
	witnesses int // of the first list: 2 or 3
	restarts  int
	replace   bool   // the first owner replaces a witness by the spare one
	last      uint64 // the highest epoch that is tried
	rounds    int    // of each candidate
	heard     bool   // no promise is lost
}

const (
	firstOwner = 0 // actors: the owner of epoch 1, and two candidates
	actors     = 3
	spare      = 3 // the witness that is on no list at first
)

// actor is a node that owns the session, wants to, or did.
type actor struct {
	round  *Round
	rounds int
	owner  bool
	epoch  uint64
	guard  Guard
	log    []kevlard.Token
	moved  bool // it has replaced a witness
}

// space is one state. Votes and actors are values: a step copies what it changes.
type space struct {
	votes    [4]Vote
	boots    [4]int
	actor    [actors]actor
	flight   []protocol.Message // records, logs and votes, sorted by name
	from     []int              // who sent each
	restarts int
}

func life(i, boot int) protocol.Life {
	return protocol.Life{Node: kevlard.NodeID("abcd"[i : i+1]), Boot: kevlard.BootID("01"[boot : boot+1])}
}

func actorLife(i int) protocol.Life {
	return protocol.Life{Node: kevlard.NodeID("oxy"[i : i+1]), Boot: "0"}
}

func (s *space) send(from int, m protocol.Message) {
	s.flight, s.from = append(slices.Clip(s.flight), m), append(slices.Clip(s.from), from)
}

func (s *space) record(i int) protocol.Record {
	a := &s.actor[i]
	return protocol.Record{Session: "s", Epoch: a.epoch, Owner: actorLife(i), Witnesses: a.guard.Witnesses(), MaxTokens: 9, Tokens: slices.Clip(a.log)}
}

func first(b bounds) *space {
	s := &space{}
	w := protocol.Witnesses{Version: 1}
	for i := range b.witnesses {
		w.Now = append(w.Now, life(i, 0))
	}
	s.actor[firstOwner] = actor{owner: true, epoch: 1, guard: NewGuard(1, w)}
	s.begin(firstOwner)
	return s
}

// begin lets a new owner tell its witnesses, and generate a token: one that no other
// owner generates.
func (s *space) begin(i int) {
	s.send(i, s.record(i))
	a := &s.actor[i]
	a.log = append(slices.Clip(a.log), kevlard.Token(a.epoch))
	s.send(i, protocol.Log{Entries: []protocol.LogEntry{{Session: "s", Epoch: a.epoch, From: len(a.log) - 1, Tokens: a.log[len(a.log)-1:]}}})
}

// did names a step.
type did struct {
	what string
	who  protocol.Life
	n    uint64
}

// clone copies what steps change in place.
func (s *space) clone() *space {
	c := *s
	for i := range c.votes {
		c.votes[i].Record.Tokens = slices.Clip(c.votes[i].Record.Tokens)
	}
	for i := range c.actor {
		a := &c.actor[i]
		a.guard.acks = slices.Clone(a.guard.acks)
		if a.round != nil {
			r := *a.round
			a.round = &r
		}
	}
	return &c
}

// bug is planted around the code, to prove that the test would see it inside.
type bug int

const (
	none bug = iota
	promiseTwice
	newSetOnly
	restartedPromises
	shortestLog
)

// next calls visit with every state that follows s.
func (s *space) next(b bounds, plant bug, visit func(*space, did)) {
	for m := range s.flight {
		for w := range s.votes {
			s.deliver(b, m, w, plant, visit)
		}
	}
	for w := range s.votes {
		if s.restarts < b.restarts && s.boots[w] == 0 && s.votes[w].Record.Epoch > 0 {
			c := s.clone()
			c.restarts++
			c.boots[w] = 1
			c.votes[w] = Vote{}
			if plant == restartedPromises { // it finds its records on disk, but not its promises
				c.votes[w] = Vote{Record: s.votes[w].Record}
			}
			visit(c, did{"restarts", life(w, 0), 0})
		}
	}
	for i := range s.actor {
		if a := &s.actor[i]; i != firstOwner && !a.owner && a.rounds < b.rounds {
			s.try(b, i, visit)
		}
	}
}

// try begins a round of a candidate, for any epoch and with any list that it may have
// heard of, whatever its age.
func (s *space) try(b bounds, i int, visit func(*space, did)) {
	type list struct{ epoch, version uint64 }
	var tried []list
	for w := range s.votes {
		rec := s.votes[w].Record
		l := list{rec.Epoch, rec.Witnesses.Version}
		if rec.Epoch == 0 || slices.Contains(tried, l) {
			continue
		}
		tried = append(tried, l)
		least := uint64(2)
		if r := s.actor[i].round; r != nil {
			least = r.Epoch + 1
		}
		for epoch := least; epoch <= b.last; epoch++ {
			c := s.clone()
			r := NewRound(epoch, rec.Epoch, rec.Witnesses)
			c.actor[i].round = &r
			c.actor[i].rounds++
			c.send(i, protocol.Vote{Session: "s", Epoch: epoch})
			visit(c, did{"begins a round", actorLife(i), epoch})
		}
	}
}

// deliver brings one message to one witness.
func (s *space) deliver(b bounds, m, w int, plant bug, visit func(*space, did)) {
	from, me := s.from[m], life(w, s.boots[w])
	switch msg := s.flight[m].(type) {
	case protocol.Record:
		if !slices.Contains(All(msg.Witnesses), me) {
			return
		}
		if s.knows(from, w, msg.Epoch, msg.Witnesses.Version, len(msg.Tokens)) {
			return
		}
		c := s.clone()
		answer := c.votes[w].Take(msg)
		c.answered(b, from, me, answer, plant)
		visit(c, did{"takes a record of epoch", me, msg.Epoch})
	case protocol.Log:
		if e := msg.Entries[0]; s.votes[w].Record.Epoch != e.Epoch || s.knows(from, w, e.Epoch, 0, e.From+1) {
			return
		}
		c := s.clone()
		answer := c.votes[w].Append(msg.Entries[0])
		c.answered(b, from, me, answer, plant)
		visit(c, did{"logs the token of epoch", me, msg.Entries[0].Epoch})
	case protocol.Vote:
		a := &s.actor[from]
		if a.owner || a.round.Epoch != msg.Epoch {
			return // the answer is of no use; that it was given at all is the lost one
		}
		c := s.clone()
		if plant == promiseTwice && c.votes[w].Promised == msg.Epoch {
			c.votes[w].Candidate = actorLife(from)
		}
		p := c.votes[w].Promise("s", msg.Epoch, actorLife(from))
		if p.Record == nil || slices.Contains(a.round.promised, me) {
			return
		}
		if plant == restartedPromises {
			me = life(w, 0)
		}
		lost := c.clone()
		if s.votes[w].Promised == msg.Epoch {
			lost = s // it was lost before
		}
		if !b.heard {
			visit(lost, did{"promises, and is not heard, epoch", me, msg.Epoch})
		}
		r := c.actor[from].round
		won := r.Promised(me, p)
		if plant == newSetOnly && r.best != nil {
			w := r.witnesses
			w.Before = nil
			won = Elects(w, func(l protocol.Life) bool { return slices.Contains(r.promised, l) })
		}
		if won {
			rec := r.Won(actorLife(from))
			a := &c.actor[from]
			*a = actor{owner: true, epoch: rec.Epoch, guard: NewGuard(rec.Epoch, rec.Witnesses), log: rec.Tokens, rounds: a.rounds}
			if plant == shortestLog {
				a.log = nil
			}
			if rec.Epoch < b.last { // what the last owner does is of no interest
				c.begin(from)
			}
		}
		visit(c, did{"promises epoch", me, msg.Epoch})
	}
}

// knows reports whether a message brings nothing new to a witness and its owner, or
// comes too late.
func (s *space) knows(owner, w int, epoch, version uint64, tokens int) bool {
	v := &s.votes[w]
	if v.Promised > epoch {
		return true
	}
	_, through := s.actor[owner].guard.Acked(life(w, s.boots[w]))
	return v.Promised == epoch && v.Record.Epoch == epoch && v.Record.Witnesses.Version >= version && len(v.Record.Tokens) >= tokens && through >= tokens
}

// answered brings an acknowledgement to the owner.
func (s *space) answered(b bounds, owner int, from protocol.Life, e protocol.LoggedEntry, plant bug) {
	a := &s.actor[owner]
	changed := a.guard.Logged(from, e)
	if w := a.guard.Witnesses(); plant == newSetOnly && len(w.Before) > 0 {
		w.Before = nil
		if Commits(w, func(l protocol.Life) bool { v, _ := a.guard.Acked(l); return v >= w.Version }) {
			w.Version++
			a.guard.witnesses, changed = w, true
		}
	}
	if changed {
		s.send(owner, s.record(owner))
	}
	if b.replace && owner == firstOwner && !a.moved {
		now := append(slices.Clone(a.guard.Witnesses().Now[1:]), life(spare, 0))
		if a.moved = a.guard.Replace(now); a.moved {
			s.send(owner, s.record(owner))
		}
	}
}

// wrong names what must not be.
func (s *space) wrong() string {
	for i := range s.actor {
		for j := range s.actor {
			a, b := &s.actor[i], &s.actor[j]
			if i == j || !a.owner || !b.owner {
				continue
			}
			if a.epoch == b.epoch {
				return fmt.Sprintf("%v and %v both own epoch %d", actorLife(i).Node, actorLife(j).Node, a.epoch)
			}
			if n := a.guard.Committed(); a.epoch < b.epoch && (n > len(b.log) || !slices.Equal(a.log[:n], b.log[:n])) {
				return fmt.Sprintf("epoch %d committed %v, and epoch %d has %v", a.epoch, a.log[:n], b.epoch, b.log)
			}
		}
	}
	return ""
}

// explore visits every state and returns how many there are, how many owners there
// were after the first, and what is wrong first, with how it comes to be.
func explore(b bounds, plant bug) (states, taken int, wrong string, path []string) {
	type visited struct {
		from int
		how  did
	}
	type open struct {
		*space
		at int
	}
	seen := map[[16]byte]struct{}{} // hashes: two states of one would hide each other once in 10^26 runs
	var todo []open
	var history []visited
	at := -1
	add := func(s *space, how did) {
		sum := sha256.Sum256(s.key(b))
		key := [16]byte(sum[:16])
		if _, ok := seen[key]; ok || wrong != "" {
			return
		}
		seen[key] = struct{}{}
		todo, history = append(todo, open{s, len(history)}), append(history, visited{at, how})
		if s.actor[1].owner || s.actor[2].owner {
			taken++
		}
		if wrong = s.wrong(); wrong != "" {
			for i := len(history) - 1; i > 0; i = history[i].from {
				h := history[i].how
				path = append(path, fmt.Sprintf("%s %s %d", h.who.Node, h.what, h.n))
			}
			slices.Reverse(path)
		}
	}
	add(first(b), did{})
	for len(todo) > 0 && wrong == "" { // the newest first, which keeps few open
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		at = s.at
		s.next(b, plant, add)
	}
	return len(seen), taken, wrong, path
}

func exhaustive() map[string]bounds {
	return map[string]bounds{
		"three witnesses, a restart": {witnesses: 3, restarts: 1, last: 3, rounds: 1},
		"three, a second try":        {witnesses: 3, last: 3, rounds: 2},
		"two, a restart":             {witnesses: 2, restarts: 1, last: 3, rounds: 2},
		"three, one is replaced":     {witnesses: 3, replace: true, last: 2, rounds: 1, heard: true},
		"two, one is replaced":       {witnesses: 2, replace: true, last: 2, rounds: 1},
		"two, replaced, a restart":   {witnesses: 2, replace: true, restarts: 1, last: 2, rounds: 1},
		"two, replaced, a second":    {witnesses: 2, replace: true, last: 3, rounds: 1, heard: true},
	}
}

func TestEveryState(t *testing.T) {
	for name, b := range exhaustive() {
		if tiny && b.witnesses > 2 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			states, taken, wrong, path := explore(b, none)
			if wrong != "" {
				t.Fatalf("%s:\n%s", wrong, fmt.Sprint(path))
			}
			if taken == 0 {
				t.Error("no candidate ever wins: the test proves nothing")
			}
			t.Logf("%d states, %d of them after a takeover, in %v", states, taken, time.Since(started).Round(time.Millisecond))
		})
	}
}

func TestPlantedBugsAreFound(t *testing.T) {
	for name, plant := range map[string]bug{
		"a witness promises twice": promiseTwice, "the majority of the new list alone": newSetOnly,
		"a restarted witness promises": restartedPromises, "the log is not taken over": shortestLog,
	} {
		t.Run(name, func(t *testing.T) {
			for _, of := range []string{"two, one is replaced", "three witnesses, a restart", "three, one is replaced"} {
				if states, _, wrong, path := explore(exhaustive()[of], plant); wrong != "" {
					t.Logf("%s, after %d states: %q", wrong, states, path)
					return
				}
			}
			t.Error("no state shows it")
		})
	}
}
