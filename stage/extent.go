package stage

import "slices"

// cellAlign is the granularity of extents: attention works on runs of this many
// cells, so extents never share one.
const cellAlign = 32

// extents hands out runs of an engine's KV cells, first fit. It never splits a
// grant, so one session's rows stay contiguous.
type extents struct {
	total int
	free  []span // sorted by cell, never adjacent
}

type span struct{ cell, n int }

func newExtents(total int) *extents {
	total -= total % cellAlign
	e := &extents{total: total}
	if total > 0 {
		e.free = []span{{0, total}}
	}
	return e
}

// grant takes room for n positions.
func (e *extents) grant(n int) (span, bool) {
	n = (n + cellAlign - 1) / cellAlign * cellAlign
	for i, f := range e.free {
		if f.n < n {
			continue
		}
		if f.n == n {
			e.free = slices.Delete(e.free, i, i+1)
		} else {
			e.free[i] = span{f.cell + n, f.n - n}
		}
		return span{f.cell, n}, true
	}
	return span{}, false
}

// release gives a grant back and joins it with free neighbours.
func (e *extents) release(s span) {
	if s.n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(e.free, s.cell, func(f span, c int) int { return f.cell - c })
	e.free = slices.Insert(e.free, i, s)
	if i+1 < len(e.free) && e.free[i].cell+e.free[i].n == e.free[i+1].cell {
		e.free[i].n += e.free[i+1].n
		e.free = slices.Delete(e.free, i+1, i+2)
	}
	if i > 0 && e.free[i-1].cell+e.free[i-1].n == e.free[i].cell {
		e.free[i-1].n += e.free[i].n
		e.free = slices.Delete(e.free, i, i+1)
	}
}

// largest is the longest run of free cells.
func (e *extents) largest() int {
	n := 0
	for _, f := range e.free {
		n = max(n, f.n)
	}
	return n
}

// available is the number of free cells.
func (e *extents) available() int {
	n := 0
	for _, f := range e.free {
		n += f.n
	}
	return n
}
