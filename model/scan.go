package model

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Scan loads every *.gguf file under dirs. It returns the models that can be
// served, sorted by path, and one error for each file or directory that cannot.
// A file reachable twice is loaded once.
func Scan(dirs []string, cacheDir string) ([]*Manifest, []error) {
	return Loader{CacheDir: cacheDir}.Scan(context.Background(), dirs)
}

// Scan is like the function Scan, and stops when ctx ends.
func (l Loader) Scan(ctx context.Context, dirs []string) ([]*Manifest, []error) {
	paths, errs := findFiles(dirs)
	var out []*Manifest
	for _, p := range paths {
		if ctx.Err() != nil {
			return out, append(errs, fmt.Errorf("scan models: %w", context.Cause(ctx)))
		}
		m, err := l.Load(ctx, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, m)
	}
	return out, errs
}

// findFiles lists model files by their path as given, following links to files
// but not to directories, which could form circles.
func findFiles(dirs []string) (paths []string, errs []error) {
	seen := make(map[string]bool) // by real path
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				errs = append(errs, fmt.Errorf("scan models: %w", err))
				return nil
			}
			if d.IsDir() || !strings.EqualFold(filepath.Ext(path), ".gguf") {
				return nil
			}
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				return nil
			}
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("scan models: %w", err))
				return nil
			}
			if abs, err := filepath.Abs(real); err == nil {
				real = abs
			}
			if seen[real] {
				return nil
			}
			if len(paths) == maxScanFiles {
				return fmt.Errorf("scan models: over %d files: name a smaller directory than %s", maxScanFiles, dir)
			}
			seen[real] = true
			paths = append(paths, path)
			return nil
		})
		if err != nil {
			errs = append(errs, err)
		}
	}
	slices.Sort(paths)
	return paths, errs
}
