package stage

import (
	"testing"

	"pgregory.net/rapid"
)

// TestExtentsAgainstBitmap compares the free list with one bit for each cell.
func TestExtentsAgainstBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 1000).Draw(t, "total")
		e := newExtents(total)
		taken := make([]bool, total-total%cellAlign)
		var grants []span
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(grants) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(grants)-1).Draw(t, "which")
				s := grants[i]
				grants = append(grants[:i], grants[i+1:]...)
				e.release(s)
				for c := s.cell; c < s.cell+s.n; c++ {
					taken[c] = false
				}
			} else {
				n := rapid.IntRange(1, 300).Draw(t, "n")
				s, ok := e.grant(n)
				first, fits := naiveFit(taken, n)
				if ok != fits || ok && s.cell != first {
					t.Fatalf("grant(%d) = %+v, %v; the bitmap says cell %d, %v", n, s, ok, first, fits)
				}
				if !ok {
					continue
				}
				if s.n < n || s.n >= n+cellAlign || s.cell%cellAlign != 0 || s.n%cellAlign != 0 {
					t.Fatalf("grant(%d) = %+v", n, s)
				}
				for c := s.cell; c < s.cell+s.n; c++ {
					taken[c] = true
				}
				grants = append(grants, s)
			}
			free := 0
			for _, b := range taken {
				if !b {
					free++
				}
			}
			if e.available() != free {
				t.Fatalf("available %d, the bitmap has %d", e.available(), free)
			}
			for i := 1; i < len(e.free); i++ {
				if e.free[i-1].cell+e.free[i-1].n >= e.free[i].cell {
					t.Fatalf("free list %v is not sorted and joined", e.free)
				}
			}
		}
	})
}

// naiveFit finds the first aligned run of free cells for n positions.
func naiveFit(taken []bool, n int) (int, bool) {
	n = (n + cellAlign - 1) / cellAlign * cellAlign
	for c := 0; c+n <= len(taken); c += cellAlign {
		free := true
		for i := c; i < c+n; i++ {
			free = free && !taken[i]
		}
		if free {
			return c, true
		}
	}
	return 0, false
}
