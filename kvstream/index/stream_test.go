package index

import (
	"iter"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

func policy() Policy {
	return Policy{Tokens: 4, Delay: 50 * time.Millisecond, Window: 16, Piece: 8, Slow: time.Second}
}

func TestStreamSendsInPieces(t *testing.T) {
	p, now := policy(), kevlard.Instant(1)
	s := NewStream(now, "standby", 1)
	next := func(want0, want1 kevlard.Pos) {
		t.Helper()
		if from, to := s.Next(now, p); from != want0 || to != want1 {
			t.Fatalf("sends [%d,%d), want [%d,%d)", from, to, want0, want1)
		}
	}
	s.Computed(now, 3)
	next(0, 0) // nobody has answered the offer
	if !s.Stored(now, protocol.Stored{Through: 2}) {
		t.Fatal("an answer is a refusal")
	}
	next(0, 0) // too few, and too young
	if d := s.Deadline(p); d != now.Add(p.Delay) {
		t.Fatalf("deadline %v", d)
	}
	now = now.Add(p.Delay)
	next(2, 3)
	s.Sent(now, 3)
	s.Computed(now, 40)
	for _, want := range [][2]kevlard.Pos{{3, 11}, {11, 18}} { // a piece, and what the window leaves
		next(want[0], want[1])
		s.Sent(now, want[1])
	}
	next(0, 0)
	s.Stored(now, protocol.Stored{Through: 11})
	next(18, 26)
	s.Sent(now, 26)
	s.Stored(now, protocol.Stored{Through: 9}) // late
	if s.Acked() != 11 {
		t.Errorf("acknowledged %d after a late answer", s.Acked())
	}
	s.Stored(now, protocol.Stored{Through: 9, Again: true})
	next(9, 17)
	if s.Stored(now, protocol.Stored{Refusal: protocol.RefusedCapacity}) {
		t.Error("a refusal is taken for an answer")
	}
}

// TestStreamKeepsPiecesApart wants a fast session to send fewer and larger pieces, and none
// to wait for longer than a position may.
func TestStreamKeepsPiecesApart(t *testing.T) {
	p := policy()
	p.Gap, p.Piece, p.Window = 30*time.Millisecond, 40, 64
	const ms = kevlard.Instant(time.Millisecond)
	for _, c := range []struct {
		name string
		held []kevlard.Pos // after each millisecond
		want []kevlard.Instant
	}{
		{"one a millisecond", slices.Collect(counted(80, 1)), []kevlard.Instant{4, 34, 64}},
		{"thirty a millisecond: full pieces wait for nothing", slices.Collect(counted(12, 30)), []kevlard.Instant{1, 3, 4, 5, 7, 8, 9, 11, 12}},
		{"one in ten: the tokens say when", slices.Collect(counted(130, 0.1)), []kevlard.Instant{40, 80, 120}},
		{"one in sixty: the delay says when", slices.Collect(counted(130, 1.0/60)), []kevlard.Instant{110}},
	} {
		s := NewStream(1, "standby", 1)
		s.Stored(1, protocol.Stored{})
		var got []kevlard.Instant
		for i, held := range c.held {
			now := kevlard.Instant(i+1)*ms + 1
			s.Computed(now, held)
			from, to := s.Next(now, p)
			if due := s.Deadline(p); from == to && held > s.sent && due <= now {
				t.Errorf("%s: nothing to send at %d ms, but due since %v", c.name, i+1, now.Sub(due))
			}
			if from < to {
				got = append(got, kevlard.Instant(i+1))
				s.Sent(now, to)
				s.Stored(now, protocol.Stored{Through: to})
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: sent at %v ms, want %v", c.name, got, c.want)
		}
	}
}

// counted yields how many positions are finished after each of n milliseconds.
func counted(n int, rate float64) iter.Seq[kevlard.Pos] {
	return func(yield func(kevlard.Pos) bool) {
		for i := range n {
			if !yield(kevlard.Pos(float64(i+1) * rate)) {
				return
			}
		}
	}
}

func TestStreamGivesUpTheSlow(t *testing.T) {
	p, now := policy(), kevlard.Instant(1)
	s := NewStream(now, "standby", 1)
	if s.Overdue(now.Add(p.Slow-1), p) || !s.Overdue(now.Add(p.Slow), p) || s.Deadline(p) != now.Add(p.Slow) {
		t.Error("an offer without an answer")
	}
	s.Forgive(time.Second)
	if s.Overdue(now.Add(p.Slow), p) {
		t.Error("a late judge blames the standby")
	}
	s.Stored(now, protocol.Stored{})
	now = now.Add(time.Hour)
	s.Computed(now, 4)
	if s.Overdue(now, p) {
		t.Error("nothing was owed")
	}
	s.Sent(now, 4)
	if s.Overdue(now.Add(p.Slow-1), p) || !s.Overdue(now.Add(p.Slow), p) {
		t.Error("rows without an answer")
	}
	s = NewStream(now, "standby", 1)
	s.Stored(now, protocol.Stored{})
	for k := range 4 { // what is sent meanwhile wins it no time
		s.Computed(now, 4*k+4)
		s.Sent(now, 4*k+4)
		s.Left(now.Add(1))
		if s.Overdue(now.Add(1), p) {
			t.Error("given up too early")
		}
		now = now.Add(p.Slow / 4)
	}
	if now = now.Add(1); !s.Overdue(now, p) || s.Deadline(p) != now {
		t.Errorf("many rows without an answer: due in %v", s.Deadline(p).Sub(now))
	}
	s.Stored(now, protocol.Stored{Through: 4})
	if s.Overdue(now.Add(p.Slow-1), p) || !s.Overdue(now.Add(p.Slow), p) {
		t.Error("it owes the rest from its last answer on")
	}
	if z := (Stream{}); z.Overdue(now, p) || z.Deadline(p) != kevlard.Never {
		t.Error("no standby is overdue")
	}
}

// TestStreamCatchesUp plays a sender and a standby over a link that keeps order
// and damages rows, with a standby that forgets: in the end all is there.
func TestStreamCatchesUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := policy(), kevlard.Instant(1)
		stage, log := stageOf(1, 0, 2), count(200)
		x := New(Config{BlockTokens: 4, Bytes: 1 << 20})
		var s Stream
		var link []protocol.Rows
		var back []Answer
		var storing []uint64
		held, piece := 0, uint64(0)
		offer := func() {
			s = NewStream(now, "standby", 1)
			s.Computed(now, held)
			back = append(back, Answer{Message: x.Offer(now, "src", protocol.Offer{
				Session: "s", Fence: fence(1), Owner: "o", OwnerBoot: "o.1", Stage: stage, Class: "toy", CellBytes: 8, Tokens: log[:max(1, held)], Positions: len(log),
			})})
		}
		send := func() {
			for {
				from, to := s.Next(now, p)
				if to == from {
					return
				}
				if to > held || to-from > p.Piece || to > s.Acked()+p.Window {
					t.Fatalf("sends [%d,%d) of %d, acknowledged %d", from, to, held, s.Acked())
				}
				link = append(link, protocol.Rows{
					Session: "s", Fence: fence(1), Stage: stage, Class: "toy", CellBytes: 8, Pos: from, Tokens: log[from:to], Sums: make([]uint64, to-from),
					Try: s.Try(),
				})
				s.Sent(now, to)
			}
		}
		arrive := func(intact bool) {
			piece++
			runs, a := x.Arrived(now, "src", piece, link[0], intact)
			link = link[1:]
			if runs != nil {
				storing = append(storing, piece)
			}
			if a != nil {
				back = append(back, *a)
			}
		}
		store := func(i int) {
			if a := x.Stored(now, storing[i]); a != nil {
				back = append(back, *a)
			}
			storing = append(storing[:i], storing[i+1:]...)
		}
		hear := func() {
			a := back[0]
			back = back[1:]
			if !s.Stored(now, a.Message) {
				offer()
			}
		}
		offer()
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { send() },
			"compute": func(t *rapid.T) {
				held = min(len(log), held+rapid.IntRange(1, 20).Draw(t, "n"))
				s.Computed(now, held)
			},
			"wait": func(*rapid.T) { now = now.Add(20 * time.Millisecond) },
			"arrive": func(t *rapid.T) {
				if len(link) > 0 {
					arrive(rapid.IntRange(0, 4).Draw(t, "damaged") > 0)
				}
			},
			"lose": func(t *rapid.T) {
				if len(link) > 0 && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					link = link[1:]
				}
			},
			"store": func(t *rapid.T) {
				if len(storing) > 0 {
					store(rapid.IntRange(0, len(storing)-1).Draw(t, "which"))
				}
			},
			"hear": func(*rapid.T) {
				if len(back) > 0 {
					hear()
				}
			},
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					x.OwnerGone("o", "o.1", true)
				}
			},
			"offer again": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					offer()
				}
			},
		})
		for range 2000 {
			now = now.Add(p.Delay)
			x.Renew(now, "o", []kevlard.SessionID{"s"})
			if s.Overdue(now, p) { // the copy was dropped when nothing was left to send
				offer()
			}
			send()
			for len(link) > 0 {
				arrive(true)
			}
			for len(storing) > 0 {
				store(0)
			}
			for len(back) > 0 {
				hear()
			}
			if s.Acked() >= held {
				break
			}
		}
		if c := x.copies[copyKey{"s", stage}]; s.Acked() < held || c != nil && c.stored < held {
			t.Fatalf("%d of %d positions are acknowledged in the end: %+v, %+v", s.Acked(), held, s, c)
		}
	})
}
