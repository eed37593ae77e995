package stage

import (
	"reflect"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"pgregory.net/rapid"
)

// busy occupies the engine with a session of its own and returns its batch.
func (b *bench) busy() Batch {
	b.Helper()
	b.mustPrepare("busy", 1, 1)
	b.send(item("busy", 1, 0, 1, true, true))
	return b.running()
}

// TestLastChunkDoesNotOvertake guards against a prefill whose last chunk has one
// token: it looks like a decode, and must still wait for the chunks before it.
func TestLastChunkDoesNotOvertake(t *testing.T) {
	b := newBench(t, true, Limits{})
	x := b.busy()
	b.mustPrepare("s", 1, 65)
	b.send(item("s", 1, 0, 63, true, false))
	b.send(item("s", 1, 63, 1, false, true))
	for at := 0; at < 64; {
		b.finish(x)
		x = b.running()
		if len(x.Parts) != 1 || x.Parts[0].Pos != at {
			t.Fatalf("batch %+v, want position %d next", x, at)
		}
		at += len(x.Parts[0].Tokens)
	}
}

func TestDecodesGoFirstButDoNotStarvePrefills(t *testing.T) {
	b := newBench(t, true, Limits{BatchRows: 8})
	x := b.busy()
	b.mustPrepare("long", 1, 60)
	b.send(item("long", 1, 0, 60, true, true))
	for _, id := range []kevlard.SessionID{"a", "b", "c", "d", "e", "f", "g"} {
		b.out = b.m.Prepare(b.now, "owner", func() protocol.Prepare {
			p := b.ask(id, 1, 1)
			p.Positions = 32
			return p
		}(), true, false, nil)
		b.send(item(id, 1, 0, 1, true, true))
	}
	b.finish(x)
	x = b.running()
	decodes, chunk := 0, 0
	for _, p := range x.Parts {
		if len(p.Tokens) == 1 && p.Pos == 0 && p.Sample {
			decodes++
		} else {
			chunk += len(p.Tokens)
		}
	}
	if decodes != 6 || chunk != 2 {
		t.Errorf("%d decodes and %d prefill rows in a batch of 8, want 6 and 2", decodes, chunk)
	}
}

// TestPrefillsFillLargerBatchesWhileNobodyDecodes: once a session here decodes, its
// next token must not wait for a long batch.
func TestPrefillsFillLargerBatchesWhileNobodyDecodes(t *testing.T) {
	b := newBench(t, true, Limits{})
	b.m.pace = pace{fixed: time.Millisecond, row: time.Millisecond, lessons: warmUp, largest: 512}
	chunk := func(id kevlard.SessionID, term uint64) Batch {
		b.mustPrepare(id, term, 64)
		b.send(item(id, term, 0, 64, true, true))
		return b.running()
	}
	first := chunk("a", 1)
	if n := len(first.Parts[0].Tokens); n != 64 {
		t.Errorf("alone, a batch has %d rows, want all 64", n)
	}
	b.finish(first)
	second := chunk("b", 1)
	if n := len(second.Parts[0].Tokens); n > 25 {
		t.Errorf("beside a session that decodes, a batch has %d rows of a millisecond, want about 20", n)
	}
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "a", Fence: fence(1)}, nil)
	b.finish(second)
	if rest := b.running(); len(rest.Parts[0].Tokens) < 40 {
		t.Errorf("with that one closed, a batch has %d rows, want the rest", len(rest.Parts[0].Tokens))
	}
}

func TestSoloRunsAlone(t *testing.T) {
	b := newBench(t, true, Limits{})
	x := b.busy()
	for _, id := range []kevlard.SessionID{"a", "b"} {
		b.mustPrepare(id, 1, 1)
		b.send(item(id, 1, 0, 1, true, true))
	}
	p := b.ask("solo", 1, 3)
	p.Solo, p.Recovery = true, true
	if a, _ := b.prepare(p); a.Refusal != "" {
		t.Fatalf("%+v", a)
	}
	b.send(item("solo", 1, 0, 3, true, true))
	b.mustPrepare("c", 1, 1)
	b.send(item("c", 1, 0, 1, true, true))
	var sizes []int
	for b.m.batch != nil {
		b.finish(x)
		if b.m.batch != nil {
			x = b.running()
			sizes = append(sizes, len(x.Parts))
		}
	}
	if len(sizes) != 2 || sizes[0] != 3 || sizes[1] != 1 {
		t.Errorf("batches of %v parts, want a, b, c together and solo alone", sizes)
	}
	// Its replay went well, so it need not be alone any more.
	x = func() Batch { b.send(item("busy", 1, 1, 1, false, true)); return b.running() }()
	b.send(item("solo", 1, 3, 1, false, true))
	b.send(item("a", 1, 1, 1, false, true))
	b.finish(x)
	if x = b.running(); len(x.Parts) != 2 {
		t.Errorf("%d parts, want the cleared session with another", len(x.Parts))
	}
}

func TestBatchDescribesParts(t *testing.T) {
	b := newBench(t, true, Limits{})
	p := b.ask("s", 1, 5)
	p.Sampling = kevlard.Sampling{Temperature: 0.5, Seed: 7}
	b.prepare(p)
	b.send(item("s", 1, 0, 5, true, true))
	x := b.running()
	part := x.Parts[0]
	if !part.Sample || !reflect.DeepEqual(part.Sampling, p.Sampling) || len(part.History) != 5 || part.Pos != 0 || len(part.Rows) != 5*width {
		t.Errorf("part %+v", part)
	}
	b.finish(x)
	steps, to := replies[protocol.Step](b)
	want := protocol.Step{Session: "s", Fence: fence(1), Next: 5, Sampled: true, Token: 9, Marks: []kevlard.Pos{-1}}
	if len(steps) != 1 || !reflect.DeepEqual(steps[0], want) || to[0] != "owner" {
		t.Errorf("steps %+v to %v", steps, to)
	}
}

