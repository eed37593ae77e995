package stage

import (
	"testing"

	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
)

// fill offers a copy of other tokens and sends n positions of it. It reports whether
// there was room.
func (b *bench) fill(salt string, n int) bool {
	b.Helper()
	x, ts := b.m.cfg.Copies, tokens(50 + n)[50:]
	o := protocol.Offer{
		Session: "other", Fence: fence(1), Owner: "owner", OwnerBoot: "o.1", Stage: b.m.Key(), Class: "toy",
		CellBytes: cellBytes, Salt: salt, Tokens: ts, Positions: 100,
	}
	if a := x.Offer(b.now, "source", o); a.Refusal != "" {
		b.Fatalf("offer: %+v", a)
	}
	runs, _ := x.Arrived(b.now, "source", 2, protocol.Rows{
		Session: o.Session, Fence: fence(1), Stage: o.Stage, Class: "toy", CellBytes: cellBytes, Tokens: ts, Sums: make([]uint64, n),
	}, true)
	return runs != nil
}

// TestEvicted: the copy that a session is to go on from is given up, and its memory
// wanted by others, before the prepare, while it is loaded, and between its answer and
// the start. The answer is what is in the cells, and the work begins there.
func TestEvicted(t *testing.T) {
	const all = 12 // positions, as many as there is memory for
	for _, c := range []struct {
		when             string
		have             int
		refused, evicted uint64
	}{
		{"before the prepare", 0, 0, 3},
		{"during the load", all - 1, 1, 0},
		{"after the answer", all - 1, 0, 3},
	} {
		t.Run(c.when, func(t *testing.T) {
			b := newBench(t, false, Limits{})
			x := index.New(index.Config{BlockTokens: 4, Bytes: all * cellBytes})
			b.m.cfg.Copies = x
			b.keep("s", "x", tokens(all), all)
			want := func(when string, room bool) {
				t.Helper()
				if when != c.when {
					return
				}
				x.Close("owner", "s", 2, fence(1))
				if got := b.fill("y", all); got != room {
					t.Fatalf("another copy has room: %v", got)
				}
			}
			want("before the prepare", true)
			p := b.ask("s", 2, all)
			p.Salt = "x"
			b.prepare(p)
			if c.have > 0 {
				load := only[Load](b)
				if len(load) != 1 {
					t.Fatalf("effects %+v, want a load", b.out)
				}
				want("during the load", false)
				b.out = b.m.Loaded(b.now, 1, load[0].ID, all-1, false, nil)
			}
			if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != c.have {
				t.Fatalf("answers %+v, want %d", a, c.have)
			}
			want("after the answer", true)
			b.send(item("s", 2, c.have, all-c.have, true, true))
			if r := b.running(); r.Parts[0].Pos != c.have {
				t.Errorf("begins at %d, want %d", r.Parts[0].Pos, c.have)
			}
			if n := x.Counters(); n.Refused != c.refused || n.Evicted != c.evicted {
				t.Errorf("counters %+v, want %d refused and %d evicted", n, c.refused, c.evicted)
			}
			if c.refused > 0 && !b.fill("y", all) {
				t.Error("the memory is not free after the load")
			}
		})
	}
}

// TestThirdOfFiveBlocksFails is K45: what a copy's third block holds is not what was
// stored. The two before it are used, the rest is computed; nothing is answered from
// cells that nobody filled.
func TestThirdOfFiveBlocksFails(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(20), 20)
	p := b.ask("s", 2, 21)
	p.Salt = "x"
	b.prepare(p)
	load := only[Load](b)
	if len(load) != 1 || len(load[0].From) != 5 {
		t.Fatalf("effects %+v, want a load of five blocks", b.out)
	}
	b.out = b.m.Loaded(b.now, 1, load[0].ID, 8, true, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 8 {
		t.Fatalf("answers %+v, want 8", a)
	}
	b.send(item("s", 2, 9, 12, true, true))
	if r, _ := replies[protocol.Refused](b); len(r) != 1 || len(only[Run](b)) != 0 {
		t.Errorf("effects %+v of a start beyond what is there, want a refusal", b.out)
	}
	b.send(item("s", 2, 8, 13, true, true))
	if r := b.running(); r.Parts[0].Pos != 8 || len(r.Parts[0].Tokens) != 13 {
		t.Errorf("computes %d from position %d, want 13 from 8", len(r.Parts[0].Tokens), r.Parts[0].Pos)
	}
	x := b.m.cfg.Copies
	if again := x.Pin(b.m.Key(), "toy", "x", "s", tokens(21), 0); again.N != 8 || x.Counters().Damaged != 1 {
		t.Errorf("the copy now reaches %d, counters %+v", again.N, x.Counters())
	}
}
