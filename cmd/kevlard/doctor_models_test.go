package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorModelFiles breaks real files, one beside a sound one, and looks with the real
// probes.
func TestDoctorModelFiles(t *testing.T) {
	sound := filepath.Join(t.TempDir(), "sound.gguf")
	if r := program(t, nil, "", "model", "synth", "--layers", "1", "--dim", "64", "--heads", "2", "--kv-heads", "2", "--ffn", "64", "--vocab", "300", "--type", "f16", sound); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	good, err := os.ReadFile(sound)
	if err != nil {
		t.Fatal(err)
	}
	// A tensor's name is followed by its number of dimensions, these, and its type.
	const name = "blk.0.attn_q.weight"
	at := bytes.Index(good, []byte(name)) + len(name)
	at += 4 + 8*int(binary.LittleEndian.Uint32(good[at:]))
	ofType := func(n uint32) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[at:], n)
		return b
	}
	for _, c := range []struct {
		name   string
		bytes  []byte // nil: a link to nothing
		status string
		what   string
	}{
		{"sound", good, statusOK, ""},
		{"cut short", good[:len(good)-100], statusFail, "the file is cut short"},
		{"cut in its header", good[:200], statusFail, "read model"},
		{"no GGUF", []byte("<html>not found</html>      "), statusFail, "read model"},
		{"empty", []byte{}, statusFail, "read model"},
		{"a link to nothing", nil, statusFail, "no such file"},
		{"another architecture", bytes.Replace(good, []byte("llama"), []byte("mamba"), 1), statusWarn, `architecture "mamba" is not supported: want one of`},
		{"a type that is not computed", ofType(25), statusWarn, `tensor "blk.0.attn_q.weight" has type i16, which is not supported: want one of`},
		{"an unknown type", ofType(999), statusFail, "read model"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := wellDoctor()
			dir := t.TempDir()
			d.cfg.Models.Dirs = []string{filepath.Dir(sound), dir}
			d.probe.modelFiles, d.probe.header = modelFiles, modelArch
			path := filepath.Join(dir, "m.gguf")
			if c.bytes == nil {
				err = os.Symlink(filepath.Join(dir, "gone"), path)
			} else {
				err = os.WriteFile(path, c.bytes, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			found := d.checkModels(t.Context())
			f := found[len(found)-1]
			if f.Status != c.status || !strings.Contains(f.What, c.what) || (f.Fix == "") != (c.status == statusOK) {
				t.Errorf("%+v", found)
			}
			if c.status != statusOK && (len(found) != 2 || found[0].Status != statusOK || !strings.Contains(f.What, path)) {
				t.Errorf("%+v: want the sound file too, and the path of the other", found)
			}
		})
	}
}
