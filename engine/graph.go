//go:build cgo

package engine

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/ml/nn"
	"github.com/ollama/ollama/ml/nn/rope"

	"github.com/kevlard/kevlard"
)

// graphNodes bounds the tensors of a graph over layers layers and groups groups,
// weights included: per layer 37 nodes, 17 weights and KV tensors, and 9 for each
// group, or 16 where flash attention may be lacking; then inputs and the head.
func graphNodes(layers, groups int, d device) int {
	each := 9
	if d.onGPU() {
		each = 16
	}
	return layers*(60+each*groups) + 2*groups + 32
}

// group is a run of rows that attend together: rows [row,row+n) of the batch, of
// which the first sees cells [cell,cell+seen), each next one more.
type group struct {
	row, n, cell, seen int
	mask               ml.Tensor // nil when n is 1: the view is exactly what the row sees
}

// graph is one computation under construction.
type graph struct {
	s   *Stage
	ctx ml.Context
	in  ml.Context
	n   int // rows

	pos, cells ml.Tensor // per row: position, cell written
	groups     []group
	out        *outputs // last stage: what is wanted of the last layer

	looked ml.Tensor // first stage: the embedding's rows
	result ml.Tensor // rows or logits; nil when only keys and values are wanted
}

// outputs are the rows whose logits are wanted. After the last layer's keys and
// values only they go on, each as its own group.
type outputs struct {
	rows, pos ml.Tensor
	n         int
	groups    []group
}

// run computes one graph over parts. The caller holds computeMu and has checked
// the parts.
func (s *Stage) run(parts []Part, rows []byte) (out []byte, logits []float32, err error) {
	defer recoverTo(&err)
	g := s.build(parts, rows)
	defer g.ctx.Close()
	if s.dev.onGPU() {
		if err := g.place(); err != nil {
			return nil, nil, err
		}
		defer func() {
			if err == nil {
				finishCompute(s.backend)
			}
		}()
	}
	switch {
	case g.result == nil:
		g.ctx.Compute()
		return nil, nil, nil
	case s.info.Last():
		g.ctx.Compute(g.result)
		return nil, g.result.Floats(), nil
	default:
		g.ctx.Compute(g.result)
		return g.result.Bytes(), nil, nil
	}
}

// build makes the graph of parts, whose context the caller closes.
func (s *Stage) build(parts []Part, rows []byte) *graph {
	ctx := s.backend.NewContextSize(graphNodes(len(s.layers), len(parts), s.dev))
	g := &graph{s: s, ctx: ctx, in: ctx.Input()}
	h := g.inputs(parts, rows)
	for i := range s.layers {
		if h = g.layer(i, h); h == nil {
			return g
		}
	}
	if s.info.Last() {
		h = s.output.Mulmat(ctx, h.RMSNorm(ctx, s.outNorm, s.w.Eps))
	}
	g.result = h
	ctx.Forward(h)
	return g
}

// place refuses a graph of which the library would compute something on the CPU, as it does
// without a word with what a device can't. Only the embedding's rows are looked up there,
// where they are kept: a GPU's memory has better uses.
func (g *graph) place() error {
	stray, err := place(g.s.backend, g.ctx, g.n, g.s.dev.dev, g.looked)
	if err == nil && stray != "" {
		err = fmt.Errorf("%w: %s of %d rows can't be computed on %s (%s) with its library, and the CPU must not stand in: build the library anew from the sources of this kevlard, or set [engine] devices = [\"cpu\"]",
			ErrCompute, stray, g.n, g.s.dev.family, g.s.dev.about)
	}
	if err != nil {
		unplace(g.s.backend)
	}
	return err
}

