package model

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/kevlard/kevlard"
)

// Parts is the index of a directory that holds some units of a model, each in a file of
// its own:
//
//	parts.json         this index; replaced as a whole, so that a reader sees the old or the new one
//	header             the bytes of a GGUF file before its weights
//	HEX.unit           the tensors of a unit, in the order of their roles, one after the other;
//	                   HEX is the unit's digest. The file never changes once the index lists it
//
// A unit is there if the index has a stamp for it and the file is in that state. Files
// that the index does not list are somebody's work in progress, and are never read.
type Parts struct {
	Version int    `json:"version"`
	ID      string `json:"id"`   // of the model
	Name    string `json:"name"` // of the model, as its first holder called it
	// Header is the header's digest (SHA-256 of its bytes), size and state.
	Header Part `json:"header"`
	// Units are all units of the model, in order.
	Units []Part `json:"units"`
	// Sum is the digest of the index without Sum, so that damage is noticed.
	Sum string `json:"sum"`
}

// Part is one file of a directory of Parts.
type Part struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
	Stamp  *Stamp `json:"stamp,omitempty"` // nil: not there
}

// partsVersion changes whenever older programs would misread a directory.
const partsVersion = 1

const (
	partsIndex  = "parts.json"
	partsHeader = "header"
)

// HeaderPath and UnitPath are where a directory of Parts has them.
func HeaderPath(dir string) string { return filepath.Join(dir, partsHeader) }

// UnitPath is where a directory of Parts has the unit with this digest.
func UnitPath(dir string, d kevlard.Digest) string {
	return filepath.Join(dir, d.String()[len("sha256:"):]+".unit")
}

// ReadParts reads the index of dir. The error is fs.ErrNotExist where there is none.
func ReadParts(dir string) (Parts, error) {
	path := filepath.Join(dir, partsIndex)
	f, err := os.Open(path)
	if err != nil {
		return Parts{}, fmt.Errorf("not a regular file, nor a directory of fetched units: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxIndexBytes))
	if err != nil {
		return Parts{}, fmt.Errorf("read %s: %w", path, err)
	}
	var p Parts
	if err := json.Unmarshal(raw, &p); err != nil {
		return Parts{}, fmt.Errorf("read %s: %w", path, err)
	}
	if p.Version != partsVersion {
		return Parts{}, fmt.Errorf("read %s: version %d, this program reads version %d: remove the directory, or use the program that wrote it", path, p.Version, partsVersion)
	}
	if p.Sum != p.sum() || len(p.Name) > maxNameBytes || len(p.Units) > maxLayers+3 {
		return Parts{}, fmt.Errorf("read %s: it is damaged: remove the directory and fetch the model again", path)
	}
	return p, nil
}

func (p Parts) sum() string {
	p.Sum = ""
	raw, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("model: an index of strings and numbers does not encode: %v", err))
	}
	h := digester{sha256.New()}
	h.Write(raw)
	return h.sum().String()
}

// Write replaces the index of dir. When it returns nil, the index survives a power cut.
// What it lists must have been synced before.
func (p Parts) Write(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the index of %s: %w", dir, err)
		}
	}()
	p.Version = partsVersion
	p.Sum = p.sum()
	raw, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".parts-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(raw)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, partsIndex))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return SyncDir(dir)
}

// SyncDir makes the names in dir survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// StampOf returns the state of the regular file at path, or, of a directory of Parts,
// that of its header: units come and go, and do not change what an engine has read.
func StampOf(path string) (Stamp, error) { return stampOf(path) }

