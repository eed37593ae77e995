package stage

import (
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// warmed returns a stage with a hot copy of the leading 12 tokens of session "s".
func warmed(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(12), 12)
	b.out = b.m.Warm(b.now, "s", nil)
	loads := only[Load](b)
	if len(loads) != 1 {
		t.Fatalf("effects %+v, want one load", b.out)
	}
	b.out = b.m.Loaded(b.now, 1, loads[0].ID, 12, false, nil)
	return b
}

func TestHotCopyNeedsNoLoad(t *testing.T) {
	b := warmed(t)
	p := b.ask("s", 2, 14)
	p.Salt = "x"
	b.prepare(p)
	if a, _ := replies[protocol.Prepared](b); len(only[Load](b)) != 0 || len(a) != 1 || a[0].Have != 12 {
		t.Fatalf("effects %+v, want an answer of 12 at once", b.out)
	}
	b.send(item("s", 2, 12, 2, true, true))
	if x := b.running(); x.Parts[0].Pos != 12 {
		t.Errorf("goes on at %d", x.Parts[0].Pos)
	}
}

func TestHotCopyOfOtherTokensIsCut(t *testing.T) {
	b := warmed(t)
	p := b.ask("s", 2, 0)
	p.Salt, p.Tokens = "x", append(tokens(6), 90, 91, 92)
	b.prepare(p)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 6 {
		t.Errorf("answers %+v, want 6", a)
	}
}

func TestHotCopyOfAnotherSaltIsCut(t *testing.T) {
	b := warmed(t)
	p := b.ask("s", 2, 14)
	p.Salt = "other"
	b.prepare(p)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 0 {
		t.Errorf("answers %+v, want nothing held", a)
	}
	b = warmed(t)
	b.keep("s", "other", tokens(12), 12)
	b.out = b.m.Warm(b.now, "s", nil)
	if loads := only[Load](b); len(loads) != 1 || loads[0].Pos != 0 {
		t.Errorf("effects %+v, want all of it loaded again", b.out)
	}
}

func TestPrepareWaitsForTheHotLoad(t *testing.T) {
	b := newBench(t, false, Limits{})
	b.keep("s", "x", tokens(12), 12)
	b.out = b.m.Warm(b.now, "s", nil)
	load := only[Load](b)[0]
	p := b.ask("s", 2, 14)
	p.Salt = "x"
	b.prepare(p)
	if a, _ := replies[protocol.Prepared](b); len(a) != 0 {
		t.Fatalf("answered %+v while its cells are written", a)
	}
	b.out = b.m.Loaded(b.now, 1, load.ID, 12, false, nil)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Have != 12 {
		t.Errorf("answers %+v, want 12", a)
	}
}

func TestHotCopiesYieldTheirRoom(t *testing.T) {
	b := warmed(t)
	if b.m.FreeCells() != 1024 || b.m.Room() != 1024 {
		t.Errorf("%d free, room for %d: hot copies count as used", b.m.FreeCells(), b.m.Room())
	}
	p := b.ask("big", 1, 5)
	p.Positions = 1024
	b.prepare(p)
	if a, _ := replies[protocol.Prepared](b); len(a) != 1 || a[0].Refusal != "" {
		t.Fatalf("answers %+v", a)
	}
	b.m.Cool("s")
	b.out = b.m.Close(b.now, "owner", protocol.Close{Session: "big", Fence: fence(1), Lo: 2}, nil)
	if n := b.m.cells.available(); n != 1024 {
		t.Errorf("%d cells are free in the end", n)
	}
}

func TestCoolFreesAndDeathForgets(t *testing.T) {
	b := warmed(t)
	b.m.Cool("s")
	if n := b.m.cells.available(); n != 1024 {
		t.Errorf("%d cells are free after the copy went", n)
	}
	b = warmed(t)
	b.out = b.m.EngineExited(b.now, 1, false, "killed", nil)
	if len(b.m.warm) != 0 {
		t.Error("a dead engine has hot copies")
	}
	if _, ok := b.m.cfg.Copies.Copy(b.m.Key(), kevlard.SessionID("s")); !ok {
		t.Error("the copy in the daemon's memory died with the engine")
	}
}
