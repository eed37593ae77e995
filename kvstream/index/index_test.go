package index

import (
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// bench drives one index by hand, with blocks of 4 positions of 8 bytes.
type bench struct {
	*testing.T
	x     *Index
	now   kevlard.Instant
	piece uint64
}

func newBench(t *testing.T, blocks int) *bench {
	t.Helper()
	return &bench{T: t, now: 1, x: New(Config{BlockTokens: 4, Bytes: int64(blocks) * 32, Copies: 8})}
}

func stageOf(model byte, lo, hi int) kevlard.StageKey {
	return kevlard.StageKey{Model: kevlard.Digest{model}, Layers: kevlard.Layers{Lo: lo, Hi: hi}}
}

func count(n int) []kevlard.Token {
	ts := make([]kevlard.Token, n)
	for i := range ts {
		ts[i] = kevlard.Token(i + 1)
	}
	return ts
}

func fence(term uint64) kevlard.Fence { return kevlard.Fence{Epoch: 1, Term: term} }

func (b *bench) offer(id kevlard.SessionID, stage kevlard.StageKey, term uint64, tokens []kevlard.Token) protocol.Stored {
	return b.x.Offer(b.now, "src", protocol.Offer{
		Session: id, Fence: fence(term), Owner: "owner", OwnerBoot: "owner.1", Stage: stage, Class: "toy", CellBytes: 8, Tokens: tokens, Positions: 100,
	})
}

func (b *bench) mustOffer(id kevlard.SessionID, stage kevlard.StageKey, term uint64, tokens []kevlard.Token) protocol.Stored {
	b.Helper()
	a := b.offer(id, stage, term, tokens)
	if a.Refusal != "" {
		b.Fatalf("offer of %s: %+v", id, a)
	}
	return a
}

// arrive hands over the positions [from,to) of tokens; sums are the positions.
func (b *bench) arrive(id kevlard.SessionID, stage kevlard.StageKey, term uint64, tokens []kevlard.Token, from, to int, intact bool) ([]Run, *Answer) {
	b.piece++
	r := protocol.Rows{Session: id, Fence: fence(term), Stage: stage, Class: "toy", CellBytes: 8, Pos: from, Tokens: tokens[from:to], Sums: make([]uint64, to-from)}
	if c := b.x.copies[copyKey{id, stage}]; c != nil {
		r.Try = c.try // the sender has heard of it
	}
	return b.x.Arrived(b.now, "src", b.piece, r, intact)
}

// underWay delivers a piece that its sender sent before it was told where to go on.
func (b *bench) underWay(id kevlard.SessionID, stage kevlard.StageKey, term uint64, tokens []kevlard.Token, from, to int) ([]Run, *Answer) {
	b.piece++
	return b.x.Arrived(b.now, "src", b.piece, protocol.Rows{
		Session: id, Fence: fence(term), Stage: stage, Class: "toy", CellBytes: 8, Pos: from, Tokens: tokens[from:to], Sums: make([]uint64, to-from),
		Try: b.x.copies[copyKey{id, stage}].try - 1,
	}, true)
}

// fill offers a copy of tokens and stores all of it that is not there.
func (b *bench) fill(id kevlard.SessionID, stage kevlard.StageKey, term uint64, tokens []kevlard.Token) {
	b.Helper()
	at := b.mustOffer(id, stage, term, tokens).Through
	if at == len(tokens) {
		return
	}
	if runs, a := b.arrive(id, stage, term, tokens, at, len(tokens), true); runs == nil {
		b.Fatalf("fill %s: %+v", id, a)
	}
	if a := b.x.Stored(b.now, b.piece); a == nil || a.Message.Through != len(tokens) {
		b.Fatalf("fill %s: %+v", id, a)
	}
}

func TestOfferFindsWhatIsHere(t *testing.T) {
	stage := stageOf(1, 0, 2)
	for _, tc := range []struct {
		name   string
		id     kevlard.SessionID
		tokens []kevlard.Token
		change func(*protocol.Offer)
		want   int
	}{
		{"its own copy", "a", count(10), nil, 10},
		{"its own copy, and more is known", "a", count(14), nil, 10},
		{"its own copy, cut inside the open block", "a", count(9), nil, 9},
		{"its own copy, cut inside a named block", "a", append(count(6), 99, 99), nil, 4},
		{"another session's blocks", "b", count(10), nil, 8},
		{"another session's blocks, a shorter prompt", "b", count(7), nil, 4},
		{"other tokens", "b", []kevlard.Token{7, 7, 7, 7}, nil, 0},
		{"another tenant", "b", count(10), func(o *protocol.Offer) { o.Salt = "x" }, 0},
		{"another class", "b", count(10), func(o *protocol.Offer) { o.Class = "gpu" }, 0},
		{"its own copy of another class", "a", count(10), func(o *protocol.Offer) { o.Class = "gpu" }, 0},
	} {
		b := newBench(t, 100)
		b.fill("a", stage, 1, count(10))
		o := protocol.Offer{
			Session: tc.id, Fence: fence(2), Owner: "owner", OwnerBoot: "owner.1", Stage: stage, Class: "toy", CellBytes: 8, Tokens: tc.tokens, Positions: 100,
		}
		if tc.change != nil {
			tc.change(&o)
		}
		if a := b.x.Offer(b.now, "src", o); a.Refusal != "" || a.Through != tc.want {
			t.Errorf("%s: %+v, want through %d", tc.name, a, tc.want)
		}
	}
}

func TestOfferRefusals(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.fill("a", stage, 3, count(4))
	if a := b.offer("a", stage, 2, count(4)); a.Refusal != protocol.RefusedStale {
		t.Errorf("an older term: %+v", a)
	}
	if a := b.x.Offer(b.now, "src", protocol.Offer{Session: "a", Fence: fence(3), Owner: "owner", OwnerBoot: "owner.2", Stage: stage, Class: "toy", CellBytes: 8, Tokens: count(4)}); a.Refusal != protocol.RefusedStale {
		t.Errorf("another boot of the owner: %+v", a)
	}
	if a := b.x.Offer(b.now, "src", protocol.Offer{Session: "b", Fence: fence(1), Owner: "owner", OwnerBoot: "owner.1", Stage: stage, Class: "toy", CellBytes: 16, Tokens: count(4)}); a.Refusal != protocol.RefusedNoStage {
		t.Errorf("another size of cells: %+v", a)
	}
	b.x.Close("owner", "a", 0, fence(3))
	if a := b.offer("a", stage, 3, count(4)); a.Refusal != protocol.RefusedStale {
		t.Errorf("a closed session: %+v", a)
	}
	if a := b.offer("a", stage, 4, count(4)); a.Refusal != "" || a.Through != 4 {
		t.Errorf("a closed session's next term: %+v", a)
	}
	for i := range 20 {
		if a := b.offer(kevlard.SessionID(rune('c'+i)), stage, 1, count(4)); i > 7 && a.Refusal != protocol.RefusedCapacity {
			t.Errorf("copy %d of at most 8: %+v", i+2, a)
		}
	}
}

// TestPieces checks what is placed, what is answered and what is dropped.
func TestPieces(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 3)
	ts := count(40)
	if _, a := b.arrive("s", stage, 1, ts, 0, 4, true); a == nil || a.Message.Refusal != protocol.RefusedUnknown {
		t.Errorf("rows of nobody: %+v", a)
	}
	b.mustOffer("s", stage, 1, ts)
	runs, a := b.arrive("s", stage, 1, ts, 0, 6, true)
	if a != nil || !slices.Equal(runs, []Run{{0, 0, 4}, {1, 0, 2}}) {
		t.Fatalf("runs %v, answer %+v", runs, a)
	}
	first := b.piece
	runs, _ = b.arrive("s", stage, 1, ts, 6, 9, true)
	if !slices.Equal(runs, []Run{{1, 2, 2}, {2, 0, 1}}) {
		t.Fatalf("runs %v", runs)
	}
	if a := b.x.Stored(b.now, b.piece); a != nil {
		t.Errorf("acknowledged %+v over a gap", a)
	}
	if a := b.x.Stored(b.now, first); a == nil || a.Message.Through != 9 || a.To != "src" {
		t.Errorf("acknowledged %+v, want 9 to src", a)
	}
	for name, wrong := range map[string]func() ([]Run, *Answer){
		"damaged": func() ([]Run, *Answer) { return b.arrive("s", stage, 1, ts, 9, 10, false) },
		"gap":     func() ([]Run, *Answer) { return b.arrive("s", stage, 1, ts, 10, 12, true) },
	} {
		if runs, a := wrong(); runs != nil || a == nil || !a.Message.Again || a.Message.Through != 9 {
			t.Errorf("%s: runs %v, answer %+v", name, runs, a)
		}
		if runs, a := b.underWay("s", stage, 1, ts, 12, 14); runs != nil || a != nil {
			t.Errorf("%s: what was under way before: runs %v, answer %+v", name, runs, a)
		}
		if runs, a := b.arrive("s", stage, 1, ts, 12, 14, true); runs != nil || a == nil || !a.Message.Again {
			t.Errorf("%s: what was sent again is lost too: runs %v, answer %+v", name, runs, a)
		}
	}
	if runs, a := b.arrive("s", stage, 1, ts, 9, 20, true); runs != nil || a == nil || a.Message.Refusal != protocol.RefusedCapacity {
		t.Errorf("no room: runs %v, answer %+v", runs, a)
	}
	if u := b.x.Usage(); u.Copies != 0 || u.Pins != 0 || u.Bytes != u.CachedBytes {
		t.Errorf("after a refusal %+v", u)
	}
}

