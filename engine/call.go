package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/kevlard/kevlard/engine/sampler"
)

// Forward runs one batch in the child. One batch is in flight; further calls wait.
// The result is the caller's. When ctx ends first, Forward returns its cause at
// once, and the child still computes the batch: its cells are the caller's again
// only when a later Forward has returned.
func (p *Process) Forward(ctx context.Context, b Batch) (Result, error) {
	n, err := p.info.check(b)
	if err != nil {
		return Result{}, err
	}
	c := &call{arrived: make(chan struct{})}
	if !p.info.Last() {
		c.rows = n * p.info.Dim * 4
	}
	parts := slices.Clone(b.Parts)
	for i, part := range parts {
		parts[i].History = nil
		if part.Sample {
			c.tokens++
			parts[i].History = sampler.Recent(part.History, part.Sampling) // the rest need not travel
		}
	}
	err = p.request(ctx, p.batch, c, kindForward, forwardBody{parts}, func(in, _ []byte) { copy(in, b.Rows) })
	return c.result, err
}

// Copy copies n cells from src on to dst on, in all resident layers; the ranges
// may overlap.
func (p *Process) Copy(ctx context.Context, dst, src, n int) error {
	if err := errors.Join(p.info.checkCells(dst, n, -1), p.info.checkCells(src, n, -1)); err != nil {
		return err
	}
	return p.request(ctx, p.cells, &call{arrived: make(chan struct{})}, kindCells, cellsBody{Op: opCopy, Cell: dst, Src: src, N: n}, nil)
}

// Read copies n cells from cell on to dst, laid out as by Stage.Read. When ctx
// ends, dst may be written in part, and not after Read has returned.
func (p *Process) Read(ctx context.Context, cell, n int, dst []byte) error {
	if err := p.info.checkCells(cell, n, len(dst)); err != nil {
		return err
	}
	return p.pieces(n, func(at, k int) error {
		var piece []byte
		c := &call{arrived: make(chan struct{}), stored: func(kv []byte) {
			piece = append(piece, kv[:k*p.info.CellBytes]...)
		}}
		if err := p.request(ctx, p.cells, c, kindCells, cellsBody{Op: opRead, Cell: cell + at, N: k}, nil); err != nil {
			return err
		}
		p.interleave(dst, n, piece, at, k, func(whole, part []byte) { copy(whole, part) })
		return nil
	})
}

// Write is the inverse of Read. When ctx ends, cells may be written in part.
func (p *Process) Write(ctx context.Context, cell, n int, src []byte) error {
	if err := p.info.checkCells(cell, n, len(src)); err != nil {
		return err
	}
	return p.pieces(n, func(at, k int) error {
		c := &call{arrived: make(chan struct{})}
		return p.request(ctx, p.cells, c, kindCells, cellsBody{Op: opWrite, Cell: cell + at, N: k}, func(_, kv []byte) {
			p.interleave(src, n, kv[:k*p.info.CellBytes], at, k, func(whole, part []byte) { copy(part, whole) })
		})
	})
}

// pieces calls f for runs of cells that fit the KV area.
func (p *Process) pieces(n int, f func(at, k int) error) error {
	most := max(1, kvPiece/p.info.CellBytes)
	for at := 0; at < n; at += most {
		if err := f(at, min(most, n-at)); err != nil {
			return err
		}
	}
	return nil
}

// interleave pairs the runs of a piece, cells [at,at+k), with their places in the
// whole of n cells: both are layer by layer, keys before values.
func (p *Process) interleave(whole []byte, n int, piece []byte, at, k int, f func(whole, part []byte)) {
	runs := 2 * p.info.Layers.Len()
	row := p.info.CellBytes / runs
	for r := range runs {
		f(whole[(r*n+at)*row:(r*n+at+k)*row], piece[r*k*row:(r+1)*k*row])
	}
}
