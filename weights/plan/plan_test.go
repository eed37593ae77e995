package plan

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// manner is how a holder of the test's world behaves.
type manner int

const (
	honest   manner = iota
	slow            // honest, takes 12 s for a chunk
	mute            // never answers
	refuser         // refuses, but not for good
	empty           // says that it has what it does not have
	garbler         // gives the right list and wrong chunks
	liar            // gives a list of its own, and chunks that match it
	vanisher        // honest, and gone for good after some answers
	manners
)

type peer struct {
	node    kevlard.NodeID
	manner  manner
	units   []bool
	answers int // until a vanisher is gone
	gone    bool
}

// content is what is in a chunk: 0 nothing, 1 the truth, else a lie.
type content int

// world is the plan's surroundings in virtual time.
type world struct {
	t       *rapid.T
	m       *Machine
	now     kevlard.Instant
	cfg     Config
	peers   []*peer
	disk    [][]content
	pending []pendingEvent
	asked   map[uint64]Ask
	got     int // chunks that came and were written
	dropped []Dropped
	end     Effect
}

type pendingEvent struct {
	at  kevlard.Instant
	ev  Event
	ask uint64 // dropped if this request was cancelled
}

func listOf(lie content) kevlard.Digest { return sha256.Sum256(fmt.Append(nil, lie)) }

func (w *world) peer(n kevlard.NodeID) (int, *peer) {
	i := slices.IndexFunc(w.peers, func(p *peer) bool { return p.node == n })
	return i, w.peers[i]
}

// says is what a peer claims the chunks to be.
func (w *world) says(i int) content {
	if w.peers[i].manner == liar {
		return content(2 + i%2) // two liars may agree
	}
	return 1
}

func (w *world) later(d time.Duration, ev Event, ask uint64) {
	w.pending = append(w.pending, pendingEvent{w.now.Add(d), ev, ask})
}

func (w *world) step(ev Event) {
	for _, e := range w.m.Step(w.now, ev, nil) {
		if w.end != nil {
			w.t.Fatalf("%#v after the end", e)
		}
		switch e := e.(type) {
		case AskList:
			w.askList(e)
		case Compare:
			have := make([]bool, w.cfg.Chunks[e.Unit])
			for c, v := range w.disk[e.Unit] {
				have[c] = v != 0 && listOf(v) == e.List
			}
			w.later(time.Millisecond, Compared{e.Unit, have}, 0)
		case Ask:
			w.ask(e)
		case Cancel:
			if _, ok := w.asked[e.Request]; !ok {
				w.t.Fatalf("request %d is cancelled, but not under way", e.Request)
			}
			delete(w.asked, e.Request)
		case Check:
			ok := !slices.ContainsFunc(w.disk[e.Unit], func(v content) bool { return v != 1 })
			if slices.Contains(w.disk[e.Unit], 0) {
				w.t.Fatalf("unit %d is checked with chunks missing", e.Unit)
			}
			w.later(time.Millisecond, Checked{Unit: e.Unit, OK: ok}, 0)
		case Dropped:
			w.dropped = append(w.dropped, e)
		case Done, GaveUp:
			w.end = e
		}
	}
	if n := len(w.asked); n > w.m.cfg.Total {
		w.t.Fatalf("%d requests under way", n)
	}
}

func (w *world) askList(e AskList) {
	i, p := w.peer(e.Node)
	switch {
	case p.gone || p.manner == mute:
	case p.manner == refuser:
		w.later(time.Millisecond, NotListed{Node: e.Node, Unit: e.Unit}, 0)
	case p.manner == empty || !p.units[e.Unit]:
		w.later(time.Millisecond, NotListed{Node: e.Node, Unit: e.Unit, Absent: true}, 0)
	default:
		w.later(time.Duration(rapid.IntRange(1, 5000).Draw(w.t, "list ms"))*time.Millisecond, Listed{e.Node, e.Unit, listOf(w.says(i))}, 0)
	}
}

