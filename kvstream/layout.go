package kvstream

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Layout says how the cells of a stage are made up.
type Layout struct {
	Runs int // rows of one cell: keys and values of each layer
	Row  int // bytes of one row
}

// LayoutOf returns the layout of a stage's cells. The error says what is wrong with
// the size.
func LayoutOf(l kevlard.Layers, cellBytes int) (Layout, error) {
	runs := 2 * l.Len()
	if l.Lo < 0 || runs < 2 || cellBytes < runs || cellBytes > protocol.MaxCell || cellBytes%runs != 0 {
		return Layout{}, fmt.Errorf("cells of %d bytes for layers %v: want at least 1 and at most %d bytes, in equal rows of keys and values of each layer", cellBytes, l, protocol.MaxCell)
	}
	return Layout{Runs: runs, Row: cellBytes / runs}, nil
}

// CellBytes returns the bytes of one position.
func (l Layout) CellBytes() int { return l.Runs * l.Row }

// Sums appends the checksums of n positions to out. body holds n x CellBytes, run
// by run.
func (l Layout) Sums(out []uint64, body []byte, n int) []uint64 {
	var h xxh3.Hasher
	for i := range n {
		out = append(out, l.sum(&h, body, n, i))
	}
	return out
}

// Whole returns how many leading positions of a body of n have the right sums.
// Positions for which there is no sum do not.
func (l Layout) Whole(body []byte, n int, sums []uint64) int {
	var h xxh3.Hasher
	for i, want := range sums {
		if l.sum(&h, body, n, i) != want {
			return i
		}
	}
	return len(sums)
}

// sum returns the checksum of position i of n.
func (l Layout) sum(h *xxh3.Hasher, body []byte, n, i int) uint64 {
	h.Reset()
	for r := range l.Runs {
		at := (r*n + i) * l.Row
		_, _ = h.Write(body[at : at+l.Row]) // never fails
	}
	return h.Sum64()
}