// TestDamagedAgain: what is sent again and damaged again is asked for again.
func TestDamagedAgain(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.mustOffer("s", stage, 1, count(8))
	for range 3 {
		if _, a := b.arrive("s", stage, 1, count(8), 0, 4, false); a == nil || !a.Message.Again || a.Message.Through != 0 {
			t.Fatalf("a damaged piece is answered %+v", a)
		}
		if _, a := b.underWay("s", stage, 1, count(8), 4, 8); a != nil {
			t.Fatalf("what was under way is answered %+v", a)
		}
	}
	if runs, a := b.arrive("s", stage, 1, count(8), 0, 4, true); runs == nil {
		t.Fatalf("a good piece is answered %+v", a)
	}
}

// TestCondemnedWhileAsked: a copy that loses a block after its sender was told where
// to go on tells it again.
func TestCondemnedWhileAsked(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.fill("s", stage, 1, count(8))
	if _, a := b.arrive("s", stage, 1, count(12), 8, 12, false); a == nil || a.Message.Through != 8 {
		t.Fatalf("a damaged piece is answered %+v", a)
	}
	p := b.x.Pin(stage, "toy", "", "s", count(8), 0)
	b.x.Unpin(p, 5, true)
	if _, a := b.arrive("s", stage, 1, count(12), 8, 12, true); a == nil || !a.Message.Again || a.Message.Through != 4 {
		t.Fatalf("rows after what was lost are answered %+v, want again from 4", a)
	}
	if p := b.x.Pin(stage, "toy", "", "s", count(12), 0); p.N != 4 {
		t.Errorf("%d positions are left, want 4", p.N)
	}
}

