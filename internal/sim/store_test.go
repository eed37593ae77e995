package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// someRows returns n positions of two layers with their checksums.
func someRows(n int) rows {
	r := rows{header: protocol.Rows{Session: "s", Tokens: make([]kevlard.Token, n), CellBytes: 16}, body: make([]byte, 16*n)}
	for i := range r.body {
		r.body[i] = byte(7 * i)
	}
	r.header.Sums = sums(r.body, n)
	return r
}

func TestMemory(t *testing.T) {
	stage := kevlard.StageKey{Layers: kevlard.Layers{Lo: 0, Hi: 2}}
	m, r := newMemory(4), someRows(6)
	m.put(stage, []index.Run{{Slot: 2, At: 1, N: 3}, {Slot: 5, At: 0, N: 3}}, r, "")
	found := m.read(stage, []index.Run{{Slot: 2, At: 1, N: 3}, {Slot: 5, At: 0, N: 3}})
	for i, s := range found {
		if !s.intact() || !slices.Equal(s.values, position(r.body, 6, i)) || !m.has(content{stage, r.header.Sums[i]}) {
			t.Errorf("position %d: %+v", i, s)
		}
	}
	if s := m.read(stage, []index.Run{{Slot: 2, At: 0, N: 1}}); s[0].intact() {
		t.Errorf("where nothing was written: %+v", s)
	}
	first := m.at(stage, 2, 1)
	m.rot(stage, first, 9)
	if first.intact() || !first.rotten || !m.has(content{stage, r.header.Sums[0]}) {
		t.Errorf("after a bit flipped: %+v", first)
	}
	m.rot(stage, first, 9)
	if !first.intact() || first.rotten {
		t.Errorf("after it flipped back: %+v", first)
	}
	other := someRows(1)
	other.body[3]++
	other.header.Sums = sums(other.body, 1)
	m.put(stage, []index.Run{{Slot: 5, At: 2, N: 1}}, other, "")
	if m.has(content{stage, r.header.Sums[5]}) {
		t.Error("what was overwritten is still there")
	}
}

// TestLanesKeepOrder sends pieces of two sessions, some into a black hole: each
// session's come in order, and all come.
func TestLanesKeepOrder(t *testing.T) {
	w := newWorld(Scenario{Seed: 3, Layers: 2, Ranges: []kevlard.Layers{{Lo: 0, Hi: 2}}, Copies: 2, Cells: 64, LinkMean: 20 * time.Millisecond, BulkByte: time.Microsecond}, Options{})
	for _, h := range w.hosts {
		h.m, h.pieces = node.New(node.Config{Self: h.id, Boot: "b"}), map[uint64]*piece{}
		h.frozen = true // events stay in the inbox
	}
	l := w.laneOf(w.hosts[0], w.hosts[1])
	for i := range 40 {
		r := someRows(2)
		r.header.Pos = i
		r.header.Session = kevlard.SessionID([]string{"a", "b"}[i%2])
		switch i {
		case 10:
			w.hole(l)
		case 30:
			l.holes--
			w.open(l)
		}
		w.sendRows(l, r)
		w.run(w.now.Add(time.Millisecond), nil)
	}
	w.run(w.now.Add(time.Second), nil)
	last, n := map[kevlard.SessionID]int{"a": -1, "b": -1}, 0
	for _, ev := range w.hosts[1].inbox {
		if r, ok := ev.(node.RowsArrived); ok {
			if r.Rows.Pos <= last[r.Rows.Session] || !r.Intact {
				t.Errorf("piece %d of %s after %d, intact %v", r.Rows.Pos, r.Rows.Session, last[r.Rows.Session], r.Intact)
			}
			last[r.Rows.Session] = r.Rows.Pos
			n++
		}
	}
	if n != 40 || len(l.flights) != 0 {
		t.Errorf("%d of 40 pieces came, %d are under way", n, len(l.flights))
	}
}

// TestBrokenLane: what is under way is lost, the sender hears of some of it, and
// later pieces are refused until the connection is made again.
func TestBrokenLane(t *testing.T) {
	w := newWorld(Scenario{Seed: 3, Layers: 2, Ranges: []kevlard.Layers{{Lo: 0, Hi: 2}}, Copies: 2, Cells: 64, LinkMin: 50 * time.Millisecond}, Options{})
	for _, h := range w.hosts {
		h.m, h.pieces, h.frozen = node.New(node.Config{Self: h.id, Boot: "b"}), map[uint64]*piece{}, true
	}
	l := w.laneOf(w.hosts[0], w.hosts[1])
	for range 40 {
		w.sendRows(l, someRows(2))
	}
	w.breakLane(l)
	w.sendRows(l, someRows(2))
	w.run(w.now.Add(time.Second), nil)
	unsent := 0
	for _, ev := range w.hosts[0].inbox {
		if _, ok := ev.(node.RowsUnsent); ok {
			unsent++
		}
	}
	if len(w.hosts[1].inbox) != 0 || unsent < 2 || unsent > 40 {
		t.Errorf("%d pieces came, the sender heard of %d", len(w.hosts[1].inbox), unsent)
	}
}

// position returns the bytes of one position of a body of n, layer by layer.
func position(body []byte, n, i int) []byte {
	out := make([]byte, 0, len(body)/n)
	for at := 8 * i; at < len(body); at += 8 * n {
		out = append(out, body[at:at+8]...)
	}
	return out
}
