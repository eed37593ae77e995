package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// Library is the weights on this node's disk: files that it was given, and what it
// fetched. Its methods may be called by any goroutine.
type Library struct {
	dir string // of what is fetched; "": nothing is
	log *slog.Logger

	listing chan struct{} // capacity 1: a unit is read for its list

	mu     sync.Mutex
	shelf  map[string]*volume            // by path
	owners map[kevlard.Digest][]*volume  // models by ID, the whole ones first
	units  map[kevlard.Digest][]location // by digest, headers too
	sums   map[kevlard.Digest][]byte     // lists that were read; bounded by units
	bad    map[place]bool                // units whose bytes are not what they were
}

// place is a unit at the path of a model.
type place struct {
	path string
	unit kevlard.Digest
}

// volume is one model on disk.
type volume struct {
	manifest *model.Manifest
	header   kevlard.Digest // zero: not read yet
	bytes    int64          // of the header

	mu     sync.Mutex
	file   *model.File // nil: not open
	users  int
	retire bool
}

// location is where a unit is; header: it is a volume's header.
type location struct {
	volume *volume
	unit   model.Unit
	header bool
}

// NewLibrary returns a library that keeps what is fetched in dir, which is made when it
// is needed. An empty dir keeps nothing.
func NewLibrary(dir string, log *slog.Logger) *Library {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Library{
		dir: dir, log: log, listing: make(chan struct{}, 1), shelf: map[string]*volume{},
		owners: map[kevlard.Digest][]*volume{}, units: map[kevlard.Digest][]location{}, sums: map[kevlard.Digest][]byte{}, bad: map[place]bool{},
	}
}

// Add takes a model that is on this disk, in place of what was known at its path, to be
// given to peers. Models over the 64th are not taken.
func (l *Library) Add(m *model.Manifest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.shelf[m.Path]
	if old == nil && len(l.shelf) >= maxModels {
		l.log.Warn("a model is not given to other nodes: there are too many here", "path", m.Path, "most", maxModels)
		return
	}
	v := &volume{manifest: m}
	if old != nil {
		old.end()
		if old.manifest.ID == m.ID && old.manifest.Stamp == m.Stamp {
			v.header, v.bytes = old.header, old.bytes
		} else {
			for _, u := range m.Units { // the file was replaced
				delete(l.bad, place{m.Path, u.Digest})
				delete(l.sums, u.Digest)
			}
		}
	}
	l.shelf[m.Path] = v
	l.index()
}

// index is called with mu held.
func (l *Library) index() {
	clear(l.owners)
	clear(l.units)
	paths := make([]string, 0, len(l.shelf))
	for p := range l.shelf {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		v := l.shelf[p]
		l.owners[v.manifest.ID] = append(l.owners[v.manifest.ID], v)
		for _, u := range v.manifest.Held() {
			l.units[u.Digest] = append(l.units[u.Digest], location{volume: v, unit: u})
		}
		if !v.header.IsZero() {
			l.units[v.header] = append(l.units[v.header], location{volume: v, unit: model.Unit{Name: "header", Digest: v.header, Bytes: v.bytes}, header: true})
		}
	}
	for _, vs := range l.owners {
		slices.SortStableFunc(vs, func(a, b *volume) int { return len(a.manifest.Absent) - len(b.manifest.Absent) })
	}
}

// Find returns a model on this disk that has all units of a stage (with empty layers: the
// header), the one with the most units: a GGUF file, or a directory of what was fetched.
// The latter is looked at again, for somebody may have removed or changed a file. What was
// found damaged does not count.
func (l *Library) Find(id kevlard.Digest, layers kevlard.Layers) (*model.Manifest, bool) {
	l.mu.Lock()
	vs := slices.Clone(l.owners[id])
	l.mu.Unlock()
	for _, v := range vs {
		m := v.manifest
		if layers.Len() > 0 && slices.ContainsFunc(m.StageUnits(layers), func(u model.Unit) bool { return l.isBad(m.Path, u.Digest) }) {
			continue
		}
		if strings.HasPrefix(m.Path, l.modelDir(id)) {
			var err error
			if m, err = model.Load(m.Path, ""); err != nil {
				continue
			}
		}
		if layers.Len() == 0 || m.Holds(layers) {
			return m, true
		}
	}
	return nil, false
}

