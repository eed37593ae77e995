package index

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kevlard/kevlard"
)

// Freed names slots of a stage that hold nothing any more.
type Freed struct {
	Stage kevlard.StageKey
	Slots []int
}

// slotKey names one slot.
type slotKey struct {
	stage kevlard.StageKey
	slot  int
}

// TakeFreed returns the slots that were freed since it was last asked and are still
// free, by stage and number: their memory may serve for something else.
func (x *Index) TakeFreed() []Freed {
	if len(x.freed) == 0 {
		return nil
	}
	all := slices.SortedFunc(maps.Keys(x.freed), func(a, b slotKey) int {
		return cmp.Or(a.stage.Compare(b.stage), cmp.Compare(a.slot, b.slot))
	})
	clear(x.freed)
	var out []Freed
	for _, k := range all {
		if n := len(out); n == 0 || out[n-1].Stage != k.stage {
			out = append(out, Freed{Stage: k.stage})
		}
		last := &out[len(out)-1]
		last.Slots = append(last.Slots, k.slot)
	}
	return out
}