// rehearse places the graphs of all kinds of batches, so that a device that lacks an
// operation, or the memory for it, is refused before it has work. The caller holds
// computeMu.
func (s *Stage) rehearse() error {
	if !s.dev.onGPU() {
		return nil
	}
	most := min(s.info.MaxRows, s.info.Cells)
	for _, sizes := range [][]int{{1}, {most}, {1, most - 1}} {
		var parts []Part
		total := 0
		for _, n := range sizes {
			if n > 0 {
				parts = append(parts, Part{Cell: total, N: n, Sample: s.info.Last()})
				total += n
			}
		}
		var rows []byte
		if s.info.First() {
			for i := range parts {
				parts[i].Tokens = make([]kevlard.Token, parts[i].N)
			}
		} else {
			rows = make([]byte, total*s.info.Dim*4)
		}
		g := s.build(parts, rows)
		err := g.place()
		if err == nil {
			unplace(s.backend)
		}
		g.ctx.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// inputs makes the input tensors and returns the rows that enter the first layer.
func (g *graph) inputs(parts []Part, rows []byte) ml.Tensor {
	var ids, pos, cells, outRows, outPos []int32
	out := &outputs{}
	for _, p := range parts {
		g.groups = append(g.groups, group{row: len(pos), n: p.N, cell: p.Cell, seen: p.Pos + 1})
		ids = append(ids, p.Tokens...)
		for i := range p.N {
			pos, cells = append(pos, int32(p.Pos+i)), append(cells, int32(p.Cell+p.Pos+i))
		}
		if p.Sample {
			last := p.Pos + p.N - 1
			out.groups = append(out.groups, group{row: len(outRows), n: 1, cell: p.Cell, seen: last + 1})
			outRows, outPos = append(outRows, int32(len(pos)-1)), append(outPos, int32(last))
		}
	}
	g.n = len(pos)
	g.ctx.SetBatchSize(g.n)
	g.pos, g.cells = g.in.FromInts(pos, g.n), g.in.FromInts(cells, g.n)
	for i := range g.groups {
		g.groups[i].mask = g.causal(g.groups[i])
	}
	if g.s.info.Last() {
		if out.n = len(outRows); out.n > 0 {
			out.rows, out.pos = g.in.FromInts(outRows, out.n), g.in.FromInts(outPos, out.n)
		}
		g.out = out
	}
	if g.s.info.First() {
		g.looked = g.s.embd.Rows(g.ctx, g.in.FromInts(ids, g.n))
		return g.looked
	}
	return g.in.FromBytes(ml.DTypeF32, rows, g.s.w.Dim, g.n)
}

// causal is the mask of a group as float16: row i sees the first seen+i cells.
// Flash attention on the CPU skips hidden cells, so width changes no bit.
func (g *graph) causal(gr group) ml.Tensor {
	if gr.n == 1 {
		return nil
	}
	const hidden = 0xfc00 // minus infinity
	width := gr.seen + gr.n - 1
	need := 2 * width * gr.n
	if cap(g.s.mask) < need {
		g.s.mask = make([]byte, need)
	}
	m := g.s.mask[:need]
	clear(m)
	for i := range gr.n {
		row := m[2*width*i : 2*width*(i+1)]
		for c := gr.seen + i; c < width; c++ {
			binary.LittleEndian.PutUint16(row[2*c:], hidden)
		}
	}
	return g.in.FromBytes(ml.DTypeF16, m, width, gr.n)
}

// layer appends layer i (counted in the stage) to the graph and returns its
// output, or nil when none of it is wanted.
func (g *graph) layer(i int, h ml.Tensor) ml.Tensor {
	ctx, w, l := g.ctx, g.s.w, &g.s.layers[i]
	x := h.RMSNorm(ctx, l.attnNorm, w.Eps)
	k := g.heads(l, g.linear(x, l.k, l.kBias), l.kNorm, w.KVHeads, g.pos)
	v := g.linear(x, l.v, l.vBias)
	// The graph runs in the order of expansion: keys and values are in their cells
	// before any attention reads them.
	ctx.Forward(
		g.s.keys[i].SetRows(ctx, k.Reshape(ctx, w.KVHeads*w.HeadDim, g.n), g.cells),
		g.s.values[i].SetRows(ctx, v, g.cells))
	n, pos, groups := g.n, g.pos, g.groups
	if g.out != nil && i == len(g.s.layers)-1 {
		if g.out.n == 0 {
			return nil
		}
		n, pos, groups = g.out.n, g.out.pos, g.out.groups
		x, h = x.Rows(ctx, g.out.rows), h.Rows(ctx, g.out.rows)
	}
	q := g.heads(l, g.linear(x, l.q, l.qBias), l.qNorm, w.Heads, pos)
	h = l.o.Mulmat(ctx, g.attend(i, q, groups).Reshape(ctx, w.Heads*w.HeadDim, n)).Add(ctx, h)
	x = h.RMSNorm(ctx, l.ffnNorm, w.Eps)
	x = l.gate.Mulmat(ctx, x).SILU(ctx, l.up.Mulmat(ctx, x))
	return l.down.Mulmat(ctx, x).Add(ctx, h)
}

// linear returns m*x, plus bias unless that is nil.
func (g *graph) linear(x, m, bias ml.Tensor) ml.Tensor {
	y := m.Mulmat(g.ctx, x)
	if bias != nil {
		y = y.Add(g.ctx, bias)
	}
	return y
}

// heads cuts rows t into n heads, norms each unless norm is nil, and rotates it to
// its row's position.
func (g *graph) heads(l *layer, t, norm ml.Tensor, n int, pos ml.Tensor) ml.Tensor {
	w := g.s.w
	t = t.Reshape(g.ctx, w.HeadDim, n, t.Dim(1))
	if norm != nil {
		t = t.RMSNorm(g.ctx, norm, w.Eps)
	}
	var opts []func(*rope.Options)
	if w.RopeNeoX {
		opts = append(opts, rope.WithTypeNeoX())
	}
	if l.factors != nil {
		opts = append(opts, rope.WithFactors(l.factors))
	}
	return nn.RoPE(g.ctx, t, pos, w.RopeDim, w.RopeBase, 1/w.RopeScale, opts...)
}

// attend returns the attention of q [headDim, heads, rows] over layer i's cells,
// group by group, as [headDim, heads, rows].
func (g *graph) attend(i int, q ml.Tensor, groups []group) ml.Tensor {
	ctx, w := g.ctx, g.s.w
	keys, values := g.s.keys[i], g.s.values[i]
	row, head := keys.Stride(1), w.HeadDim*4
	scale := 1 / math.Sqrt(float64(w.HeadDim))
	done := make([]ml.Tensor, len(groups))
	for j, gr := range groups {
		qg := q
		if len(groups) > 1 {
			qg = q.View(ctx, gr.row*q.Stride(2), w.HeadDim, q.Stride(1), w.Heads, q.Stride(2), gr.n)
		}
		cells := gr.seen + gr.n - 1
		kg := keys.View(ctx, gr.cell*row, w.HeadDim, head, w.KVHeads, row, cells)
		vg := values.View(ctx, gr.cell*row, w.HeadDim, head, w.KVHeads, row, cells)
		if !g.s.flash {
			vg = vg.Permute(ctx, 1, 2, 0, 3).Contiguous(ctx)
		}
		a := qg.(ml.ScaledDotProductAttention).ScaledDotProductAttention(ctx, kg, vg, gr.mask, nil, nil, scale, true)
		done[j] = a.Reshape(ctx, w.HeadDim*w.Heads, gr.n)
	}
	// Joined pairwise, each row is copied log2(groups) times and not groups times.
	for len(done) > 1 {
		var next []ml.Tensor
		for j := 0; j+1 < len(done); j += 2 {
			next = append(next, done[j].Concat(ctx, done[j+1], 1))
		}
		if len(done)%2 == 1 {
			next = append(next, done[len(done)-1])
		}
		done = next
	}
	return done[0]
}