// isBad reports whether a unit was found damaged at a path.
func (l *Library) isBad(path string, unit kevlard.Digest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bad[place{path, unit}]
}

// removed says that a damaged unit is not there any more.
func (l *Library) removed(path string, unit kevlard.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bad, place{path, unit})
}

// Held lists the digests of the units of a model that are on this disk.
func (l *Library) Held(id kevlard.Digest) map[kevlard.Digest]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[kevlard.Digest]bool{}
	for _, v := range l.owners[id] {
		for _, u := range v.manifest.Held() {
			if !l.bad[place{v.manifest.Path, u.Digest}] {
				out[u.Digest] = true
			}
		}
	}
	return out
}

// Close closes all files.
func (l *Library) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.shelf {
		v.end()
	}
	clear(l.shelf)
	l.index()
}

// use opens the volume's file if need be, and fails if it is no longer what was verified.
// done must be called.
func (v *volume) use() (f *model.File, done func(), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now, err := model.StampOf(v.manifest.Path)
	if err == nil && now != v.manifest.Stamp {
		err = fmt.Errorf("model %s changed since it was loaded", v.manifest.Path)
	}
	if err == nil && v.file == nil {
		v.file, err = v.manifest.Open()
	}
	if err != nil {
		return nil, nil, err
	}
	v.users++
	return v.file, v.done, nil
}

func (v *volume) done() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.users--
	v.tidy()
}

// end closes the file when nobody uses it any more.
func (v *volume) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retire = true
	v.tidy()
}

func (v *volume) tidy() {
	if v.retire && v.users == 0 && v.file != nil {
		_ = v.file.Close() // it was only read
		v.file = nil
	}
}

// refused is why a node does not give something.
type refused struct {
	why  Refusal
	text string
}

func (r *refused) Error() string { return string(r.why) + ": " + r.text }

func refuse(why Refusal, format string, args ...any) error {
	return &refused{why, fmt.Sprintf(format, args...)}
}

// describe says what is here of a model.
func (l *Library) describe(id kevlard.Digest) (*Description, error) {
	l.mu.Lock()
	vs := slices.Clone(l.owners[id])
	l.mu.Unlock()
	var err error
	for _, v := range vs {
		d := &Description{Name: v.manifest.Name}
		if d.Header, d.HeaderBytes, err = l.readHeader(v); err != nil {
			continue
		}
		held := l.Held(id)
		for _, u := range v.manifest.Units {
			d.Units = append(d.Units, u.Digest)
			d.Held = append(d.Held, 0)
			if held[u.Digest] {
				d.Held[len(d.Held)-1] = 1
			}
		}
		return d, nil
	}
	if err != nil {
		return nil, refuse(Damaged, "%v", err)
	}
	return nil, refuse(Absent, "there is no model %s", id.Short())
}

