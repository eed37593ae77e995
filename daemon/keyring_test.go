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

// TestSecretFileIsReplaced follows the last step of a change of the secret, and a second
// change without a restart in between: what the file holds is read when it is asked for,
// and a file that was replaced before a change is not taken for the operator's word after it.
func TestSecretFileIsReplaced(t *testing.T) {
	secret := func(b byte) []byte { return bytes.Repeat([]byte{b}, membership.SecretSize) }
	one, two, three := secret(1), secret(2), secret(3)
	dir, inFile := t.TempDir(), one
	s := &secrets{dir: dir, configured: one, keys: keyring{one}, file: func() ([]byte, error) {
		if inFile == nil {
			return nil, os.ErrNotExist
		}
		return inFile, nil
	}}
	do := func(c keysCall) keysAnswer {
		t.Helper()
		a, err := s.do(c)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	change := func(old, to []byte) {
		t.Helper()
		do(keysCall{Do: keysAdd, Secret: to})
		do(keysCall{Do: keysUse, ID: membership.SecretID(to)})
		if a := do(keysCall{Do: keysRemove, ID: membership.SecretID(old)}); a.Configured != membership.SecretID(inFile) {
			t.Errorf("the file is said to hold %q, want %q", a.Configured, membership.SecretID(inFile))
		}
	}
	change(one, two)
	inFile = two
	if a := do(keysCall{Do: keysList}); a.Configured != membership.SecretID(two) {
		t.Errorf("the new file is said to hold %q", a.Configured)
	}
	change(two, three)
	if got, err := Secrets(dir, inFile); err != nil || !bytes.Equal(got[0], three) {
		t.Errorf("after a restart it uses %x, %v, want what the ring uses", got, err)
	}
	inFile = nil
	if a := do(keysCall{Do: keysList}); a.Configured != "" {
		t.Errorf("a file that is gone is said to hold %q", a.Configured)
	}
	do(keysCall{Do: keysAdd, Secret: secret(4)}) // what is kept names the file as it was at the start
	if got, err := Secrets(dir, one); err != nil || !bytes.Equal(got[0], three) {
		t.Errorf("with the file of the start it uses %x, %v", got, err)
	}
}
