package mesh

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
)

func TestKeyIsMadeOnceAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first, err := LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !first.Equals(second) || first.Type() != crypto.Ed25519 {
		t.Fatalf("keys differ or are no ed25519: %v, %v", first.Type(), second.Type())
	}
	info, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %04o, want 0600", info.Mode().Perm())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Fatalf("directory holds %v, %v; want only the key", left, err)
	}
}

func TestBadKeyIsKept(t *testing.T) {
	rsa, _, err := crypto.GenerateRSAKeyPair(2048, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := crypto.MarshalPrivateKey(rsa)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		content []byte
		mode    os.FileMode
		want    string
	}{
		{nil, 0o644, "chmod 600"},
		{nil, 0o600, "backup"},
		{[]byte("garbage"), 0o600, "backup"},
		{raw, 0o600, "want Ed25519"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, keyFile)
		if err := os.WriteFile(path, c.content, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadOrCreateKey(dir)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q mode %04o: error is %v, want one naming %s and %q", c.content, c.mode, err, path, c.want)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(c.content) {
			t.Errorf("the file was changed to %q (%v)", now, err)
		}
	}
}