func (w *world) ask(e Ask) {
	i, p := w.peer(e.Node)
	if p.manner != liar && p.manner != garbler && e.List != listOf(1) || p.manner == liar && e.List != listOf(w.says(i)) {
		w.t.Fatalf("%s is asked under a list that it did not give", e.Node)
	}
	w.asked[e.Request] = e
	if p.gone {
		return // the plan is about to hear of it
	}
	switch took := time.Duration(rapid.IntRange(1, 50).Draw(w.t, "chunk ms")) * time.Millisecond; p.manner {
	case slow:
		w.later(12*time.Second, Stored{e.Request}, e.Request)
	case garbler:
		w.later(took, Wrong{e.Request}, e.Request)
	case vanisher:
		if p.answers--; p.answers < 0 {
			p.gone = true
			w.later(took, Gone{p.node}, 0)
			return
		}
		w.later(took, Stored{e.Request}, e.Request)
	default:
		w.later(took, Stored{e.Request}, e.Request)
	}
}

// run is the world until the plan ends.
func (w *world) run() {
	for i, p := range w.peers {
		w.later(time.Duration(i)*time.Millisecond, Holder{p.node, uint64(i * 7 % 5), p.units}, 0)
	}
	w.step(Wake{})
	for steps := 0; w.end == nil; steps++ {
		if steps > 20000 || w.now > kevlard.Instant(time.Hour) {
			w.t.Fatalf("no end after %d steps and %v", steps, time.Duration(w.now))
		}
		next := w.m.Deadline(w.now)
		slices.SortStableFunc(w.pending, func(a, b pendingEvent) int { return int(a.at - b.at) })
		if len(w.pending) == 0 || next < w.pending[0].at {
			if next == kevlard.Never {
				w.t.Fatal("the plan waits for nothing")
			}
			w.now = max(w.now, next)
			w.step(Wake{})
			continue
		}
		p := w.pending[0]
		w.pending = w.pending[1:]
		w.now = max(w.now, p.at)
		if p.ask != 0 {
			e, ok := w.asked[p.ask]
			if !ok {
				continue // cancelled
			}
			delete(w.asked, p.ask)
			if s, ok := p.ev.(Stored); ok {
				i, _ := w.peer(e.Node)
				w.disk[e.Unit][e.Chunk] = w.says(i)
				w.got++
				w.step(s)
				continue
			}
		}
		w.step(p.ev)
	}
}

// TestEveryByteComes is the property of the whole: whoever else there is, a unit that an
// honest holder has comes, is what it should be, and comes once unless somebody lied;
// a unit that nobody has is named.
func TestEveryByteComes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, now: 1, asked: map[uint64]Ask{}}
		for range rapid.IntRange(1, 4).Draw(t, "units") {
			n := rapid.IntRange(1, 9).Draw(t, "chunks")
			w.cfg.Chunks = append(w.cfg.Chunks, n)
			disk := make([]content, n)
			for c := range disk { // of an earlier life
				disk[c] = content(rapid.IntRange(0, 3).Draw(t, "on disk"))
			}
			w.disk = append(w.disk, disk)
		}
		for i := range rapid.IntRange(0, 7).Draw(t, "peers") {
			p := &peer{node: kevlard.NodeID(fmt.Sprintf("n%d", i)), manner: manner(rapid.IntRange(0, int(manners)-1).Draw(t, "manner")), answers: rapid.IntRange(0, 5).Draw(t, "answers")}
			for range w.cfg.Chunks {
				p.units = append(p.units, rapid.IntRange(0, 3).Draw(t, "has") > 0)
			}
			w.peers = append(w.peers, p)
		}
		w.m = New(w.cfg)
		w.run()

		lies, lack := false, []int{}
		for _, p := range w.peers {
			lies = lies || p.manner == liar
		}
		for u := range w.cfg.Chunks {
			if !slices.ContainsFunc(w.peers, func(p *peer) bool { return p.manner <= slow && p.units[u] }) {
				lack = append(lack, u)
			}
		}
		switch end := w.end.(type) {
		case Done:
			for u, chunks := range w.disk {
				if slices.ContainsFunc(chunks, func(v content) bool { return v != 1 }) {
					t.Errorf("unit %d is done and not what it should be: %v", u, chunks)
				}
			}
		case GaveUp:
			if len(end.Damaged) > 0 || len(end.Missing) == 0 {
				t.Errorf("gave up with %+v", end)
			}
			for _, u := range end.Missing {
				if !slices.Contains(lack, u) {
					t.Errorf("gave up for want of unit %d, which an honest holder has", u)
				}
			}
		}
		prompt := true
		for u := range w.cfg.Chunks {
			prompt = prompt && slices.ContainsFunc(w.peers, func(p *peer) bool { return p.manner == honest && p.units[u] })
		}
		if most := kevlard.Instant(len(w.cfg.Chunks)) * kevlard.Instant(45*time.Second); prompt && w.now > most {
			t.Errorf("it took %v, although honest holders had everything: want at most %v", time.Duration(w.now), time.Duration(most))
		}
		most := 0
		for _, n := range w.cfg.Chunks {
			most += n
		}
		if !lies && w.got > most {
			t.Errorf("%d chunks were written, there are %d", w.got, most)
		}
		for _, d := range w.dropped {
			if _, p := w.peer(d.Node); d.Wrong && p.manner != liar && p.manner != garbler {
				t.Errorf("%s (manner %d) is said to be wrong", d.Node, p.manner)
			}
		}
	})
}

