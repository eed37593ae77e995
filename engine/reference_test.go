//go:build cgo

package engine

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// plain is the same architecture written down as slowly and obviously as possible,
// in float64, from the definition: an independent check of what the small model
// does not exercise (rope factors, linear scaling, partial rope, grouped heads,
// tied heads).
type plain struct {
	w *weights
	t *testing.T
}

// matrix returns a tensor's rows as float64; only f32 tensors are read.
func (p plain) matrix(name string) [][]float64 {
	t, ok := p.w.tensors[name]
	if !ok || t.kind != model.F32 {
		p.t.Fatalf("tensor %s is missing or not f32", name)
	}
	b := make([]byte, t.size)
	if _, err := t.data.ReadAt(b, 0); err != nil && err != io.EOF {
		p.t.Fatal(err)
	}
	width := int(t.shape[0])
	out := make([][]float64, len(b)/4/width)
	for i := range out {
		out[i] = make([]float64, width)
		for j := range out[i] {
			out[i][j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*(i*width+j):])))
		}
	}
	return out
}

func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func mul(m [][]float64, x []float64) []float64 {
	y := make([]float64, len(m))
	for i := range m {
		y[i] = dot(m[i], x)
	}
	return y
}

func (p plain) norm(x []float64, name string) []float64 {
	g := p.matrix(name)[0]
	r := math.Sqrt(dot(x, x)/float64(len(x)) + float64(p.w.Eps))
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] / r * g[i]
	}
	return y
}

// heads norms each head of x.
func (p plain) heads(x []float64, name string) (out []float64) {
	for h := 0; h < len(x); h += p.w.HeadDim {
		out = append(out, p.norm(x[h:h+p.w.HeadDim], name)...)
	}
	return out
}

// rope rotates pairs of each head: neighbours, or the halves' ith values.
func (p plain) rope(x []float64, pos int) {
	w := p.w
	var factors []float64
	if _, ok := w.tensors[ropeFactors]; ok {
		factors = p.matrix(ropeFactors)[0]
	}
	for h := 0; h < len(x); h += w.HeadDim {
		for i := 0; i < w.RopeDim; i += 2 {
			angle := float64(pos) / float64(w.RopeScale) * math.Pow(float64(w.RopeBase), -float64(i)/float64(w.RopeDim))
			if factors != nil {
				angle /= factors[i/2]
			}
			sin, cos := math.Sincos(angle)
			at, to := h+i, h+i+1
			if w.RopeNeoX {
				at, to = h+i/2, h+i/2+w.RopeDim/2
			}
			a, b := x[at], x[to]
			x[at], x[to] = a*cos-b*sin, a*sin+b*cos
		}
	}
}

// logits returns the logits after each token.
func (p plain) logits(tokens []kevlard.Token) [][]float64 {
	w := p.w
	type kv struct{ k, v [][]float64 }
	cache := make([]kv, w.Layers)
	var out [][]float64
	for pos, token := range tokens {
		h := p.matrix("token_embd.weight")[token]
		for l := range w.Layers {
			at := func(name string) string { return fmt.Sprintf("blk.%d.%s", l, name) }
			x := p.norm(h, at("attn_norm.weight"))
			q, k, v := mul(p.matrix(at("attn_q.weight")), x), mul(p.matrix(at("attn_k.weight")), x), mul(p.matrix(at("attn_v.weight")), x)
			if w.QKVBias {
				q, k, v = add(q, p.matrix(at("attn_q.bias"))[0]), add(k, p.matrix(at("attn_k.bias"))[0]), add(v, p.matrix(at("attn_v.bias"))[0])
			}
			if w.QKNorm {
				q, k = p.heads(q, at("attn_q_norm.weight")), p.heads(k, at("attn_k_norm.weight"))
			}
			p.rope(q, pos)
			p.rope(k, pos)
			c := &cache[l]
			c.k, c.v = append(c.k, k), append(c.v, v)
			att := make([]float64, 0, len(q))
			for head := range w.Heads {
				own, shared := head*w.HeadDim, head/(w.Heads/w.KVHeads)*w.HeadDim
				sum, mix := 0.0, make([]float64, w.HeadDim)
				for i := range c.k {
					e := math.Exp(dot(q[own:own+w.HeadDim], c.k[i][shared:shared+w.HeadDim]) / math.Sqrt(float64(w.HeadDim)))
					sum += e
					for d := range mix {
						mix[d] += e * c.v[i][shared+d]
					}
				}
				for d := range mix {
					att = append(att, mix[d]/sum)
				}
			}
			h = add(h, mul(p.matrix(at("attn_output.weight")), att))
			x = p.norm(h, at("ffn_norm.weight"))
			gate, up := mul(p.matrix(at("ffn_gate.weight")), x), mul(p.matrix(at("ffn_up.weight")), x)
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			h = add(h, mul(p.matrix(at("ffn_down.weight")), up))
		}
		head := "output.weight"
		if _, untied := w.tensors[head]; !untied {
			head = "token_embd.weight"
		}
		out = append(out, mul(p.matrix(head), p.norm(h, "output_norm.weight")))
	}
	return out
}

