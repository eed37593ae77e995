package index

import (
	"slices"
	"testing"
)

// TestFreedSlots frees, uses again and evicts, and wants to be told of the slots that
// are free.
func TestFreedSlots(t *testing.T) {
	b, one, two := newBench(t, 5), stageOf(1, 0, 2), stageOf(2, 0, 2)
	want := func(what string, want ...Freed) {
		t.Helper()
		if got := b.x.TakeFreed(); !slices.EqualFunc(got, want, func(a, b Freed) bool { return a.Stage == b.Stage && slices.Equal(a.Slots, b.Slots) }) {
			t.Errorf("%s: freed %+v, want %+v", what, got, want)
		}
	}
	b.fill("s", one, 1, count(10)) // slots 0 to 2, of which the last is open
	b.fill("r", two, 1, count(4))
	want("nothing has gone")
	b.x.Close("owner", "s", 0, fence(1))
	want("nothing: its blocks are cached, the open one too")
	b.fill("q", two, 1, count(20)[9:]) // three slots, for which cached blocks go
	b.x.Close("owner", "q", 0, fence(1))
	want("the end of what was cached", Freed{one, []int{1, 2}})
	b.x.Shrink(0)
	want("all", Freed{one, []int{0}}, Freed{two, []int{0, 1, 2, 3}})
	want("told once")
}