// TestAbandonedRowsHitNobody: rows that are still on their way into a block when the
// copy goes on with others must not land in what is stored since.
func TestAbandonedRowsHitNobody(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.fill("s", stage, 1, count(2))
	old, _ := b.arrive("s", stage, 1, count(4), 2, 4, true)
	late := b.piece
	other := []kevlard.Token{1, 2, 9, 9}
	at := b.mustOffer("s", stage, 2, other).Through
	runs, _ := b.arrive("s", stage, 2, other, at, 4, true)
	if len(runs) == 0 || runs[0].Slot == old[0].Slot {
		t.Fatalf("places %v while others are on their way into %v", runs, old)
	}
	if a := b.x.Stored(b.now, late); a != nil {
		t.Errorf("abandoned rows are acknowledged: %+v", a)
	}
	if a := b.x.Stored(b.now, b.piece); a == nil || a.Message.Through != 4 {
		t.Errorf("acknowledged %+v, want 4", a)
	}
	if u := b.x.Usage(); u.Bytes != 32 || u.Pins != 0 {
		t.Errorf("%+v, want one block", u)
	}
}

// TestOneNameOneBlock checks that the older bytes of a name stay, and that other
// bytes of the same name are counted.
func TestOneNameOneBlock(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	ts := count(4)
	b.mustOffer("a", stage, 1, ts)
	b.mustOffer("b", stage, 1, ts)
	for i, id := range []kevlard.SessionID{"a", "b"} {
		b.arrive(id, stage, 1, ts, 0, 4, true)
		b.x.pieces[b.piece].sums[0] = uint64(i)
		b.x.Stored(b.now, b.piece)
	}
	if c := b.x.Counters(); c.Diverged != 1 {
		t.Errorf("%d blocks diverged, want 1", c.Diverged)
	}
	if u := b.x.Usage(); u.Bytes != 32 || u.Copies != 2 {
		t.Errorf("%+v, want one block for both", u)
	}
}

// TestNothingIsCachedOverTheLimit: blocks that were pinned while the limit fell
// are freed when the load ends, not cached above it.
func TestNothingIsCachedOverTheLimit(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.fill("a", stage, 1, count(8))
	p := b.x.Pin(stage, "toy", "", "a", count(8), 0)
	b.x.Shrink(0)
	if u := b.x.Usage(); u.Bytes != 64 || u.Pins != 2 {
		t.Fatalf("while a load reads: %+v", u)
	}
	b.x.Unpin(p, 8, false)
	if u := b.x.Usage(); u.Bytes != 0 {
		t.Errorf("%+v, and nothing is allowed", u)
	}
}

