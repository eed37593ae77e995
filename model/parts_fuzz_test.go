package model

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kevlard/kevlard"
)

func FuzzReadParts(f *testing.F) {
	dir := f.TempDir()
	path := filepath.Join(dir, partsIndex)
	part := Part{Name: "head", Digest: kevlard.Digest{1}.String(), Bytes: 5, Stamp: &Stamp{Size: 5}}
	for _, p := range []Parts{{}, {ID: kevlard.Digest{2}.String(), Name: "m", Header: Part{Name: "header", Bytes: 9}, Units: []Part{part, {Name: "tail", Bytes: -1}}}} {
		if err := p.Write(dir); err != nil {
			f.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := ReadParts(dir)
		if err != nil {
			return
		}
		if len(p.Units) > maxLayers+3 || len(p.Name) > maxNameBytes {
			t.Fatalf("accepted %d units of %q", len(p.Units), p.Name)
		}
		// There is no header: whatever the index says, it must not open.
		if file, err := p.open(dir); err == nil {
			t.Fatalf("opened %+v", file)
		}
		if err := p.Write(dir); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadParts(dir); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
	})
}

// A header comes from a peer, and its tensors are where it says: nothing bounds them
// but int64.
func FuzzParseHeader(f *testing.F) {
	w := &kvWriter{}
	w.text("general.architecture", "llama")
	w.u32("general.alignment", 64)
	f.Add(gguf(w, Tensor{Name: "a", Type: F32, Shape: []uint64{4}}))
	raw, err := os.ReadFile(synthFile(f, SynthSpec{Layers: 1, Dim: 4, Heads: 2, FFN: 4, Vocab: synthMinVocab, Type: F16}))
	if err != nil {
		f.Fatal(err)
	}
	file, err := parse(raw)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw[:file.HeaderBytes()])
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, m, err := ParseHeader(bytes.NewReader(raw), "m")
		if err != nil {
			return
		}
		for _, x := range file.Tensors() {
			if x.Offset < 0 || x.Size <= 0 || x.Offset+x.Size < x.Offset || x.Offset+x.Size > file.size {
				t.Fatalf("tensor %+v of a file of %d bytes", x, file.size)
			}
		}
		if len(m.Units) > maxLayers+3 || len(m.StageUnits(m.All())) != len(m.Units) {
			t.Fatalf("manifest %+v", m)
		}
		if _, err := m.Identify(make([]kevlard.Digest, len(m.Units)+1)); err == nil {
			t.Fatal("took a digest too many")
		}
	})
}
