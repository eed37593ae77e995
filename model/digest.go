package model

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
)

// hashParts returns the digest of each part. It reads every tensor's bytes, with
// as many readers as there are processors, and stops when ctx ends.
func hashParts(ctx context.Context, f *File, ps []part, progress func(done, total int64)) ([]kevlard.Digest, error) {
	var total int64
	for _, p := range ps {
		for _, r := range p.roles {
			total += r.tensor.Size
		}
	}
	var done atomic.Int64
	out := make([]kevlard.Digest, len(ps))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range ps {
		g.Go(func() error {
			var err error
			out[i], err = hashPart(ctx, p, f.data, func(n int) { progress(done.Add(int64(n)), total) })
			return err
		})
	}
	return out, g.Wait()
}

// hashPart digests, after a version line, the recipe and then each tensor in the
// order of roles: role, type, dimensions, bytes. Texts carry their length and
// numbers have a fixed width, so no two parts are written alike. data is asked for the
// bytes of each tensor in turn.
func hashPart(ctx context.Context, p part, data func(Tensor) io.Reader, read func(n int)) (kevlard.Digest, error) {
	h := digester{sha256.New()}
	h.text("kevlard unit 1")
	h.text(p.recipe)
	h.num(uint64(len(p.roles)))
	buf := make([]byte, 1<<20)
	for _, r := range p.roles {
		h.text(r.name)
		h.num(uint64(r.tensor.Type))
		h.num(uint64(len(r.tensor.Shape)))
		for _, d := range r.tensor.Shape {
			h.num(d)
		}
		from := data(r.tensor)
		for left := r.tensor.Size; left > 0; {
			if err := ctx.Err(); err != nil {
				return kevlard.Digest{}, context.Cause(ctx)
			}
			n, err := io.ReadFull(from, buf[:min(left, int64(len(buf)))])
			if err != nil {
				return kevlard.Digest{}, fmt.Errorf("read tensor %q at byte %d: %w",
					r.tensor.Name, r.tensor.Offset+r.tensor.Size-left, noEOF(err))
			}
			h.Write(buf[:n])
			left -= int64(n)
			read(n)
		}
	}
	return h.sum(), nil
}

// setDigests fills in the digests of the units and the model's ID.
func (m *Manifest) setDigests(digests []kevlard.Digest) {
	h := digester{sha256.New()}
	h.text("kevlard model 1")
	h.text(m.Arch)
	for _, n := range []int{m.Layers, m.Dim, m.Heads, m.KVHeads, m.HeadDim, m.FFN, m.Vocab, m.RopeDim} {
		h.num(uint64(n))
	}
	for _, x := range []float32{m.RopeBase, m.RopeScale, m.Eps} {
		h.num(uint64(math.Float32bits(x)))
	}
	for i := range m.Units {
		m.Units[i].Digest = digests[i]
		h.text(m.Units[i].Name)
		h.Write(digests[i][:])
	}
	m.ID = h.sum()
}

// digester writes values unambiguously into a hash, which never fails.
type digester struct{ hash.Hash }

func (d digester) num(n uint64) { d.Write(binary.LittleEndian.AppendUint64(nil, n)) }

func (d digester) text(s string) {
	d.num(uint64(len(s)))
	io.WriteString(d.Hash, s)
}

func (d digester) sum() kevlard.Digest { return kevlard.Digest(d.Sum(nil)) }
