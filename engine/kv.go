//go:build cgo

package engine

import (
	"runtime"

	"github.com/ollama/ollama/ml"
)

// kvFormat names how cells are kept and carried. It is float32: ggml's flash
// attention on the CPU adds up in the type of the values, and float16 sums lose
// three digits. Rounding each value through float16, to carry half the bytes, was
// measured too: it flips a token of the q8_0 reference continuations whose margin
// is 0.1 logits, so cells are carried as they are.
const kvFormat = "f32"

// Read copies n cells from cell on to dst, which holds n*CellBytes: for each
// resident layer n key rows, then n value rows, little-endian float32. Cells that
// nothing ever wrote hold arbitrary bytes. It may run beside a Forward that does not
// write these cells.
func (s *Stage) Read(cell, n int, dst []byte) error {
	var pins runtime.Pinner
	defer s.copier.wait(&pins)
	return s.eachRun(cell, n, len(dst), func(t ml.Tensor, off, size int) {
		s.copier.get(t, off, dst[:size], &pins)
		dst = dst[size:]
	})
}

// Write is the inverse of Read.
func (s *Stage) Write(cell, n int, src []byte) error {
	var pins runtime.Pinner
	defer s.copier.wait(&pins)
	return s.eachRun(cell, n, len(src), func(t ml.Tensor, off, size int) {
		s.copier.set(t, off, src[:size], &pins)
		src = src[size:]
	})
}

// Copy copies n cells from src on to dst on, in all resident layers; the ranges
// may overlap.
func (s *Stage) Copy(dst, src, n int) error {
	if err := s.info.checkCells(dst, n, -1); err != nil {
		return err
	}
	var buf []byte
	return s.eachRun(src, n, -1, func(t ml.Tensor, off, size int) {
		if buf == nil {
			buf = make([]byte, size)
		}
		getTensor(t, off, buf)
		setTensor(t, off+(dst-src)*t.Stride(1), buf)
	})
}

// eachRun calls f with the byte run of the cells in each layer's keys, then
// values. Negative buf: no buffer is checked.
func (s *Stage) eachRun(cell, n, buf int, f func(t ml.Tensor, off, size int)) error {
	if err := s.info.checkCells(cell, n, buf); err != nil {
		return err
	}
	if err := s.alive(); err != nil {
		return err
	}
	for i := range s.keys {
		for _, t := range []ml.Tensor{s.keys[i], s.values[i]} {
			row := t.Stride(1)
			f(t, cell*row, n*row)
		}
	}
	return nil
}
