package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// localChunk is the rows of one prefill step of a Local; a cancelled context is
// seen between steps.
const localChunk = 256

// localCells is the most positions that a Local makes room for.
const localCells = 8192

// Local is a whole model in this process, as a chain of stages: for one
// generation at a time without a daemon, and as the reference for the mesh.
type Local struct {
	stages []*Stage
	cells  int
}

// OpenLocal opens the model of m as the given number of stages, 1 to its layers,
// with this many compute threads. It has room for the model's context, up to 8192
// positions.
func OpenLocal(m *model.Manifest, stages, threads int) (*Local, error) {
	if stages < 1 || stages > m.Layers {
		return nil, fmt.Errorf("stages is %d: want 1 to %d, the layers of %s", stages, m.Layers, m.Name)
	}
	l := &Local{cells: min(m.Context, localCells)}
	for i := range stages {
		layers := kevlard.Layers{Lo: i * m.Layers / stages, Hi: (i + 1) * m.Layers / stages}
		s, err := Open(NewSpec(m, layers, threads, l.cells, min(localChunk, l.cells)), nil)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.stages = append(l.stages, s)
	}
	return l, nil
}

// Close frees the stages.
func (l *Local) Close() {
	for _, s := range l.stages {
		s.Close()
	}
}

// Context is the most positions that prompt and answer may take together.
func (l *Local) Context() int { return l.cells }

// Generate continues tokens by up to n more and hands each to emit, until that
// returns false. It is an error when the prompt is empty or when prompt and n do
// not fit.
func (l *Local) Generate(ctx context.Context, tokens []kevlard.Token, n int, s kevlard.Sampling, emit func(kevlard.Token) bool) error {
	if len(tokens) == 0 {
		return errors.New("generate: the prompt has no tokens: begin with the model's BOS")
	}
	if n < 0 || len(tokens) > l.cells || n > l.cells-len(tokens) {
		return fmt.Errorf("generate: %d prompt tokens and %d new ones: the context has room for %d", len(tokens), n, l.cells)
	}
	all, pos, next := slices.Clone(tokens), 0, tokens
	for left := n; left > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k := min(localChunk, len(next))
		part := Part{Pos: pos, N: k, Tokens: next[:k], Sample: k == len(next), Sampling: s, History: all}
		token, err := l.step(part)
		if err != nil {
			return fmt.Errorf("generate at position %d: %w", pos, err)
		}
		pos, next = pos+k, next[k:]
		if len(next) > 0 {
			continue
		}
		left--
		all = append(all, token...)
		if !emit(token[0]) {
			return nil
		}
		next = token
	}
	return nil
}

// step runs one part through all stages.
func (l *Local) step(p Part) ([]kevlard.Token, error) {
	sample := p.Sample
	var r Result
	for _, s := range l.stages {
		p.Sample = sample && s.Info().Last()
		var err error
		if r, err = s.Forward(Batch{Parts: []Part{p}, Rows: r.Rows}); err != nil {
			return nil, err
		}
		p.Tokens = nil
	}
	return kevlard.Tokens(r.Sampled), nil
}
