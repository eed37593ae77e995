package model

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kevlard/kevlard"
)

// UnitCheck is the result of verifying one unit.
type UnitCheck struct {
	Name  string
	Bytes int64
	// Want is the digest kept earlier, zero if there is none to compare with.
	Want kevlard.Digest
	Got  kevlard.Digest
}

// OK reports whether the unit's bytes are those that were seen before.
func (c UnitCheck) OK() bool { return c.Want == c.Got }

// Verification is the result of reading a whole model file again.
type Verification struct {
	// Manifest has the digests that were found now.
	Manifest *Manifest
	Units    []UnitCheck
	// Known says that digests were kept in the cache directory to compare with.
	Known bool
	// Changed says that the file's size, time or inode differ from when they were
	// kept: then another digest means a new version rather than damage.
	Changed bool
}

// OK reports whether all units have the digests they had before.
func (v *Verification) OK() bool {
	return v.Known && !slices.ContainsFunc(v.Units, func(c UnitCheck) bool { return !c.OK() })
}

// Verify checks the structure of the file at path and hashes all of its weights
// again, whatever the cache says, comparing with the digests kept there. The
// cache is not changed. The error is non-nil only if the file could not be
// checked; damaged weights are reported by the result.
func (l Loader) Verify(ctx context.Context, path string) (*Verification, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("verify model: %w", err)
	}
	if isDir(path) {
		return l.verifyParts(ctx, path)
	}
	fresh := Loader{Progress: l.Progress}
	m, err := fresh.Load(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	v := &Verification{Manifest: m}
	want := make([]kevlard.Digest, len(m.Units))
	if rec, err := readRecord(l.CacheDir, path); err == nil {
		v.Changed = rec.Stamp != m.Stamp
		// Units that the record lacks stay zero and so differ.
		v.Known = true
		for i, u := range m.Units {
			if d, err := kevlard.ParseDigest(rec.Units[u.Name]); err == nil {
				want[i] = d
			}
		}
	}
	for i, u := range m.Units {
		v.Units = append(v.Units, UnitCheck{Name: u.Name, Bytes: u.Bytes, Want: want[i], Got: u.Digest})
	}
	return v, nil
}

// Verify is Loader.Verify with the digests in cacheDir.
func Verify(path, cacheDir string) (*Verification, error) {
	return Loader{CacheDir: cacheDir}.Verify(context.Background(), path)
}