func add(a, b []float64) []float64 {
	s := make([]float64, len(a))
	for i := range a {
		s[i] = a[i] + b[i]
	}
	return s
}

// TestPlainReference compares variants of a small f32 model, through one stage and
// through one stage per layer, with the plain implementation.
func TestPlainReference(t *testing.T) {
	base := func() *weights { return syntheticModel(syntheticShape(), model.F32) }
	remake := func(change func(*model.Shape)) func(*weights) {
		return func(w *weights) {
			s := syntheticShape()
			change(&s)
			*w = *syntheticModel(s, model.F32)
		}
	}
	for name, change := range map[string]func(*weights){
		"rope factors": func(*weights) {},
		"no factors":   func(w *weights) { delete(w.tensors, ropeFactors) },
		"linear":       func(w *weights) { w.RopeScale = 4 },
		"partial rope": func(w *weights) { w.RopeDim = 16; delete(w.tensors, ropeFactors) },
		"tied":         func(w *weights) { delete(w.tensors, "output.weight") },
		"rope base":    func(w *weights) { w.RopeBase = 500000 },
		"neox":         remake(func(s *model.Shape) { s.RopeNeoX = true }),
		"partial neox": remake(func(s *model.Shape) { s.RopeNeoX, s.RopeDim = true, 16 }),
		"qwen2":        remake(func(s *model.Shape) { s.RopeNeoX, s.QKVBias = true, true }),
		"qwen3":        remake(func(s *model.Shape) { s.RopeNeoX, s.QKNorm, s.HeadDim = true, true, 64 }),
	} {
		w := base()
		change(w)
		if err := w.checkShapes(); err != nil {
			t.Fatal(err)
		}
		tokens := []kevlard.Token{5, 17, 300, 2, 2, 99, 131, 7, 250, 64, 18}
		want := plain{w, t}.logits(tokens)
		for _, k := range []int{1, 3} {
			var stages []*Stage
			for _, l := range split(3, k) {
				s, err := open(w, Spec{Layers: l, Threads: 1, Cells: 32, MaxRows: 16}, device{family: CPU}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				stages = append(stages, s)
			}
			worst := 0.0
			compare := func(pos int) func(int, []float32) {
				return func(_ int, l []float32) {
					for i := range l {
						worst = max(worst, math.Abs(float64(l[i])-want[pos][i]))
					}
				}
			}
			ignore := func(int, int, int, []byte) {}
			step(t, stages, []Part{{Cell: 3, N: 6, Tokens: tokens[:6]}}, ignore, compare(5))
			for pos := 6; pos < len(tokens); pos++ {
				step(t, stages, []Part{{Cell: 3, Pos: pos, N: 1, Tokens: tokens[pos : pos+1]}}, ignore, compare(pos))
			}
			if worst > 2e-5 {
				t.Errorf("%s, %d stages: logits are off by up to %g", name, k, worst)
			}
		}
	}
}

// TestShapes: tensors that disagree with the hyperparameters are refused before
// ggml sees them.
func TestShapes(t *testing.T) {
	for name, change := range map[string]func(*weights){
		"kv heads":     func(w *weights) { w.KVHeads = 3 },
		"odd rope":     func(w *weights) { w.RopeDim = 15 },
		"dim":          func(w *weights) { w.Dim = 64 },
		"no layers":    func(w *weights) { w.Layers = 0 },
		"vector type":  func(w *weights) { set(w, "output_norm.weight", func(t *tensor) { t.kind = model.F16 }) },
		"type":         func(w *weights) { set(w, "blk.1.attn_q.weight", func(t *tensor) { t.kind = 13 }) },
		"row":          func(w *weights) { set(w, "blk.1.attn_q.weight", func(t *tensor) { t.kind = model.Q4_K }) },
		"matrix shape": func(w *weights) { set(w, "blk.1.attn_q.weight", func(t *tensor) { t.shape = []uint64{128, 129} }) },
	} {
		w := syntheticWeights()
		change(w)
		if err := w.checkShapes(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	w := syntheticWeights()
	delete(w.tensors, "blk.1.ffn_up.weight")
	if _, err := w.stage(kevlard.Layers{Lo: 1, Hi: 2}); err == nil {
		t.Error("a missing tensor is accepted")
	}
	if _, err := w.stage(kevlard.Layers{Lo: 0, Hi: 1}); err != nil {
		t.Errorf("a tensor missing in another stage matters: %v", err)
	}
	w.tensors["blk.0.attn_q.bias"] = tensor{}
	if _, err := w.stage(kevlard.Layers{Lo: 0, Hi: 1}); err == nil {
		t.Error("a tensor that the engine does not know is accepted")
	}
}

func set(w *weights, name string, f func(*tensor)) {
	t := w.tensors[name]
	f(&t)
	w.tensors[name] = t
}
