package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/kevlard/kevlard"
)

// Unit is the smallest part of a model that a stage holds, checks and copies.
type Unit struct {
	// Name is "globals", "embedding", "layer.N" or "head".
	Name string `json:"name"`
	// Digest names what is computed with the unit; see the package comment.
	Digest kevlard.Digest `json:"-"`
	// Bytes is the size of its tensors.
	Bytes int64 `json:"bytes"`
	// Tensors are the names in the file, sorted by role. The embedding's tensor
	// is listed in the head too if the model is tied.
	Tensors []string `json:"tensors"`
}

// part is a unit being assembled: its tensors with the roles they play.
type part struct {
	name   string
	recipe string // hyperparameters that its computation reads
	roles  []role
}

type role struct {
	name   string
	tensor Tensor
}

// parts sorts the tensors of f into units and checks that each has the shape
// that s demands, that none is missing and none unknown.
func parts(f *File, s *Shape) ([]part, error) {
	embd, ok := f.Tensor("token_embd.weight")
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing", "token_embd.weight")
	}
	if len(embd.Shape) != 2 || embd.Shape[1] > maxWidth {
		return nil, fmt.Errorf("tensor %q has shape %v: want [%d vocabulary]", embd.Name, embd.Shape, s.Dim)
	}
	s.Vocab = int(embd.Shape[1])
	_, untied := f.Tensor("output.weight")
	s.Tied = !untied

	b := partBuilder{f: f, used: make(map[string]bool)}
	wide, vocab := uint64(s.Dim), uint64(s.Vocab)
	var out []part
	if _, ok := f.Tensor("rope_freqs.weight"); ok && archs()[f.Arch()].factors {
		g := part{name: "globals"}
		b.vector(&g, "rope_freqs.weight", "rope_freqs.weight", uint64(s.RopeDim)/2)
		out = append(out, g)
	}
	e := part{name: "embedding"}
	b.matrix(&e, "token_embd.weight", "token_embd.weight", wide, vocab)
	out = append(out, e)
	for n := range s.Layers {
		l := part{name: "layer." + strconv.Itoa(n), recipe: s.layerRecipe()}
		at := "blk." + strconv.Itoa(n) + "."
		for _, t := range s.LayerTensors() {
			if len(t.Shape) == 1 {
				b.vector(&l, at+t.Name, t.Name, t.Shape[0])
			} else {
				b.matrix(&l, at+t.Name, t.Name, t.Shape[0], t.Shape[1])
			}
		}
		out = append(out, l)
	}
	h := part{name: "head", recipe: fmt.Sprintf("eps=%x", s.Eps)}
	b.vector(&h, "output_norm.weight", "output_norm.weight", wide)
	if s.Tied {
		b.matrix(&h, "token_embd.weight", "output.weight", wide, vocab)
	} else {
		b.matrix(&h, "output.weight", "output.weight", wide, vocab)
	}
	out = append(out, h)
	for i := range out {
		slices.SortFunc(out[i].roles, func(a, b role) int { return cmp.Compare(a.name, b.name) })
	}
	b.unknown()
	return out, b.err
}

// layerRecipe writes down all a layer's result depends on besides its weights.
func (s Shape) layerRecipe() string {
	r := fmt.Sprintf("heads=%d kv=%d headdim=%d ropedim=%d base=%x scale=%x eps=%x",
		s.Heads, s.KVHeads, s.HeadDim, s.RopeDim, s.RopeBase, s.RopeScale, s.Eps)
	if s.RopeNeoX {
		r += " neox"
	}
	return r // biases and norms show in the roles
}

// partBuilder takes tensors out of a file and keeps the first error.
type partBuilder struct {
	f    *File
	used map[string]bool
	err  error
}

// vector adds a norm, bias or factor, always f32, under the role it plays.
func (b *partBuilder) vector(p *part, name, as string, n uint64) {
	if t, ok := b.take(name, n); ok {
		if t.Type != F32 {
			b.fail(fmt.Errorf("tensor %q has type %s: want f32", name, t.Type))
		}
		p.roles = append(p.roles, role{as, t})
	}
}

// matrix adds a matrix under the role it plays.
func (b *partBuilder) matrix(p *part, name, as string, rowLen, rows uint64) {
	if t, ok := b.take(name, rowLen, rows); ok {
		if !t.Type.Supported() {
			b.fail(fmt.Errorf("tensor %q has type %s, which is not supported: want one of %v", name, t.Type, supportedTypes()))
		}
		p.roles = append(p.roles, role{as, t})
	}
}

func (b *partBuilder) take(name string, shape ...uint64) (Tensor, bool) {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.fail(fmt.Errorf("tensor %q is missing", name))
		return Tensor{}, false
	}
	b.used[name] = true
	if !slices.Equal(t.Shape, shape) {
		b.fail(fmt.Errorf("tensor %q has shape %v: want %v by the hyperparameters", name, t.Shape, shape))
		return Tensor{}, false
	}
	return t, true
}

// unknown fails if the file has tensors that nobody took: ignoring one (a bias,
// an expert) would silently compute a different model.
func (b *partBuilder) unknown() {
	for _, t := range b.f.Tensors() {
		if !b.used[t.Name] {
			b.fail(fmt.Errorf("tensor %q is not part of a supported %s model", t.Name, b.f.Arch()))
			return
		}
	}
}

func (b *partBuilder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}