func TestOutputIsSplitByNextHop(t *testing.T) {
	b := newBench(t, false, Limits{})
	x := b.busy()
	for _, id := range []kevlard.SessionID{"a", "b", "c"} {
		p := b.ask(id, 1, 4)
		if id == "b" {
			p.Next = "other"
		}
		b.prepare(p)
		b.send(item(id, 1, 0, 4, true, false))
	}
	b.finish(x)
	b.finish(b.running())
	fs := only[Forward](b)
	if len(fs) != 2 || fs[0].To != "next" || len(fs[0].Frame.Items) != 2 || fs[1].To != "other" || len(fs[1].Frame.Items) != 1 {
		t.Fatalf("forwards %+v", fs)
	}
	it := fs[0].Frame.Items[0]
	if it.Lo != 4 || it.Width != width || len(it.Rows) != 4*width || !it.Start || it.Session != "a" {
		t.Errorf("item %+v", it)
	}
}

// TestFramesAreCutAndWhole checks that cutting loses nothing and respects the
// bounds.
func TestFramesAreCutAndWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom([]int{8, 2304, 16384, protocol.MaxWidth}).Draw(t, "width")
		var items []protocol.Item
		for i := range rapid.IntRange(1, 12).Draw(t, "items") {
			n := rapid.IntRange(1, 100).Draw(t, "n")
			it := item(kevlard.SessionID(rune('a'+i)), 1, 3, n, true, true)
			it.Width, it.Rows = w, make([]byte, n*w)
			items = append(items, it)
		}
		at := 0
		pos := items[0].Pos
		for _, f := range frames(items) {
			body := 0
			if len(f.Items) == 0 {
				t.Fatal("an empty frame")
			}
			for _, it := range f.Items {
				body += len(it.Rows)
				want := items[at]
				if it.Session != want.Session || it.Pos != pos || len(it.Rows) != w*len(it.Tokens) {
					t.Fatalf("item %s at %d, want %s at %d", it.Session, it.Pos, want.Session, pos)
				}
				last := it.End() == want.End()
				if it.Start != (it.Pos == want.Pos) || it.Sample != last {
					t.Fatalf("item [%d,%d) start %v sample %v", it.Pos, it.End(), it.Start, it.Sample)
				}
				if pos = it.End(); last {
					if at++; at < len(items) {
						pos = items[at].Pos
					}
				}
			}
			if body > protocol.MaxBody {
				t.Fatalf("a frame of %d bytes", body)
			}
		}
		if at != len(items) {
			t.Fatalf("%d of %d items went out", at, len(items))
		}
	})
}

// TestPaceLearns plays engines of many speeds: batches must come near the time
// they are meant to take, and none may look stalled on the way.
func TestPaceLearns(t *testing.T) {
	for _, tc := range []struct {
		name       string
		fixed, row time.Duration
		least      int // rows a batch should have in the end
	}{
		{"fast", 200 * time.Microsecond, 10 * time.Microsecond, 300},
		{"reads weights for 30 ms", 30 * time.Millisecond, 100 * time.Microsecond, 100},
		{"one slow core", time.Millisecond, 30 * time.Millisecond, 1},
		{"a very slow core", time.Millisecond, 300 * time.Millisecond, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPace()
			for range 40 { // decodes first: they teach the fixed part
				p.learn(1, tc.fixed+tc.row, false)
			}
			for i := range 200 {
				n := min(512, p.rows(20*time.Millisecond))
				took := tc.fixed + time.Duration(n)*tc.row
				if patience := max(600*time.Millisecond, 10*p.predict(n)); took > patience {
					t.Fatalf("batch %d of %d rows takes %v and counts as stalled after %v", i, n, took, patience)
				}
				p.learn(n, took, false)
			}
			if n := p.rows(20 * time.Millisecond); n < tc.least {
				t.Errorf("batches of %d rows in the end, want at least %d (%+v)", n, tc.least, p)
			}
		})
	}
}

// TestPaceRecovers plays a slow hour: afterwards batches must grow again.
func TestPaceRecovers(t *testing.T) {
	p := newPace()
	engine := func(row time.Duration) {
		for range 300 {
			n := min(512, p.rows(20*time.Millisecond))
			p.learn(n, time.Millisecond+time.Duration(n)*row, false)
		}
	}
	engine(50 * time.Microsecond)
	before := p.rows(20 * time.Millisecond)
	engine(40 * time.Millisecond)
	engine(50 * time.Microsecond)
	if after := p.rows(20 * time.Millisecond); after < before/2 {
		t.Errorf("batches of %d rows before the slow hour, %d after it", before, after)
	}
}

// TestPaceLeavesSmallBatches: after a slow time both parts are thought to be dear, and all
// batches are small. Those that leave work behind find out.
func TestPaceLeavesSmallBatches(t *testing.T) {
	const fixed, row = 20 * time.Millisecond, 1500 * time.Microsecond
	p := pace{fixed: 10 * time.Millisecond, row: 10 * time.Millisecond, lessons: 100, largest: 500}
	for range 100 {
		n := p.rows(20 * time.Millisecond)
		p.learn(n, fixed+time.Duration(n)*row, true)
	}
	if n := p.rows(20 * time.Millisecond); n < 8 || n > 20 {
		t.Errorf("%d rows a batch with %+v, want about 13", n, p)
	}
}
