package model

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	fsggml "github.com/ollama/ollama/fs/ggml"

	"github.com/kevlard/kevlard"
)

// checkSkeleton writes a skeleton of f, reads it again and compares.
func checkSkeleton(t *testing.T, f *File, path string, s Skeleton) *File {
	t.Helper()
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := f.WriteSkeleton(w, s); err != nil {
		t.Fatal(err)
	}
	got := openFile(t, path)
	var want []string
	for _, k := range f.Keys() {
		if s.KeepKey == nil || s.KeepKey(k) || k == "general.alignment" {
			want = append(want, k)
			if got.Kind(k) != f.Kind(k) || !reflect.DeepEqual(bitsOf(got, k), bitsOf(f, k)) {
				t.Errorf("key %q: %s, was %s", k, got.Kind(k), f.Kind(k))
			}
		}
	}
	if !slices.Equal(got.Keys(), want) {
		t.Errorf("keys %q: want %q", got.Keys(), want)
	}
	for _, x := range got.Tensors() {
		o, ok := f.Tensor(x.Name)
		if !ok {
			continue // an extra one
		}
		if o.Type != x.Type || o.Size != x.Size || !slices.Equal(o.Shape, x.Shape) {
			t.Errorf("tensor %+v: was %+v", x, o)
		}
	}
	return got
}

// bitsOf returns a scalar or string as stored.
func bitsOf(f *File, key string) any {
	v := f.field(key)
	return []any{v.bits, v.text, v.end - v.start}
}

func TestSkeletonOfStage(t *testing.T) {
	m, err := Load(q8Model, "")
	if err != nil {
		t.Fatal(err)
	}
	f := openFile(t, q8Model)
	keep := m.StageTensors(kevlard.Layers{Lo: 0, Hi: 2})
	path := filepath.Join(t.TempDir(), "s.gguf")
	got := checkSkeleton(t, f, path, Skeleton{
		KeepTensor: func(n string) bool { return slices.Contains(keep, n) },
		KeepKey:    EngineKey,
		Extra:      []Tensor{{Name: "output.none", Type: F32, Shape: []uint64{1}}},
	})
	if len(got.Tensors()) != len(keep)+1 {
		t.Errorf("%d tensors: want %d and an extra one", len(got.Tensors()), len(keep))
	}
	if x, ok := got.Tensor("output.none"); !ok || x.Size != 4 {
		t.Errorf("extra tensor %+v", x)
	}
	for _, k := range got.Keys() {
		if strings.HasPrefix(k, "tokenizer.") {
			t.Errorf("key %q was kept", k)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 64<<10 || info.Size() < m.StageBytes(kevlard.Layers{Hi: 2}) {
		t.Errorf("%d bytes on disk for a file of %d", used, info.Size())
	}
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if o, err := fsggml.Decode(r, -1); err != nil || o.KV().BlockCount() != 8 {
		t.Errorf("the other decoder: %v", err)
	}
}

func TestSkeletonExtraErrors(t *testing.T) {
	f := openFile(t, q8Model)
	for _, c := range []struct {
		extra Tensor
		want  string
	}{
		{Tensor{Name: "output.weight", Type: F32, Shape: []uint64{1}}, "want a new name"},
		{Tensor{Name: "x", Type: Q8_0, Shape: []uint64{1}}, "no multiple of the 32"},
		{Tensor{Name: "x", Type: F32}, "0 dimensions"},
	} {
		w, err := os.Create(filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.WriteSkeleton(w, Skeleton{Extra: []Tensor{c.extra}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v: want %q in it", c.extra, err, c.want)
		}
		w.Close()
	}
}
