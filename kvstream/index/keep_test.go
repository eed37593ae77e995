package index

import (
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// keepRows hands over rows [from,len(tokens)) that this node computed, and stores them.
func (b *bench) keepRows(stage kevlard.StageKey, salt string, tokens []kevlard.Token, from int) bool {
	name := Seed(stage, "toy", salt)
	for at := 0; at < from; at += 4 {
		name = Chain(name, tokens[at:at+4])
	}
	b.piece++
	runs := b.x.Keep(b.piece, protocol.Rows{
		Session: "s", Stage: stage, Class: "toy", CellBytes: 8, Pos: from, Tokens: tokens[from:], Sums: make([]uint64, len(tokens)-from), Before: name,
	})
	b.x.Stored(b.now, b.piece)
	return runs != nil
}

// TestKeep finds what a stage computed for one session by the tokens of others.
func TestKeep(t *testing.T) {
	stage := stageOf(1, 0, 2)
	other := func(n int, rest ...kevlard.Token) []kevlard.Token { return append(count(n), rest...) }
	for _, tc := range []struct {
		name   string
		tokens []kevlard.Token
		salt   string
		stage  kevlard.StageKey
		want   int
	}{
		{"the same", count(10), "a", stage, 10},
		{"more", count(20), "a", stage, 10},
		{"fewer", count(5), "a", stage, 5},
		{"other tokens after a block", other(8, 90, 91, 92), "a", stage, 8},
		{"other tokens in a block", other(6, 90, 91, 92), "a", stage, 6},
		{"other tokens in the tail", other(9, 90, 91, 92), "a", stage, 9},
		{"other tokens", []kevlard.Token{90, 2, 3, 4}, "a", stage, 0},
		{"another tenant", count(10), "b", stage, 0},
		{"no tenant", count(10), "", stage, 0},
		{"another stage", count(10), "a", stageOf(1, 0, 3), 0},
		{"another model", count(10), "a", stageOf(2, 0, 2), 0},
	} {
		b := newBench(t, 100)
		if !b.keepRows(stage, "a", count(4), 0) || !b.keepRows(stage, "a", count(10), 4) {
			t.Fatal("no room")
		}
		if got := b.x.Held(tc.stage, "toy", tc.salt, tc.tokens); got != tc.want {
			t.Errorf("%s: %d held, want %d", tc.name, got, tc.want)
		}
		p := b.x.Pin(tc.stage, "toy", tc.salt, "new", tc.tokens, 0)
		if p.N != tc.want {
			t.Errorf("%s: %d pinned, want %d", tc.name, p.N, tc.want)
		}
		b.x.Unpin(p, p.N, false)
		if u := b.x.Usage(); u.Pins != 0 || u.Copies != 0 || u.Bytes != 3*32 || u.CachedBytes != u.Bytes {
			t.Errorf("%s: %+v", tc.name, u)
		}
	}
}

// TestTailsGrow keeps one tail of a conversation that goes on, and both of two that
// go on otherwise.
func TestTailsGrow(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	for _, n := range []int{6, 5, 7, 6} {
		b.keepRows(stage, "", count(n), 0)
	}
	if u := b.x.Usage(); u.CachedBytes != 2*32 {
		t.Errorf("a tail that grew takes %d bytes, want a block for it and one before", u.CachedBytes)
	}
	b.keepRows(stage, "", append(count(5), 90, 91), 0)
	if u := b.x.Usage(); u.CachedBytes != 3*32 {
		t.Errorf("two tails take %d bytes, want a block for each and one before", u.CachedBytes)
	}
	b.keepRows(stage, "", count(8), 0)
	if u := b.x.Usage(); u.CachedBytes != 3*32 {
		t.Errorf("a full block in place of its tail: %d bytes", u.CachedBytes)
	}
	if n := b.x.Held(stage, "toy", "", count(20)); n != 8 {
		t.Errorf("%d held, want 8", n)
	}
}

// TestEndsGoBeforeBeginnings evicts what was used least recently, from its end.
func TestEndsGoBeforeBeginnings(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 4)
	one, two := count(8), []kevlard.Token{50, 51, 52, 53, 54, 55, 56, 57}
	for _, s := range [][]kevlard.Token{one, two} {
		b.keepRows(stage, "", s, 0)
		b.x.Touch(stage, "toy", "", s)
	}
	b.keepRows(stage, "", []kevlard.Token{70, 71, 72, 73}, 0)
	if a, b := b.x.Held(stage, "toy", "", one), b.x.Held(stage, "toy", "", two); a != 4 || b != 8 {
		t.Errorf("%d and %d are held, want the beginning of the first and all of the second", a, b)
	}
}

// TestBeginningsStayWhileEndsAreThere evicts the ends of sessions that still run, which
// nobody has touched: without their beginnings they would be found by nobody.
func TestBeginningsStayWhileEndsAreThere(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 5)
	one, two := count(12), append(count(4), 50, 51, 52, 53)
	b.keepRows(stage, "", one[:4], 0)
	b.keepRows(stage, "", one, 4)
	b.keepRows(stage, "", two, 4)
	held := func(what string, first, second int) {
		t.Helper()
		if a, b := b.x.Held(stage, "toy", "", one), b.x.Held(stage, "toy", "", two); a != first || b != second {
			t.Errorf("%s: %d and %d are held, want %d and %d", what, a, b, first, second)
		}
	}
	held("all", 12, 8)
	for i, want := range [][2]int{{12, 8}, {8, 8}, {4, 8}, {4, 4}, {0, 0}} {
		b.keepRows(stage, "", []kevlard.Token{70, 71, 72, kevlard.Token(73 + i)}, 0)
		held("after one more", want[0], want[1])
	}
}

// TestKeepYieldsToCopies takes no room from the copies of running sessions, and gives
// its own to them.
func TestKeepYieldsToCopies(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 2)
	b.keepRows(stage, "", []kevlard.Token{50, 51, 52, 53, 54, 55, 56, 57}, 0)
	b.fill("s", stage, 1, count(8))
	if b.keepRows(stage, "", []kevlard.Token{50, 51, 52, 53}, 0) {
		t.Error("a prefix took the room of a copy")
	}
	if c, ok := b.x.Copy(stage, "s"); !ok || len(c.Tokens) != 8 {
		t.Errorf("the copy: %v %v", c, ok)
	}
}

// TestUnstoredKeep gives up the places of rows that found no memory.
func TestUnstoredKeep(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 10)
	if b.x.Keep(1, protocol.Rows{Stage: stage, CellBytes: 8, Tokens: count(6), Sums: make([]uint64, 6)}) == nil {
		t.Fatal("no room")
	}
	if a := b.x.Unstored(1, "no memory"); a != nil {
		t.Errorf("an answer: %+v", a)
	}
	if u := b.x.Usage(); u.Bytes != 0 || len(b.x.pools) != 0 {
		t.Errorf("%+v in %d pools", u, len(b.x.pools))
	}
}
