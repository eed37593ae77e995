package model

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kevlard/kevlard"
)

// Stamp tells one state of a file from another without reading it.
type Stamp struct {
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime_ns"` // nanoseconds since 1970
	Inode   uint64 `json:"inode"`    // 0 where the system has none
}

// cacheRecord is the content of a digest cache file. Only digests are kept:
// everything else is read from the model file each time.
type cacheRecord struct {
	Version int               `json:"version"`
	Path    string            `json:"path"`
	Stamp   Stamp             `json:"stamp"`
	Units   map[string]string `json:"units"` // unit name: digest
	// Sum is the digest of the record without Sum, so that damage is noticed.
	Sum string `json:"sum,omitempty"`
}

// cacheVersion changes whenever the definition of a digest does.
const cacheVersion = 1

func cachePath(dir, path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+".digests.json")
}

// readRecord returns the undamaged record for path, whatever state of the file
// it belongs to.
func readRecord(dir, path string) (cacheRecord, error) {
	if dir == "" {
		return cacheRecord{}, fs.ErrNotExist
	}
	f, err := os.Open(cachePath(dir, path))
	if err != nil {
		return cacheRecord{}, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxCacheBytes))
	if err != nil {
		return cacheRecord{}, err
	}
	var rec cacheRecord
	if err := json.Unmarshal(raw, &rec); err != nil {
		return cacheRecord{}, err
	}
	sum := rec.Sum
	if rec.Version != cacheVersion || rec.Path != path || sum != rec.sum() {
		return cacheRecord{}, errors.New("damaged or of another version")
	}
	return rec, nil
}

func (r cacheRecord) sum() string {
	r.Sum = ""
	raw, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("model: cache record of strings and numbers does not encode: %v", err))
	}
	return kevlard.Digest(sha256.Sum256(raw)).String()
}

// digests returns the digests for these units, or false if one is missing.
func (r cacheRecord) digests(units []Unit) ([]kevlard.Digest, bool) {
	if len(r.Units) != len(units) {
		return nil, false
	}
	out := make([]kevlard.Digest, len(units))
	for i, u := range units {
		d, err := kevlard.ParseDigest(r.Units[u.Name])
		if err != nil {
			return nil, false
		}
		out[i] = d
	}
	return out, true
}

// readCache returns the digests of units if they were computed for path in the
// state stamp. Anything else, damage included, is as good as no cache.
func readCache(dir, path string, stamp Stamp, units []Unit) ([]kevlard.Digest, bool) {
	rec, err := readRecord(dir, path)
	if err != nil || rec.Stamp != stamp {
		return nil, false
	}
	return rec.digests(units)
}

// writeCache keeps the digests. A reader sees the old record or the new one.
func writeCache(dir, path string, stamp Stamp, units []Unit) (err error) {
	if dir == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("keep digests of %s: %w: they will be computed again at the next start", path, err)
		}
	}()
	rec := cacheRecord{Version: cacheVersion, Path: path, Stamp: stamp, Units: make(map[string]string, len(units))}
	for _, u := range units {
		rec.Units[u.Name] = u.Digest.String()
	}
	rec.Sum = rec.sum()
	raw, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".digests-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(raw)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), cachePath(dir, path))
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}