func stampOf(path string) (Stamp, error) {
	if isDir(path) {
		path = HeaderPath(path)
	}
	return statFile(path)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// ParseHeader describes the model whose header, and no more, r holds. The manifest has
// neither path nor digests; name is what it is called if the header does not say.
func ParseHeader(r io.ReaderAt, name string) (*File, *Manifest, error) {
	f, err := NewFile(r, math.MaxInt64/2) // the weights may be anywhere
	if err != nil {
		return nil, nil, err
	}
	f.size = f.dataStart
	for _, t := range f.tensors {
		f.size = max(f.size, t.Offset+t.Size)
	}
	m, _, err := describe(f, name)
	return f, m, err
}

// Identify gives m its units' digests, in order, and returns the model's ID that follows:
// whoever knows the ID knows by it whether the digests are right.
func (m *Manifest) Identify(digests []kevlard.Digest) (kevlard.Digest, error) {
	if len(digests) != len(m.Units) {
		return kevlard.Digest{}, fmt.Errorf("%d digests for the %d units of a model", len(digests), len(m.Units))
	}
	m.setDigests(digests)
	return m.ID, nil
}

// openParts opens a directory of Parts.
func openParts(dir string) (*File, error) {
	p, err := ReadParts(dir)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	return p.open(dir)
}

func (p Parts) open(dir string) (*File, error) {
	fail := func(err error) (*File, error) { return nil, fmt.Errorf("open model %s: %w", dir, err) }
	if err := p.Header.check(HeaderPath(dir)); err != nil {
		return fail(err)
	}
	h, err := os.Open(HeaderPath(dir))
	if err != nil {
		return fail(err)
	}
	f, m, err := ParseHeader(h, p.Name)
	if err == nil {
		var r *partsReader
		if r, err = p.reader(dir, f, m, h); err == nil {
			f.r, f.closer = r, r
			return f, nil
		}
	}
	return fail(errors.Join(err, h.Close()))
}

// check compares the file with what was verified.
func (p Part) check(path string) error {
	if p.Stamp == nil {
		return fmt.Errorf("%s is not on this disk", p.Name)
	}
	now, err := statFile(path)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	if now != *p.Stamp {
		return fmt.Errorf("%s: the file %s changed since it was verified: remove it, and it will be fetched again", p.Name, path)
	}
	return nil
}

// loadParts is Loader.load for a directory.
func loadParts(dir string) (*Manifest, error) {
	p, err := ReadParts(dir)
	if err != nil {
		return nil, err
	}
	f, err := p.open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, _, err := describe(f, dir)
	if err != nil {
		return nil, err
	}
	m.Name, m.Stamp = p.Name, *p.Header.Stamp
	digests := make([]kevlard.Digest, len(p.Units))
	for i, u := range p.Units {
		if digests[i], err = kevlard.ParseDigest(u.Digest); err != nil {
			return nil, err
		}
		if u.check(UnitPath(dir, digests[i])) != nil {
			m.Absent = append(m.Absent, u.Name)
		}
	}
	id, err := m.Identify(digests)
	if err != nil {
		return nil, err
	}
	if id.String() != p.ID {
		return nil, fmt.Errorf("the units of the index make model %s, not %s: remove the directory and fetch the model again", id.Short(), p.ID)
	}
	return m, nil
}

// verifyParts is Verify for a directory: it reads the units that are there.
func (l Loader) verifyParts(ctx context.Context, dir string) (*Verification, error) {
	m, err := loadParts(dir)
	if err != nil {
		return nil, fmt.Errorf("verify model %s: %w", dir, err)
	}
	f, err := m.Open()
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	defer f.Close()
	v := &Verification{Manifest: m, Known: true}
	total, before := int64(0), int64(0)
	for _, u := range m.Held() {
		total += u.Bytes
	}
	for _, u := range m.Held() {
		r, err := f.Unit(u.Name)
		if err != nil {
			return nil, fmt.Errorf("verify model %s: %w", dir, err)
		}
		got, err := f.DigestUnit(ctx, u.Name, io.NewSectionReader(r, 0, r.Size()))
		if err != nil {
			return nil, fmt.Errorf("verify model %s: %w", dir, err)
		}
		if before += u.Bytes; l.Progress != nil {
			l.Progress(dir, before, total)
		}
		v.Units = append(v.Units, UnitCheck{Name: u.Name, Bytes: u.Bytes, Want: u.Digest, Got: got})
	}
	return v, nil
}