// readHeader digests the header of a volume, once.
func (l *Library) readHeader(v *volume) (header kevlard.Digest, size int64, err error) {
	l.mu.Lock()
	header, size = v.header, v.bytes
	l.mu.Unlock()
	if !header.IsZero() {
		return header, size, nil
	}
	f, done, err := v.use()
	if err != nil {
		return header, 0, err
	}
	defer done()
	h := sha256.New()
	if _, err := io.Copy(h, f.Header()); err != nil {
		return header, 0, fmt.Errorf("read the header of %s: %w", v.manifest.Path, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v.header, v.bytes = kevlard.Digest(h.Sum(nil)), f.HeaderBytes()
	l.index()
	return v.header, v.bytes, nil
}

// locate finds a unit that can be read.
func (l *Library) locate(unit kevlard.Digest) ([]location, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.units[unit]
	if len(all) == 0 {
		return nil, refuse(Absent, "there is no unit %s", unit.Short())
	}
	at := slices.DeleteFunc(slices.Clone(all), func(a location) bool { return l.bad[a.place()] })
	if len(at) == 0 {
		return nil, all[0].damaged()
	}
	return at, nil
}

func (at location) place() place { return place{at.volume.manifest.Path, at.unit.Digest} }

func (at location) damaged() error {
	return refuse(Damaged, "unit %s of %s is damaged on this disk", at.unit.Name, at.volume.manifest.Path)
}

// open returns a reader of a unit; done must be called.
func (at location) open() (f *model.File, r io.ReaderAt, done func(), err error) {
	f, done, err = at.volume.use()
	if err != nil {
		return nil, nil, nil, refuse(Damaged, "%v", err)
	}
	if at.header {
		return f, f.Header(), done, nil
	}
	u, err := f.Unit(at.unit.Name)
	if err != nil {
		done()
		return nil, nil, nil, refuse(Damaged, "%v", err)
	}
	return f, u, done, nil
}

// read reads chunk i of a unit.
func (l *Library) read(unit kevlard.Digest, i int) ([]byte, error) {
	at, err := l.locate(unit)
	if err != nil {
		return nil, err
	}
	if i >= chunks(at[0].unit.Bytes) {
		return nil, refuse(Absent, "unit %s has %d chunks", unit.Short(), chunks(at[0].unit.Bytes))
	}
	for _, a := range at {
		var b []byte
		if b, err = a.read(i); err == nil {
			return b, nil
		}
	}
	return nil, err
}

func (at location) read(i int) (b []byte, err error) {
	_, r, done, err := at.open()
	if err != nil {
		return nil, err
	}
	defer done()
	b = make([]byte, chunkSize(at.unit.Bytes, i))
	atLeisure(func() { _, err = r.ReadAt(b, int64(i)*ChunkBytes) })
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, refuse(Failing, "read %s of %s: %v", at.unit.Name, at.volume.manifest.Path, err)
	}
	return b, nil
}

// list returns the sums of a unit's chunks. The first time it reads the unit, and does not
// give it any more from where its digest is not right.
func (l *Library) list(ctx context.Context, unit kevlard.Digest) (sums []byte, size int64, err error) {
	for {
		at, err := l.locate(unit)
		if err != nil {
			return nil, 0, err
		}
		l.mu.Lock()
		sums, ok := l.sums[unit]
		l.mu.Unlock()
		if ok {
			return sums, at[0].unit.Bytes, nil
		}
		select {
		case l.listing <- struct{}{}: // one at a time, so that the second finds the first's
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
		for _, a := range at {
			if err = l.sum(ctx, a); err == nil {
				break
			}
		}
		<-l.listing
		if err != nil {
			return nil, 0, err
		}
	}
}

// sum reads a unit, unless somebody else has meanwhile.
func (l *Library) sum(ctx context.Context, at location) error {
	l.mu.Lock()
	_, ok := l.sums[at.unit.Digest]
	l.mu.Unlock()
	if ok {
		return nil
	}
	f, r, done, err := at.open()
	if err != nil {
		return err
	}
	defer done()
	var got kevlard.Digest
	s := newSummer()
	atLeisure(func() {
		got, err = digestUnit(ctx, f, at.unit.Name, at.header, io.TeeReader(io.NewSectionReader(r, 0, at.unit.Bytes), s))
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return refuse(Failing, "read %s of %s: %v", at.unit.Name, at.volume.manifest.Path, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if got != at.unit.Digest {
		l.bad[at.place()] = true // a unit is listed once, so there are no more than units
		l.log.Warn("weights on this disk are damaged, and not given to other nodes: fetch the model again, or restore the file", "path", at.volume.manifest.Path, "unit", at.unit.Name)
		return at.damaged()
	}
	l.sums[at.unit.Digest] = s.sum()
	return nil
}

// digestUnit digests a unit or header whose bytes are those of from.
func digestUnit(ctx context.Context, f *model.File, name string, header bool, from io.Reader) (kevlard.Digest, error) {
	if !header {
		return f.DigestUnit(ctx, name, from)
	}
	h := sha256.New()
	_, err := io.Copy(h, from)
	return kevlard.Digest(h.Sum(nil)), err
}

// summer is a writer that sums each chunk of what is written.
type summer struct {
	sums []byte
	part bytes.Buffer
}

func newSummer() *summer { return &summer{} }

// Write implements io.Writer.
func (s *summer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(len(p), ChunkBytes-s.part.Len())
		s.part.Write(p[:k])
		if p = p[k:]; s.part.Len() == ChunkBytes {
			s.flush()
		}
	}
	return n, nil
}

func (s *summer) flush() {
	sum := sha256.Sum256(s.part.Bytes())
	s.sums = append(s.sums, sum[:]...)
	s.part.Reset()
}

// sum returns the list, the last chunk included.
func (s *summer) sum() []byte {
	if s.part.Len() > 0 {
		s.flush()
	}
	return s.sums
}
