package model

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// Manifest describes a model file that kevlard can serve. It was checked: every
// tensor that the hyperparameters call for is there with the right shape and a
// served type, and no other. It never changes.
type Manifest struct {
	// ID is the model's identity; see the package comment.
	ID kevlard.Digest `json:"-"`
	// Name is for people and for API requests, e.g. "fairy". It is not unique.
	Name string `json:"name"`
	Arch string `json:"arch"`
	// Path is absolute: a file, or a directory of Parts.
	Path string `json:"path"`
	Shape
	// TensorTypes are the formats in the file, by name, sorted.
	TensorTypes []string `json:"tensor_types"`
	// Units are in the order globals (if any), embedding, layers, head.
	Units []Unit `json:"units"`
	// Stamp identifies the state of the file that was read.
	Stamp Stamp `json:"stamp"`
	// Absent names the units that are not in a directory of Parts, in order.
	Absent []string `json:"absent,omitempty"`
	// CacheWarning says why digests could not be kept for the next start; the
	// manifest is right all the same.
	CacheWarning error `json:"-"`
}

// Load reads the manifest of the file at path. Digests come from cacheDir if
// they were computed for the same file in the same state (size, modification
// time, inode), else all weights are read once. An empty cacheDir means no cache.
func Load(path, cacheDir string) (*Manifest, error) {
	return Loader{CacheDir: cacheDir}.Load(context.Background(), path)
}

// Loader loads manifests.
type Loader struct {
	// CacheDir keeps digests between starts; "" keeps none.
	CacheDir string
	// Progress, if set, is told how many bytes of a file have been hashed; it is
	// called from several goroutines at once and only if hashing is needed.
	Progress func(path string, done, total int64)
}

// Load is like the function Load, and stops when ctx ends.
func (l Loader) Load(ctx context.Context, path string) (*Manifest, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	m, err := l.load(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", path, err)
	}
	return m, nil
}

func (l Loader) load(ctx context.Context, path string) (*Manifest, error) {
	if isDir(path) {
		return loadParts(path)
	}
	stamp, err := statFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, ps, err := describe(f, path)
	if err != nil {
		return nil, err
	}
	m.Stamp = stamp
	digests, ok := readCache(l.CacheDir, path, stamp, m.Units)
	if !ok {
		if digests, err = hashParts(ctx, f, ps, func(done, total int64) {
			if l.Progress != nil {
				l.Progress(path, done, total)
			}
		}); err != nil {
			return nil, err
		}
	}
	// Whatever was read must be the state that was stamped.
	if now, err := statFile(path); err != nil {
		return nil, err
	} else if now != stamp {
		return nil, fmt.Errorf("the file changed while it was read: load it again when it is complete")
	}
	m.setDigests(digests)
	if !ok {
		m.CacheWarning = writeCache(l.CacheDir, path, stamp, m.Units)
	}
	return m, nil
}

// describe builds the manifest of f, without digests, and the parts to hash.
func describe(f *File, path string) (*Manifest, []part, error) {
	shape, err := readShape(f)
	if err != nil {
		return nil, nil, err
	}
	ps, err := parts(f, &shape)
	if err != nil {
		return nil, nil, err
	}
	if err := checkTokens(f, shape.Vocab); err != nil {
		return nil, nil, err
	}
	m := &Manifest{Name: friendlyName(f, path), Arch: f.Arch(), Path: path, Shape: shape}
	for _, t := range f.Tensors() {
		if !slices.Contains(m.TensorTypes, t.Type.String()) {
			m.TensorTypes = append(m.TensorTypes, t.Type.String())
		}
	}
	slices.Sort(m.TensorTypes)
	for _, p := range ps {
		u := Unit{Name: p.name}
		for _, r := range p.roles {
			u.Bytes += r.tensor.Size
			u.Tensors = append(u.Tensors, r.tensor.Name)
		}
		m.Units = append(m.Units, u)
	}
	return m, ps, nil
}

