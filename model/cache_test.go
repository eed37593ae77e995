package model

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

func TestCache(t *testing.T) {
	path := synthFile(t, tinySpec())
	dir := filepath.Join(t.TempDir(), "cache")
	var hashed atomic.Bool
	l := Loader{CacheDir: dir, Progress: func(string, int64, int64) { hashed.Store(true) }}
	// check loads and compares with a manifest that no cache had a part in.
	check := func(what string, wantHashed bool) {
		t.Helper()
		hashed.Store(false)
		m, err := l.Load(context.Background(), path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		fresh := load(t, path, "")
		if m.CacheWarning != nil || m.ID != fresh.ID || !reflect.DeepEqual(m.Units, fresh.Units) {
			t.Errorf("%s: manifest %+v, without a cache %+v", what, m, fresh)
		}
		if hashed.Load() != wantHashed {
			t.Errorf("%s: hashed %t: want %t", what, hashed.Load(), wantHashed)
		}
	}
	check("first", true)
	check("second", false)

	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	cache := cachePath(dir, abs)
	good, err := os.ReadFile(cache)
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(cache, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(good[:len(good)/2])
	check("cut short", true)
	put(nil)
	check("empty", true)
	put([]byte(strings.Replace(string(good), `"head": "sha256:`, `"head": "sha256:00`, 1)))
	check("digest altered", true)
	var rec cacheRecord
	if err := json.Unmarshal(good, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Units["layer.1"] = rec.Units["layer.0"]
	raw, _ := json.Marshal(rec)
	put(raw)
	check("digest exchanged", true)
	rec.Path = "/other"
	rec.Sum = rec.sum()
	raw, _ = json.Marshal(rec)
	put(raw)
	check("of another file", true)
	check("again", false)

	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	check("touched", true)
	// Another file of the same size and time in its place: another inode.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chtimes(path+".new", later, later), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	check("replaced", true)
	check("replaced, again", false)
}

func TestUnwritableCacheIsAWarning(t *testing.T) {
	path := synthFile(t, tinySpec())
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	m := load(t, path, filepath.Join(blocked, "cache"))
	if m.CacheWarning == nil || !strings.Contains(m.CacheWarning.Error(), path) {
		t.Errorf("warning %v", m.CacheWarning)
	}
	if fresh := load(t, path, ""); fresh.ID != m.ID {
		t.Errorf("ID %s: want %s", m.ID, fresh.ID)
	}
}

func TestVerify(t *testing.T) {
	path := synthFile(t, tinySpec())
	cache := t.TempDir()
	v, err := Verify(path, cache)
	if err != nil || v.Known || v.OK() {
		t.Fatalf("without kept digests: %+v, %v", v, err)
	}
	m := load(t, path, cache)
	if v, err = Verify(path, cache); err != nil || !v.OK() || v.Changed || len(v.Units) != len(m.Units) {
		t.Fatalf("unchanged: %+v, %v", v, err)
	}
	// Damage a byte and put the time back, as a failing disk would.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := openFile(t, path).Tensor("blk.1.attn_v.weight")
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.WriteAt([]byte{0x55}, x.Offset+7)
	if err = errors.Join(err, w.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	if v, err = Verify(path, cache); err != nil || v.OK() || v.Changed {
		t.Fatalf("damaged: %+v, %v", v, err)
	}
	for _, u := range v.Units {
		if u.OK() != (u.Name != "layer.1") {
			t.Errorf("unit %s: OK %t", u.Name, u.OK())
		}
	}
	if err := os.Truncate(path, x.Offset); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(path, cache); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("cut short: %v", err)
	}
}

// FuzzReadRecord checks that a cache file is either refused or means the same
// when it is read again.
func FuzzReadRecord(f *testing.F) {
	rec := cacheRecord{Version: cacheVersion, Path: "/m.gguf", Units: map[string]string{"head": kevlard.Digest{1}.String()}}
	rec.Sum = rec.sum()
	raw, err := json.Marshal(rec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"version":1,"path":"/m.gguf","units":null}`))
	f.Add([]byte(`[`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(cachePath(dir, "/m.gguf"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := readRecord(dir, "/m.gguf")
		if err != nil {
			return
		}
		if got.Sum != got.sum() || got.Path != "/m.gguf" || got.Version != cacheVersion {
			t.Errorf("accepted %+v", got)
		}
		if ds, ok := got.digests([]Unit{{Name: "head"}}); ok && ds[0].String() != got.Units["head"] {
			t.Errorf("digest %s of %+v", ds[0], got)
		}
	})
}
