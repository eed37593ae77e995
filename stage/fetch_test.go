package stage

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard/protocol"
)

// asking prepares a session of 40 tokens whose copy is at a keeper.
func asking(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, false, Limits{})
	p := b.ask("s", 2, 40)
	p.Salt, p.Source, p.Mark, p.Recovery = "x", "keeper", 40, true
	b.prepare(p)
	f, to := replies[protocol.Fetch](b)
	if a, _ := replies[protocol.Prepared](b); len(a) != 0 || len(f) != 1 || to[0] != "keeper" || f[0].From != 0 {
		t.Fatalf("effects %+v, want a fetch and no answer", b.out)
	}
	return b
}

// come stores n positions that the keeper sent.
func (b *bench) come(n int) {
	b.Helper()
	x := b.m.cfg.Copies
	if runs, _ := x.Arrived(b.now, "keeper", 1, protocol.Rows{
		Session: "s", Fence: fence(2), Stage: b.m.Key(), Class: "toy", CellBytes: cellBytes, Tokens: tokens(n), Sums: make([]uint64, n),
	}, true); runs == nil {
		b.Fatal("the rows have no place")
	}
	x.Stored(b.now, 1)
	b.out = b.m.Grown(b.now, "s", nil)
}

func (b *bench) loads(n int) {
	b.Helper()
	l := only[Load](b)
	if len(l) != 1 {
		b.Fatalf("effects %+v, want a load", b.out)
	}
	b.out = b.m.Loaded(b.now, 1, l[0].ID, n, false, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != n {
		b.Errorf("answers %+v, want %d", a, n)
	}
}

// TestNothingIsDueThatWaits: what keeps rows from being sent keeps the stage from
// asking to be woken for them, or it would be woken for ever.
func TestNothingIsDueThatWaits(t *testing.T) {
	for name, wait := range map[string]func(*bench){
		"a fetch": func(b *bench) {
			p := b.ask("s", 2, 60)
			p.Standby, p.Source, p.Mark, p.Recovery = "spare", "keeper", 60, true
			b.prepare(p)
			if f, _ := replies[protocol.Fetch](b); len(f) != 1 {
				b.Fatalf("effects %+v, want a fetch", b.out)
			}
		},
		"a load": func(b *bench) {
			b.keep("s", "x", tokens(12), 12)
			p := b.ask("s", 2, 20)
			p.Standby, p.Salt = "spare", "x"
			b.prepare(p)
			if len(only[Load](b)) != 1 {
				b.Fatalf("effects %+v, want a load", b.out)
			}
		},
		"a batch": func(b *bench) {
			b.send(item("s", 1, 5, 5, false, true))
			b.prepare(b.ask("s", 2, 20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false, Limits{})
			b.withStandby("s", 20)
			b.send(item("s", 1, 0, 5, true, true))
			b.finish(b.running())
			wait(b)
			for range 100 {
				at := b.m.Deadline()
				if at > b.now.Add(time.Minute) {
					return
				}
				b.now = max(at, b.now)
				b.out = b.m.Wake(b.now, 0, nil)
				if len(b.out) == 0 && b.m.Deadline() <= b.now {
					t.Fatalf("at %v it is woken, does nothing, and is to be woken at %v", b.now, b.m.Deadline())
				}
			}
		})
	}
}

func TestFetchThenLoad(t *testing.T) {
	b := asking(t)
	b.out = b.m.Fetched(b.now, "keeper", protocol.Fetched{Session: "s", Fence: fence(2), Stage: b.m.Key(), Through: 30}, nil)
	if len(only[Load](b)) != 0 {
		t.Fatal("loads before anything came")
	}
	b.come(30)
	b.loads(30)
}

func TestRowsBeforeTheWord(t *testing.T) {
	b := asking(t)
	b.come(30)
	b.out = b.m.Fetched(b.now, "keeper", protocol.Fetched{Session: "s", Fence: fence(2), Stage: b.m.Key(), Through: 30}, nil)
	b.loads(30)
}

func TestSilentKeeperIsNotWaitedFor(t *testing.T) {
	b := asking(t)
	b.come(7)
	b.pass(time.Second)
	b.out = b.m.Wake(b.now, 0, nil)
	b.loads(7)
}

// TestKeeperThatRefuses: the stage answers at once, with what is there, and tells the
// owner unless the keeper is only busy.
func TestKeeperThatRefuses(t *testing.T) {
	for why, cause := range map[protocol.Refusal]string{
		protocol.RefusedUnknown: "no copy: why", protocol.RefusedLink: "unreachable: why", protocol.RefusedCapacity: "",
	} {
		t.Run(string(why), func(t *testing.T) {
			b := asking(t)
			b.out = b.m.Fetched(b.now, "keeper", protocol.Fetched{Session: "s", Fence: fence(2), Stage: b.m.Key(), Refusal: why, Detail: "why"}, nil)
			if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 0 {
				t.Errorf("answers %+v, want one with nothing", a)
			}
			lost, to := replies[protocol.StandbyLost](b)
			switch {
			case cause == "" && len(lost) == 0:
			case len(lost) != 1 || to[0] != "owner" || lost[0].Standby != "keeper" || lost[0].Cause != cause || lost[0].Fence != fence(2):
				t.Errorf("tells %v of %+v, want of cause %q", to, lost, cause)
			}
		})
	}
}

// TestKeeperThatCannotSendTheRest: what it sent before is waited for, in whatever
// order its word and its rows come.
func TestKeeperThatCannotSendTheRest(t *testing.T) {
	promise := protocol.Fetched{Session: "s", Fence: fence(2), Through: 30}
	refusal := protocol.Fetched{Session: "s", Fence: fence(2), Through: 7, Refusal: protocol.RefusedLink}
	for name, rowsFirst := range map[string]bool{"rows first": true, "word first": false} {
		t.Run(name, func(t *testing.T) {
			b := asking(t)
			b.out = b.m.Fetched(b.now, "keeper", promise, nil)
			if rowsFirst {
				b.come(7)
				b.out = b.m.Fetched(b.now, "keeper", refusal, nil)
			} else {
				b.out = b.m.Fetched(b.now, "keeper", refusal, nil)
				if len(only[Load](b)) != 0 {
					t.Fatal("does not wait for the rows that were sent")
				}
				b.come(7)
			}
			b.loads(7)
		})
	}
}

func TestNewerTermWhileFetching(t *testing.T) {
	b := asking(t)
	b.prepare(b.ask("s", 3, 40))
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Fence != fence(3) {
		t.Errorf("answers %+v, want one for term 3", a)
	}
	b.out = b.m.Fetched(b.now, "keeper", protocol.Fetched{Session: "s", Fence: fence(2), Stage: b.m.Key(), Through: 0}, nil)
	if len(b.out) != 0 {
		t.Errorf("an old answer does %+v", b.out)
	}
}
