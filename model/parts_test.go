package model

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// split writes the units that keep names into a directory of Parts.
func split(t *testing.T, m *Manifest, keep func(name string) bool) string {
	t.Helper()
	dir := t.TempDir()
	f, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(path string, r io.Reader) *Stamp {
		b, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := statFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return &s
	}
	p := Parts{ID: m.ID.String(), Name: m.Name, Header: Part{Name: "header", Bytes: f.HeaderBytes(), Stamp: write(HeaderPath(dir), f.Header())}}
	for _, u := range m.Units {
		part := Part{Name: u.Name, Digest: u.Digest.String(), Bytes: u.Bytes}
		if keep(u.Name) {
			r, err := f.Unit(u.Name)
			if err != nil {
				t.Fatal(err)
			}
			part.Stamp = write(UnitPath(dir, u.Digest), io.NewSectionReader(r, 0, r.Size()))
		}
		p.Units = append(p.Units, part)
	}
	if err := p.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func synthetic(t *testing.T, tied bool) *Manifest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.gguf")
	if err := Synth(path, SynthSpec{Type: Q8_0, Layers: 3, Dim: 64, Heads: 4, KVHeads: 2, FFN: 128, Vocab: 300, Seed: 7, Tied: tied}, nil); err != nil {
		t.Fatal(err)
	}
	m, err := Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPartsAreTheModel wants a directory of all units to be what the file is: manifest,
// metadata and the bytes of each tensor.
func TestPartsAreTheModel(t *testing.T) {
	for _, tied := range []bool{false, true} {
		whole := synthetic(t, tied)
		dir := split(t, whole, func(string) bool { return true })
		m, err := Load(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		if m.ID != whole.ID || m.Name != whole.Name || m.Shape != whole.Shape || len(m.Absent) != 0 || !m.Holds(m.All()) {
			t.Errorf("the parts are %s %q, absent %v, want %s %q", m.ID.Short(), m.Name, m.Absent, whole.ID.Short(), whole.Name)
		}
		a, err := whole.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, ta := range a.Tensors() {
			tb, ok := b.Tensor(ta.Name)
			if !ok {
				t.Fatalf("no tensor %s", ta.Name)
			}
			x, errA := io.ReadAll(a.Data(ta))
			y, errB := io.ReadAll(b.Data(tb))
			if errA != nil || errB != nil || !bytes.Equal(x, y) {
				t.Errorf("tensor %s differs (%v, %v)", ta.Name, errA, errB)
			}
		}
		tokens, err := b.Strings("tokenizer.ggml.tokens")
		if err != nil || len(tokens) != m.Vocab {
			t.Errorf("%d tokens, %v", len(tokens), err)
		}
		v, err := Verify(dir, "")
		if err != nil || !v.OK() || len(v.Units) != len(m.Units) {
			t.Errorf("verify: %+v, %v", v, err)
		}
	}
}

// TestPartsThatAreAbsent wants the manifest of the whole model, and an error that names
// the unit only where one is read that is not there.
func TestPartsThatAreAbsent(t *testing.T) {
	for _, tied := range []bool{false, true} {
		whole := synthetic(t, tied)
		m, err := Load(split(t, whole, func(n string) bool { return n == "layer.2" || n == "head" }), "")
		if err != nil {
			t.Fatal(err)
		}
		if m.ID != whole.ID || strings.Join(m.Absent, " ") != "embedding layer.0 layer.1" {
			t.Errorf("model %s without %v", m.ID.Short(), m.Absent)
		}
		for l, want := range map[kevlard.Layers]bool{{Lo: 2, Hi: 3}: true, {Lo: 1, Hi: 3}: false, {Lo: 0, Hi: 1}: false, {Lo: 0, Hi: 3}: false} {
			if m.Holds(l) != want {
				t.Errorf("holds %v: %v", l, !want)
			}
		}
		f, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, name := range m.StageTensors(kevlard.Layers{Lo: 2, Hi: 3}) {
			tensor, _ := f.Tensor(name)
			if _, err := io.ReadAll(f.Data(tensor)); err != nil {
				t.Errorf("tensor %s of a stage that is there: %v", name, err)
			}
		}
		tensor, _ := f.Tensor("blk.1.attn_q.weight")
		if _, err := io.ReadAll(f.Data(tensor)); err == nil || !strings.Contains(err.Error(), "layer.1 is not on this disk") {
			t.Errorf("a tensor that is not there: %v", err)
		}
	}
}

// TestPartsThatChanged wants a file that was written to after it was verified to count as
// absent, and a damaged index to be refused.
func TestPartsThatChanged(t *testing.T) {
	whole := synthetic(t, false)
	dir := split(t, whole, func(string) bool { return true })
	path := UnitPath(dir, whole.Units[1].Digest)
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Load(dir, "")
	if err != nil || strings.Join(m.Absent, " ") != whole.Units[1].Name {
		t.Errorf("absent %v, %v", m.Absent, err)
	}
	index := filepath.Join(dir, partsIndex)
	raw, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, bytes.Replace(raw, []byte(`"layer.1"`), []byte(`"layer.2"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged index: %v", err)
	}
}
