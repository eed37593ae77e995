package index

import (
	"testing"

	"github.com/kevlard/kevlard/protocol"
)

func TestUnstoredGivesTheCopyUp(t *testing.T) {
	b, stage, tokens := newBench(t, 8), stageOf(1, 0, 2), count(20)
	b.fill("s", stage, 1, tokens[:6])
	b.arrive("s", stage, 1, tokens, 6, 10, true)
	first := b.piece
	b.arrive("s", stage, 1, tokens, 10, 12, true)
	a := b.x.Unstored(first, "no memory")
	if a == nil || a.To != "src" || a.Message.Refusal != protocol.RefusedCapacity || a.Message.Detail != "no memory" {
		t.Fatalf("answer %+v", a)
	}
	if a := b.x.Unstored(first, "no memory"); a != nil {
		t.Errorf("the same piece twice: %+v", a)
	}
	if a := b.x.Stored(b.now, b.piece); a != nil {
		t.Errorf("a piece of a copy that is given up is acknowledged: %+v", a)
	}
	if a := b.x.Unstored(99, "no memory"); a != nil {
		t.Errorf("a piece that never came: %+v", a)
	}
	if u := b.x.Usage(); u.Copies != 0 || u.Pins != 0 || u.Bytes != u.CachedBytes {
		t.Errorf("left: %+v", u)
	}
}