// TestCloseIsTheSameEachTime closes a session that has copies of two stages that
// start at one layer: which slots are free next must not depend on chance.
func TestCloseIsTheSameEachTime(t *testing.T) {
	wide, narrow := stageOf(1, 0, 4), stageOf(1, 0, 2)
	for range 20 {
		b := newBench(t, 4)
		b.fill("s", wide, 1, count(8))
		b.fill("s", narrow, 1, count(8))
		b.x.Close("owner", "s", 0, fence(1))
		b.mustOffer("z", narrow, 1, []kevlard.Token{9, 9, 9, 9})
		b.arrive("z", narrow, 1, []kevlard.Token{9, 9, 9, 9}, 0, 4, true)
		if p := b.x.Pin(wide, "toy", "", "s", count(8), 0); p.N != 8 {
			t.Fatalf("of the wide stage %d positions are left: the block that was least recently used is of the narrow one", p.N)
		}
	}
}

// TestCloseAtEachStageByItself: a copy that must stay does not keep others of the
// session at the same layer.
func TestCloseAtEachStageByItself(t *testing.T) {
	wide, narrow := stageOf(1, 0, 4), stageOf(1, 0, 2)
	for range 20 {
		b := newBench(t, 100)
		b.fill("s", wide, 1, count(8))
		b.fill("s", narrow, 2, count(8))
		b.x.Close("owner", "s", 0, fence(1))
		if u := b.x.Usage(); u.Copies != 1 {
			t.Fatalf("%d copies are left, want the one of the newer term", u.Copies)
		}
	}
}

// TestStagesAreForgotten: what peers name must not grow without end.
func TestStagesAreForgotten(t *testing.T) {
	b := newBench(t, 100)
	for i := range 1000 {
		stage := stageOf(1, i, i+1)
		b.mustOffer("s", stage, 1, count(4))
		b.x.Close("owner", "s", i, fence(1))
	}
	if n := len(b.x.pools); n > 16 {
		t.Errorf("%d stages are remembered, and nothing of them is held", n)
	}
}

func TestLowestFreeSlotFirst(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	for _, id := range []kevlard.SessionID{"a", "b", "c"} {
		b.fill(id, stage, 1, []kevlard.Token{kevlard.Token(id[0]), 1})
	}
	for _, id := range []kevlard.SessionID{"a", "b"} {
		b.x.Close("owner", id, 0, fence(1))
	}
	b.x.Shrink(32) // what is cached goes
	b.x.Shrink(3200)
	b.mustOffer("d", stage, 1, count(2))
	if runs, _ := b.arrive("d", stage, 1, count(2), 0, 2, true); !slices.Equal(runs, []Run{{0, 0, 2}}) {
		t.Errorf("runs %v, want the lowest free slot", runs)
	}
}

func TestLeases(t *testing.T) {
	stage := stageOf(1, 0, 2)
	b := newBench(t, 100)
	b.fill("quiet", stage, 1, count(4))
	b.fill("renewed", stage, 1, count(4))
	b.fill("stranger's", stage, 1, count(4))
	b.now = b.now.Add(9 * time.Second)
	b.x.Renew(b.now, "owner", []kevlard.SessionID{"renewed", "unknown"})
	b.x.Renew(b.now, "other", []kevlard.SessionID{"stranger's"})
	b.now = b.x.Deadline()
	b.x.Expire(b.now)
	if u := b.x.Usage(); u.Copies != 1 || b.x.copies[copyKey{"renewed", stage}] == nil || b.x.Counters().LeaseEnded != 2 {
		t.Errorf("%+v, %+v", u, b.x.Counters())
	}
	b.x.Expire(b.x.Deadline())
	if u := b.x.Usage(); u.Copies != 0 || b.x.Deadline() != kevlard.Never {
		t.Errorf("%+v, deadline %v", u, b.x.Deadline())
	}
}

func TestOwnerGone(t *testing.T) {
	stage := stageOf(1, 0, 2)
	for _, tc := range []struct {
		owner kevlard.NodeID
		boot  kevlard.BootID
		dead  bool
		want  int
	}{{"owner", "owner.1", false, 1}, {"owner", "owner.1", true, 0}, {"owner", "owner.2", false, 0}, {"owner", "owner.0", true, 1}, {"other", "owner.2", true, 1}} {
		b := newBench(t, 100)
		b.fill("s", stage, 1, count(4))
		b.x.OwnerGone(tc.owner, tc.boot, tc.dead)
		if u := b.x.Usage(); u.Copies != tc.want {
			t.Errorf("%+v: %d copies", tc, u.Copies)
		}
	}
}
