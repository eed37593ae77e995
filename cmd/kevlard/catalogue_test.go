package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights"
)

// TestTroubleIsToldOnce scans as a daemon does, again and again: what is wrong with the
// directories is a warning once, and again when it was mended and is back.
func TestTroubleIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil)) // from info on
	library := weights.NewLibrary(t.TempDir(), log)
	t.Cleanup(library.Close)
	missing := filepath.Join(dir, "none")
	c := newCatalogue([]string{dir, missing}, model.Loader{CacheDir: t.TempDir()}, library, log)
	junk := filepath.Join(dir, "junk.gguf")
	spoil := func() {
		t.Helper()
		if err := os.WriteFile(junk, []byte("no model"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines := func(with string) (n int) {
		for line := range strings.Lines(logged.String()) {
			if strings.Contains(line, with) {
				n++
			}
		}
		return n
	}
	want := func(junks, missings int) {
		t.Helper()
		c.scan(t.Context())
		if j, m := lines(junk), lines(missing); j != junks || m != missings {
			t.Errorf("%d lines of the broken file and %d of the missing directory, want %d and %d:\n%s", j, m, junks, missings, logged.String())
		}
	}
	spoil()
	want(1, 1)
	want(1, 1)
	if err := os.Remove(junk); err != nil {
		t.Fatal(err)
	}
	want(1, 1)
	spoil()
	want(2, 1)
}
