package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// store is the directory of one model that is being fetched, and is its only writer.
type store struct {
	dir     string
	library *Library

	mu    sync.Mutex
	index model.Parts // Units is empty until the header is there
	parts map[kevlard.Digest]*part
}

// part is a unit that is being gathered. Chunks of a request that was taken back can come
// at any time, and are of a list that may have been wrong. So it takes only those of the
// list that it was last compared with, and none while it is read as a whole and after: what
// was found right must not be written to.
type part struct {
	file *os.File

	mu   sync.RWMutex   // held to read by who writes, to write by who changes list
	list kevlard.Digest // zero: nothing is taken
}

// open says of which list chunks are taken from now on, the zero value for none. Those that
// are being written are waited for.
func (p *part) open(list kevlard.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = list
}

// write writes a chunk if it is of the right list, and reports whether it is.
func (p *part) write(list kevlard.Digest, i int, b []byte) (taken bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if list.IsZero() || p.list != list {
		return false, nil
	}
	_, err = p.file.WriteAt(b, int64(i)*ChunkBytes)
	return true, err
}

// modelDir is where a model is kept that was fetched.
func (l *Library) modelDir(id kevlard.Digest) string {
	return filepath.Join(l.dir, hex.EncodeToString(id[:]))
}

// Scan adds the models that were fetched in earlier lives, after putting in order what a
// crash may have left. A directory that can't be read is logged and left alone.
func (l *Library) Scan(ctx context.Context) []*model.Manifest {
	if l.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.log.Warn("fetched models are not looked through", "error", err)
		}
		return nil
	}
	var out []*model.Manifest
	for _, e := range entries {
		id, err := kevlard.ParseDigest("sha256:" + e.Name())
		if err != nil || !e.IsDir() {
			continue // not ours
		}
		s, err := l.store(ctx, id)
		if err != nil {
			l.log.Warn("a fetched model is not used", "path", l.modelDir(id), "error", err)
			continue
		}
		m, err := s.publish()
		s.close()
		if err != nil {
			l.log.Warn("a fetched model is not used", "path", s.dir, "error", err)
		} else if m != nil {
			out = append(out, m)
		}
	}
	return out
}

// store opens the directory of a model, and makes it if there is none.
func (l *Library) store(ctx context.Context, id kevlard.Digest) (*store, error) {
	if l.dir == "" {
		return nil, errors.New("this node keeps no fetched weights: it has no data directory")
	}
	s := &store{dir: l.modelDir(id), library: l, parts: map[kevlard.Digest]*part{}}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of a model: %w", err)
	}
	index, err := model.ReadParts(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.index = model.Parts{ID: id.String()}
	case err != nil:
		return nil, err
	case index.ID != id.String():
		return nil, fmt.Errorf("%s is the directory of model %s: remove it", s.dir, index.ID)
	default:
		s.index = index
	}
	return s, s.recover(ctx)
}

// recover finishes what a crash interrupted: a unit that was renamed and not listed is
// read, and listed if it is right; temporary files go, and units that were found damaged.
func (s *store) recover(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(s.dir, ".parts-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove what a crash left: %w", err)
		}
	}
	if len(s.index.Units) == 0 {
		return nil // the header comes first
	}
	f, m, err := s.header()
	if err != nil {
		return err
	}
	defer f.Close()
	changed := false
	var damaged []kevlard.Digest
	for i := range s.index.Units {
		u := &s.index.Units[i]
		digest, err := kevlard.ParseDigest(u.Digest)
		if err != nil {
			return fmt.Errorf("index of %s: %w", s.dir, err)
		}
		path := model.UnitPath(s.dir, digest)
		if s.library.isBad(s.dir, digest) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a damaged unit: %w", err)
			}
			damaged = append(damaged, digest)
		}
		now, err := model.StampOf(path)
		if err == nil && u.Stamp != nil && *u.Stamp == now || err != nil && u.Stamp == nil {
			continue
		}
		changed, u.Stamp = true, nil
		if err != nil {
			continue
		}
		got, err := digestFile(ctx, f, m.Units[i].Name, path)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && got == digest && now.Size == u.Bytes:
			u.Stamp = &now
		default:
			s.library.log.Warn("a fetched unit is damaged, and removed", "path", path, "unit", u.Name, "error", err)
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove a damaged unit: %w", err)
			}
		}
	}
	if changed {
		if err := s.index.Write(s.dir); err != nil {
			return err
		}
	}
	for _, d := range damaged {
		s.library.removed(s.dir, d)
	}
	if len(damaged) > 0 {
		_, err = s.publish()
	}
	return err
}

