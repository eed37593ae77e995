package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/kevlard/kevlard"
)

// partsReader makes a directory of Parts look like the GGUF file that its header
// describes. Between tensors there are zeroes. Files are opened when they are first
// read, so a stage of a few layers has few of them open.
type partsReader struct {
	header  *os.File
	extents []extent // by offset in the GGUF file

	mu     sync.Mutex
	open   map[string]*os.File // by path
	closed bool
}

// extent is a tensor, or the header, in the file that has it.
type extent struct {
	at, size int64
	part     Part
	path     string
	base     int64 // where it begins there
}

// reader maps the tensors of f, whose manifest is m, to the files that have them. A
// tensor of two units, which a tied embedding is, is taken from one that is there.
func (p Parts) reader(dir string, f *File, m *Manifest, header *os.File) (*partsReader, error) {
	if len(m.Units) != len(p.Units) {
		return nil, fmt.Errorf("the header has %d units, the index %d", len(m.Units), len(p.Units))
	}
	r := &partsReader{header: header, open: map[string]*os.File{}}
	at := map[string]extent{}
	for i, u := range m.Units {
		part := p.Units[i]
		digest, err := kevlard.ParseDigest(part.Digest)
		if err != nil {
			return nil, fmt.Errorf("unit %s of the index: %w", part.Name, err)
		}
		if part.Name != u.Name || part.Bytes != u.Bytes {
			return nil, fmt.Errorf("unit %d is %s of %d bytes by the header, and %s of %d by the index", i, u.Name, u.Bytes, part.Name, part.Bytes)
		}
		path, base := UnitPath(dir, digest), int64(0)
		for _, name := range u.Tensors {
			t, _ := f.Tensor(name)
			if old, ok := at[name]; !ok || old.part.Stamp == nil {
				at[name] = extent{at: t.Offset, size: t.Size, part: part, path: path, base: base}
			}
			base += t.Size
		}
	}
	for _, e := range at {
		r.extents = append(r.extents, e)
	}
	slices.SortFunc(r.extents, func(a, b extent) int { return cmp.Compare(a.at, b.at) })
	return r, nil
}

// ReadAt implements io.ReaderAt.
func (r *partsReader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := r.readSome(p[n:], off+int64(n))
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// readSome reads what lies in one file, or in none.
func (r *partsReader) readSome(p []byte, off int64) (int, error) {
	i, exact := slices.BinarySearchFunc(r.extents, off, func(e extent, off int64) int { return cmp.Compare(e.at, off) })
	if !exact {
		i--
	}
	if i >= 0 && off < r.extents[i].at+r.extents[i].size {
		e := r.extents[i]
		f, err := r.file(e)
		if err != nil {
			return 0, err
		}
		return f.ReadAt(p[:min(int64(len(p)), e.at+e.size-off)], e.base+off-e.at)
	}
	end := off + int64(len(p))
	if i+1 < len(r.extents) {
		end = min(end, r.extents[i+1].at)
	} else if i >= 0 {
		return 0, io.EOF
	}
	p = p[:end-off]
	if i >= 0 {
		clear(p)
		return len(p), nil
	}
	return r.header.ReadAt(p, off)
}

// file opens a part's file, if it is still what was verified.
func (r *partsReader) file(e extent) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, os.ErrClosed
	}
	if f := r.open[e.path]; f != nil {
		return f, nil
	}
	if err := e.part.check(e.path); err != nil {
		return nil, err
	}
	f, err := os.Open(e.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.part.Name, err)
	}
	r.open[e.path] = f
	return f, nil
}

// Close closes what was opened.
func (r *partsReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	err := r.header.Close()
	for _, f := range r.open {
		err = errors.Join(err, f.Close())
	}
	clear(r.open)
	return err
}

// UnitReader reads the tensors of a unit as one sequence of bytes, in the order of their
// roles: equal digests have equal bytes, wherever the tensors lie in their files.
type UnitReader struct {
	r       io.ReaderAt
	tensors []Tensor
	size    int64
}

// Unit returns a reader of the unit with this name.
func (f *File) Unit(name string) (*UnitReader, error) {
	p, err := f.part(name)
	if err != nil {
		return nil, err
	}
	u := &UnitReader{r: f.r}
	for _, r := range p.roles {
		u.tensors = append(u.tensors, r.tensor)
		u.size += r.tensor.Size
	}
	return u, nil
}

// part finds a unit of f.
func (f *File) part(name string) (part, error) {
	shape, err := readShape(f)
	if err != nil {
		return part{}, err
	}
	ps, err := parts(f, &shape)
	if err != nil {
		return part{}, err
	}
	i := slices.IndexFunc(ps, func(p part) bool { return p.name == name })
	if i < 0 {
		return part{}, fmt.Errorf("the model has no unit %q", name)
	}
	return ps[i], nil
}

// Size returns the bytes of all tensors.
func (u *UnitReader) Size() int64 { return u.size }

// ReadAt implements io.ReaderAt.
func (u *UnitReader) ReadAt(p []byte, off int64) (n int, err error) {
	for _, t := range u.tensors {
		if off >= t.Size {
			off -= t.Size
			continue
		}
		m, err := u.r.ReadAt(p[n:n+int(min(int64(len(p)-n), t.Size-off))], t.Offset+off)
		n, off = n+m, 0
		if n == len(p) {
			return n, nil
		}
		if err != nil {
			return n, noEOF(err)
		}
	}
	return n, io.EOF
}

// DigestUnit returns the digest that a unit of f has if its bytes are those of from. It
// stops when ctx ends.
func (f *File) DigestUnit(ctx context.Context, name string, from io.Reader) (kevlard.Digest, error) {
	p, err := f.part(name)
	if err != nil {
		return kevlard.Digest{}, err
	}
	return hashPart(ctx, p, func(Tensor) io.Reader { return from }, func(int) {})
}

// Held returns the units that are on this disk, in order.
func (m *Manifest) Held() []Unit {
	var out []Unit
	for _, u := range m.Units {
		if !slices.Contains(m.Absent, u.Name) {
			out = append(out, u)
		}
	}
	return out
}
