package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestGroupMemory reads both versions of control groups: the least of a group and of those
// above it counts.
func TestGroupMemory(t *testing.T) {
	for _, c := range []struct {
		name, proc string
		files      map[string]string
		want       int64
	}{
		{"two", "0::/a/b\n", map[string]string{"a/memory.max": "1000\n", "a/b/memory.max": "max\n"}, 1000},
		{"two, the inner", "0::/a/b\n", map[string]string{"a/memory.max": "1000\n", "a/b/memory.max": "900\n"}, 900},
		{"one", "5:cpu:/x\n4:memory,foo:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "700\n", "memory/x/memory.limit_in_bytes": "1\n"}, 700},
		{"none", "0::/\n", map[string]string{}, math.MaxInt64},
		{"no numbers", "0::/a\nnonsense\n", map[string]string{"a/memory.max": "x\n"}, math.MaxInt64},
	} {
		dir := t.TempDir()
		c.files["proc"] = c.proc
		for name, text := range c.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := groupMemory(filepath.Join(dir, "proc"), dir); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
