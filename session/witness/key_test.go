package witness

import (
	"bytes"
	"slices"

	"github.com/kevlard/kevlard/protocol"
)

// key names a state up to the names of its candidates and of the witnesses of the
// first list that are alike: it calls them by the order of what they know. Where that
// is the same, one state may have several keys, which only costs time.
func (s *space) key(b bounds) []byte {
	e := encoder{actor: [actors]int{0, 1, 2}, witness: [4]int{0, 1, 2, 3}}
	signs := func(n int, sign func(int)) [][]byte {
		var out [][]byte
		for i := range n {
			e.out = make([]byte, 0, 64)
			sign(i)
			out = append(out, e.out)
		}
		return out
	}
	x := signs(actors, func(i int) {
		a := &s.actor[i]
		e.put(int(a.epoch), a.rounds, bit(a.owner))
		if a.round != nil {
			e.put(int(a.round.Epoch), len(a.round.promised))
		}
	})
	if bytes.Compare(x[1], x[2]) > 0 {
		e.actor = [actors]int{0, 2, 1}
	}
	lo := bit(b.replace) // the first witness is then the one that is replaced
	w := signs(b.witnesses, func(i int) {
		v := s.votes[i]
		e.put(s.boots[i], int(v.Promised))
		e.who(v.Candidate)
		e.put(int(v.Record.Epoch), int(v.Record.Witnesses.Version), len(v.Record.Tokens))
		for j := range actors {
			a := &s.actor[slices.Index(e.actor[:], j)]
			version, through := a.guard.Acked(life(i, 0))
			e.put(int(version), through)
			if a.round != nil {
				e.put(bit(slices.Contains(a.round.promised, life(i, 0))))
			}
		}
	})
	order := []int{0, 1, 2, 3}
	slices.SortStableFunc(order[lo:b.witnesses], func(i, j int) int { return bytes.Compare(w[i], w[j]) })
	for name, i := range order {
		e.witness[i] = name
	}
	e.out = make([]byte, 0, 512)
	e.space(s)
	return e.out
}

// encoder writes a state with other names: witness i is called witness[i].
type encoder struct {
	witness [4]int
	actor   [actors]int
	out     []byte
}

func (e *encoder) put(b ...int) {
	for _, x := range b {
		e.out = append(e.out, byte(x))
	}
}

func (e *encoder) space(s *space) {
	inverse := func(p []int, i int) int { return slices.Index(p, i) }
	for i := range s.votes {
		w := inverse(e.witness[:], i)
		v := s.votes[w]
		e.put(s.boots[w], int(v.Promised))
		e.who(v.Candidate)
		e.record(v.Record)
	}
	for i := range s.actor {
		x := inverse(e.actor[:], i)
		a := &s.actor[x]
		e.put(int(a.epoch), a.rounds, bit(a.moved)<<1|bit(a.owner)<<2)
		e.tokens(a.log)
		e.list(a.guard.witnesses)
		e.put(a.guard.committed)
		var acks [8][2]int
		for _, k := range a.guard.acks {
			acks[e.life(k.from)] = [2]int{int(k.version), k.through}
		}
		for _, k := range acks {
			e.put(k[0], k[1])
		}
		if r := a.round; r != nil && !a.owner {
			e.put(int(r.Epoch), int(r.at), e.mask(r.promised))
			e.list(r.witnesses)
			if r.best != nil {
				e.record(*r.best)
			}
		}
		e.put(0xff)
	}
	var flight [][]byte
	for i, m := range s.flight {
		f := encoder{e.witness, e.actor, nil}
		f.put(e.actor[s.from[i]])
		switch m := m.(type) {
		case protocol.Record:
			f.put(1)
			f.record(m)
		case protocol.Log:
			f.put(2, int(m.Entries[0].Epoch), m.Entries[0].From)
		case protocol.Vote:
			f.put(3, int(m.Epoch))
		}
		flight = append(flight, f.out)
	}
	slices.SortFunc(flight, bytes.Compare)
	for _, f := range flight {
		e.out = append(e.out, f...)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// life numbers a witness's life.
func (e *encoder) life(l protocol.Life) int {
	return 2*e.witness[l.Node[0]-'a'] + int(l.Boot[0]-'0')
}

func (e *encoder) mask(ls []protocol.Life) int {
	n := 0
	for _, l := range ls {
		n |= 1 << e.life(l)
	}
	return n
}

func (e *encoder) list(w protocol.Witnesses) { e.put(int(w.Version), e.mask(w.Now), e.mask(w.Before)) }

func (e *encoder) tokens(log []int32) {
	e.put(len(log))
	for _, t := range log {
		e.put(int(t))
	}
}

func (e *encoder) who(l protocol.Life) {
	switch l.Node {
	case "":
		e.put(9)
	case "o":
		e.put(0)
	case "x":
		e.put(e.actor[1])
	case "y":
		e.put(e.actor[2])
	}
}

func (e *encoder) record(r protocol.Record) {
	e.put(int(r.Epoch))
	if r.Epoch > 0 {
		e.who(r.Owner)
		e.list(r.Witnesses)
		e.tokens(r.Tokens)
	}
}