// Open opens the manifest's file and fails if it is no longer in the state that
// the manifest describes.
func (m *Manifest) Open() (*File, error) {
	f, err := Open(m.Path)
	if err != nil {
		return nil, err
	}
	now, err := stampOf(m.Path)
	if err == nil && now != m.Stamp {
		err = fmt.Errorf("model %s changed since it was loaded: restart the node or load it again", m.Path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// All returns the range of all layers.
func (m *Manifest) All() kevlard.Layers { return kevlard.Layers{Hi: m.Layers} }

// Bytes returns the bytes of all units.
func (m *Manifest) Bytes() int64 { return m.StageBytes(m.All()) }

// StageUnits returns the units a stage of layers l computes with, in order:
// globals if the model has any, the embedding if l starts at 0, the layers, the
// head if l ends at the last layer. It returns nil if l is not a range of the
// model's layers.
func (m *Manifest) StageUnits(l kevlard.Layers) []Unit {
	if !m.All().Contains(l) {
		return nil
	}
	first := len(m.Units) - 1 - m.Layers // Units[first] is layer 0
	var out []Unit
	for i, u := range m.Units {
		switch {
		case i < first-1: // globals
		case i == first-1 && l.Lo > 0: // embedding
			continue
		case i == len(m.Units)-1 && l.Hi < m.Layers: // head
			continue
		case i >= first && i < len(m.Units)-1 && (i-first < l.Lo || i-first >= l.Hi):
			continue
		}
		out = append(out, u)
	}
	return out
}

// Holds reports whether all units of a stage are on this disk.
func (m *Manifest) Holds(l kevlard.Layers) bool {
	units := m.StageUnits(l)
	return len(units) > 0 && !slices.ContainsFunc(units, func(u Unit) bool { return slices.Contains(m.Absent, u.Name) })
}

// StageBytes returns the bytes of the units of a stage. A tied embedding counts
// twice in a stage that has both ends: the engine holds a copy for each.
func (m *Manifest) StageBytes(l kevlard.Layers) int64 {
	var n int64
	for _, u := range m.StageUnits(l) {
		n += u.Bytes
	}
	return n
}

// StageTensors returns the names of the tensors of a stage's units, each once.
func (m *Manifest) StageTensors(l kevlard.Layers) []string {
	var out []string
	seen := make(map[string]bool)
	for _, u := range m.StageUnits(l) {
		for _, t := range u.Tensors {
			if !seen[t] {
				seen[t] = true
				out = append(out, t)
			}
		}
	}
	return out
}

// friendlyName derives a short name: general.name, without the size if the file
// gives its size and the rest as general.basename; else the file's name without
// its format. It has lower-case letters, digits, dots and dashes.
func friendlyName(f *File, path string) string {
	name := slug(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	if s, ok := f.String("general.name"); ok && slug(s) != "" {
		name = slug(s)
	}
	base, _ := f.String("general.basename")
	size, _ := f.String("general.size_label")
	if slug(base) != "" && name == slug(base+"-"+size) {
		name = slug(base)
	}
	if cut := formatSuffix.ReplaceAllString(name, ""); cut != "" {
		name = cut
	}
	if name == "" {
		return "model"
	}
	return name
}

func slug(s string) string {
	return strings.Trim(notSlug.ReplaceAllString(strings.ToLower(s), "-"), "-.")
}

var (
	notSlug      = regexp.MustCompile(`[^a-z0-9._]+`)
	formatSuffix = regexp.MustCompile(`[-.](?:b?f16|f32|i?q[1-8](?:_[a-z0-9]+)*)$`)
)

// statFile returns the stamp of the regular file at path.
func statFile(path string) (Stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return Stamp{}, fmt.Errorf("not a regular file")
	}
	return Stamp{Size: info.Size(), ModTime: info.ModTime().UnixNano(), Inode: inode(info)}, nil
}
