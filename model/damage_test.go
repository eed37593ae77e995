package model

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sections names where in f each part of the file ends, in rising order.
func sections(f *File) (names []string, ends []int64) {
	add := func(name string, end int64) { names, ends = append(names, name), append(ends, end) }
	add("magic", 4)
	add("version", 8)
	add("tensor count", 16)
	add("key count", 24)
	for _, k := range f.keys {
		add("key "+k.key, k.end)
	}
	first := f.Tensors()[0].Offset
	for _, t := range f.Tensors() {
		first = min(first, t.Offset)
	}
	add("tensor list", first)
	for _, t := range f.Tensors() {
		add("tensor "+t.Name, t.Offset+t.Size)
	}
	return names, ends
}

// TestTruncated cuts a model at the end of every section, a byte before and a byte
// after: each cut is noticed when the file is loaded, and the error names the file.
func TestTruncated(t *testing.T) {
	path := synthFile(t, tinySpec())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	names, ends := sections(mustParse(t, whole))
	if len(ends) < 40 {
		t.Fatalf("only %d sections", len(ends))
	}
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	cache := filepath.Join(t.TempDir(), "cache")
	load := func(b []byte) error {
		t.Helper()
		if err := os.WriteFile(cut, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(cut, cache)
		return err
	}
	for i, end := range ends {
		for _, n := range []int64{end - 1, end, end + 1} {
			if n >= int64(len(whole)) {
				continue
			}
			err := load(whole[:n])
			if err == nil || !strings.HasPrefix(err.Error(), "load model "+cut+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("cut at %d, near the end of %s: error %v", n, names[i], err)
			}
		}
	}
	if kept, err := filepath.Glob(filepath.Join(cache, "*")); err != nil || len(kept) > 0 {
		t.Errorf("digests of damaged files are kept: %v, %v", kept, err)
	}
	if err := load(whole); err != nil {
		t.Errorf("the whole file: %v", err)
	}
}

// TestFlippedBytes flips bytes all over a model. Nothing panics, and no flip goes
// unnoticed: it is refused, or it changes the model's digest or what the tokenizer
// and the description say.
func TestFlippedBytes(t *testing.T) {
	path := synthFile(t, tinySpec())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	good, err := Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	f := mustParse(t, whole)
	data := f.Tensors()[0].Offset
	for _, x := range f.Tensors() {
		data = min(data, x.Offset)
	}
	var at []int64
	for i := int64(0); i < data; i += 1 + i/25 { // the lists of keys and tensors, densest where the counts are
		at = append(at, i)
	}
	for _, x := range f.Tensors() { // both ends and the middle of each tensor
		at = append(at, x.Offset, x.Offset+x.Size/2, x.Offset+x.Size-1)
	}
	flipped := filepath.Join(t.TempDir(), "flipped.gguf")
	refused, other, words := 0, 0, 0
	for _, i := range at {
		b := bytes.Clone(whole)
		b[i] ^= 0x41
		if err := os.WriteFile(flipped, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Load(flipped, "")
		switch {
		case err != nil:
			refused++
			if !strings.HasPrefix(err.Error(), "load model "+flipped+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("byte %d: error %v", i, err)
			}
		case m.ID != good.ID:
			other++
		case i >= data:
			t.Errorf("byte %d, in the weights: the digest is the same", i)
		default: // a name, a token or a key that no computation reads
			words++
		}
	}
	if refused < 50 || other < len(f.Tensors()) {
		t.Errorf("%d flips: %d refused, %d another model, %d only in words", len(at), refused, other, words)
	}
}
