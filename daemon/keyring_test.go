package daemon

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kevlard/kevlard/membership"
)

// Whatever a member or the file says, a node keeps a keyring that a ring can run with.
func FuzzKeyring(f *testing.F) {
	one, two := bytes.Repeat([]byte{1}, membership.SecretSize), bytes.Repeat([]byte{2}, membership.SecretSize)
	seed := func(doc keyringDoc, calls ...keysCall) {
		file, err := json.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range calls {
			call, err := json.Marshal(c)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(file, call)
		}
	}
	doc := keyringDoc{Version: 1, Configured: membership.SecretID(one), Secrets: [][]byte{one}}
	seed(doc, keysCall{Do: keysList}, keysCall{Do: keysAdd, Secret: two}, keysCall{Do: keysAdd, Secret: []byte("short")})
	doc.Secrets = append(doc.Secrets, two)
	seed(doc, keysCall{Do: keysUse, ID: membership.SecretID(two)}, keysCall{Do: keysRemove, ID: membership.SecretID(two)}, keysCall{Do: keysRemove, ID: membership.SecretID(one)})
	seed(keyringDoc{Version: 1}, keysCall{Do: "other"})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file, call []byte) {
		if err := os.WriteFile(filepath.Join(dir, keyringFile), file, 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := Secrets(dir, one)
		if err != nil {
			return
		}
		var c keysCall
		if json.Unmarshal(call, &c) != nil {
			return
		}
		s := &secrets{configured: one, keys: keys}
		a, err := s.do(c)
		if bad := membership.CheckSecrets(s.keys); bad != nil {
			t.Fatalf("%+v left %x: %v", c, s.keys, bad)
		}
		if err == nil && len(a.Secrets) != len(s.keys) {
			t.Fatalf("answered %+v of %d secrets", a, len(s.keys))
		}
	})
}