// header opens the header, which is there, if it is still what it was.
func (s *store) header() (*os.File, *model.Manifest, error) {
	path := model.HeaderPath(s.dir)
	now, err := model.StampOf(path)
	if err != nil || s.index.Header.Stamp == nil || now != *s.index.Header.Stamp {
		return nil, nil, errors.Join(fmt.Errorf("%s is not what was fetched: remove the directory and fetch the model again", path), err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	_, m, err := model.ParseHeader(f, s.index.Name)
	if err == nil && len(m.Units) != len(s.index.Units) {
		err = fmt.Errorf("%s has %d units, the index %d: remove the directory and fetch the model again", path, len(m.Units), len(s.index.Units))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, m, nil
}

func digestFile(ctx context.Context, header io.ReaderAt, unit, path string) (got kevlard.Digest, err error) {
	f, err := os.Open(path)
	if err != nil {
		return got, err
	}
	defer f.Close()
	h, _, err := model.ParseHeader(header, "")
	if err != nil {
		return got, err
	}
	atLeisure(func() { got, err = h.DigestUnit(ctx, unit, f) })
	return got, err
}

// publish adds what is there to the library. The manifest is nil before the header is.
func (s *store) publish() (*model.Manifest, error) {
	if len(s.index.Units) == 0 {
		return nil, nil
	}
	m, err := model.Load(s.dir, "")
	if err != nil {
		return nil, err
	}
	s.library.Add(m)
	return m, nil
}

// item is a unit to fetch, or the header.
type item struct {
	name   string
	digest kevlard.Digest
	bytes  int64
	header bool
}

func (i item) chunks() int { return chunks(i.bytes) }

func (s *store) partPath(d kevlard.Digest) string {
	return filepath.Join(s.dir, hex.EncodeToString(d[:])+".part")
}

// part opens the file in which a unit is gathered.
func (s *store) part(d kevlard.Digest) (*part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[d]; p != nil {
		return p, nil
	}
	f, err := os.OpenFile(s.partPath(d), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("gather a unit: %w", err)
	}
	s.parts[d] = &part{file: f}
	return s.parts[d], nil
}

// compare tells which chunks of a unit are on disk and match the sums. From now on write
// takes chunks that do.
func (s *store) compare(ctx context.Context, it item, sums []byte) (have []bool, err error) {
	p, err := s.part(it.digest)
	if err != nil {
		return nil, err
	}
	p.open(listOf(sums))
	f := p.file
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	have = make([]bool, it.chunks())
	atLeisure(func() {
		buf := make([]byte, ChunkBytes)
		for i := range have {
			b := buf[:chunkSize(it.bytes, i)]
			if ctx.Err() != nil {
				return
			}
			n, _ := f.ReadAt(b, int64(i)*ChunkBytes) // what can't be read is not there
			have[i] = n == len(b) && matches(b, sums, i)
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return have, nil
}

func matches(b, sums []byte, i int) bool {
	sum := sha256.Sum256(b)
	return bytes.Equal(sum[:], sums[i*sumBytes:(i+1)*sumBytes])
}

// listOf names a list of sums.
func listOf(sums []byte) kevlard.Digest { return kevlard.Digest(sha256.Sum256(sums)) }

// write keeps a chunk that matches its sum in a list, and reports whether it did: not if
// chunks of another list are taken by now, or the unit is there.
func (s *store) write(it item, i int, b []byte, list kevlard.Digest) (kept bool, err error) {
	s.mu.Lock()
	p := s.parts[it.digest]
	s.mu.Unlock()
	if p == nil {
		return false, nil
	}
	return p.write(list, i, b)
}

// check reads a whole unit. If its digest is right it is kept: synced, renamed, listed.
// Otherwise damaged are the chunks that do not match the sums, and write takes others.
func (s *store) check(ctx context.Context, it item, sums []byte) (ok bool, damaged []int, err error) {
	p, err := s.part(it.digest)
	if err != nil {
		return false, nil, err
	}
	p.open(kevlard.Digest{})
	f := p.file
	if err := f.Truncate(it.bytes); err != nil { // an older list may have been longer
		return false, nil, err
	}
	var header *model.File
	if !it.header {
		h, _, err := s.header()
		if err != nil {
			return false, nil, err
		}
		defer h.Close()
		if header, _, err = model.ParseHeader(h, ""); err != nil {
			return false, nil, err
		}
	}
	sum := newSummer()
	var got kevlard.Digest
	atLeisure(func() {
		got, err = digestUnit(ctx, header, it.name, it.header, io.TeeReader(io.NewSectionReader(f, 0, it.bytes), sum))
	})
	if err != nil {
		return false, nil, err
	}
	if got == it.digest {
		return true, nil, s.keep(it, f)
	}
	now := sum.sum()
	for i := range it.chunks() {
		if !bytes.Equal(now[i*sumBytes:(i+1)*sumBytes], sums[i*sumBytes:(i+1)*sumBytes]) {
			damaged = append(damaged, i)
		}
	}
	p.open(listOf(sums))
	return false, damaged, nil
}

// keep makes a part file a unit.
func (s *store) keep(it item, f *os.File) error {
	path := model.UnitPath(s.dir, it.digest)
	if it.header {
		path = model.HeaderPath(s.dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.parts, it.digest)
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(s.partPath(it.digest), path); err != nil {
		return err
	}
	if err := model.SyncDir(s.dir); err != nil {
		return err
	}
	stamp, err := model.StampOf(path)
	if err != nil {
		return err
	}
	if it.header {
		s.index.Header = model.Part{Name: it.name, Digest: it.digest.String(), Bytes: it.bytes, Stamp: &stamp}
		return nil // listed with the units that it names
	}
	for i := range s.index.Units {
		if s.index.Units[i].Digest == it.digest.String() { // equal layers are one unit
			s.index.Units[i].Stamp = &stamp
		}
	}
	if err := s.index.Write(s.dir); err != nil {
		return err
	}
	_, err = s.publish()
	return err
}

// begin lists the units of the model, once the header is there.
func (s *store) begin(name string, m *model.Manifest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.Name = name
	s.index.Units = nil
	for _, u := range m.Units {
		s.index.Units = append(s.index.Units, model.Part{Name: u.Name, Digest: u.Digest.String(), Bytes: u.Bytes})
	}
	if err := s.index.Write(s.dir); err != nil {
		return err
	}
	_, err := s.publish()
	return err
}

// discardHeader removes a header that is not of the model.
func (s *store) discardHeader() error {
	s.index.Header = model.Part{}
	return os.Remove(model.HeaderPath(s.dir))
}

// discard gives back the room of all that is not verified.
func (s *store) discard() error {
	s.close()
	paths, err := filepath.Glob(filepath.Join(s.dir, "*.part"))
	for _, p := range paths {
		err = errors.Join(err, os.Remove(p))
	}
	return err
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		_ = p.file.Close() // what is not verified need not be safe
	}
	clear(s.parts)
}

// room fails if the disk has not room for so many bytes more.
func (s *store) room(need int64) error {
	free, known := freeBytes(s.dir)
	if !known || need <= free {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are to be fetched, and %s has room for %d: make room, or set [node] data_dir to a larger disk", errFull, need, s.dir, free)
}

// errFull says that the disk is full.
var errFull = errors.New("the disk is full")

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// printableName keeps a model's name what names are made of.
func printableName(name string, id kevlard.Digest) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return -1
	}, strings.ToLower(name))
	if name == "" {
		return "model-" + id.Short()
	}
	return name
}