// TestDamageOnThisDisk wants chunks that are damaged between writing and checking to come
// again, and an end that blames no holder when that does not help.
func TestDamageOnThisDisk(t *testing.T) {
	m := New(Config{Chunks: []int{2}})
	now := kevlard.Instant(1)
	list := listOf(1)
	var out []Effect
	step := func(ev Event) []Effect {
		now++
		out = m.Step(now, ev, nil)
		return out
	}
	step(Holder{Node: "a", Units: []bool{true}})
	step(Listed{"a", 0, list})
	step(Compared{0, nil})
	for round := range 3 {
		asks := 0
		for _, e := range slices.Clone(out) {
			if a, ok := e.(Ask); ok {
				asks++
				step(Stored{a.Request})
			}
		}
		if want := 2 - min(round, 1); asks != want {
			t.Fatalf("round %d: %d chunks asked for, want %d", round, asks, want)
		}
		if !slices.Contains(out, Effect(Check{0, list})) {
			t.Fatalf("round %d: %v, want a check", round, out)
		}
		step(Checked{Unit: 0, Damaged: []int{1}})
	}
	if len(out) != 1 || fmt.Sprint(out[0]) != fmt.Sprint(GaveUp{Damaged: []int{0}}) {
		t.Errorf("%#v, want to give up for the disk's sake", out)
	}
}

// TestSlowHolderIsRelieved wants the last chunk, which a slow holder has, to come from
// another one.
func TestSlowHolderIsRelieved(t *testing.T) {
	m := New(Config{Chunks: []int{2}, PerHolder: 1})
	now := kevlard.Instant(1)
	m.Step(now, Holder{Node: "a", Units: []bool{true}}, nil)
	m.Step(now, Holder{Node: "b", Units: []bool{true}}, nil)
	m.Step(now, Listed{"a", 0, listOf(1)}, nil)
	m.Step(now, Listed{"b", 0, listOf(1)}, nil)
	asks := m.Step(now, Compared{0, nil}, nil)
	if len(asks) != 2 || asks[0].(Ask).Node == asks[1].(Ask).Node {
		t.Fatalf("%v, want one chunk of each", asks)
	}
	fast, late := asks[0].(Ask), asks[1].(Ask)
	if out := m.Step(now+1, Stored{fast.Request}, nil); len(out) != 0 {
		t.Fatalf("%v: the other is not late yet", out)
	}
	at := m.Deadline(now + 1)
	out := m.Step(at, Wake{}, nil)
	if len(out) != 1 || out[0].(Ask).Node != fast.Node || out[0].(Ask).Chunk != late.Chunk {
		t.Fatalf("%v at %v, want chunk %d of %s", out, time.Duration(at), late.Chunk, fast.Node)
	}
	second := out[0].(Ask)
	if out = m.Step(at+1, Stored{second.Request}, nil); len(out) != 2 || out[0] != Effect(Cancel{late.Request}) {
		t.Errorf("%v, want the late request cancelled and the unit checked", out)
	}
}
