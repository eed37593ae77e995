package mesh

import (
	"strings"
	"testing"
)

// TestSecretsChange dials between nodes at different steps of a change of the secret.
func TestSecretsChange(t *testing.T) {
	before, after := []byte("0123456789abcdef"), []byte("fedcba9876543210")
	for _, c := range []struct {
		name           string
		dialler, taker [][]byte
		refused        bool
	}{
		{"both before", [][]byte{before}, [][]byte{before}, false},
		{"added at the dialler", [][]byte{before, after}, [][]byte{before}, false},
		{"added at the acceptor", [][]byte{before}, [][]byte{before, after}, false},
		{"used at the dialler", [][]byte{after, before}, [][]byte{before, after}, false},
		{"used at the acceptor", [][]byte{before, after}, [][]byte{after, before}, false},
		{"removed at the dialler", [][]byte{after}, [][]byte{after, before}, false},
		{"removed at the acceptor", [][]byte{after, before}, [][]byte{after}, false},
		{"the dialler was down", [][]byte{before}, [][]byte{after}, true},
	} {
		d, err := newKeys(c.dialler)
		if err != nil {
			t.Fatal(err)
		}
		a, err := newKeys(c.taker)
		if err != nil {
			t.Fatal(err)
		}
		sum := func(key []byte) []byte { return transcript{}.mac(key, sideDialler) }
		key := a.proved(sum(d.first()), sum)
		if (key == nil) != c.refused {
			t.Errorf("%s: refused %v, want %v", c.name, key == nil, c.refused)
		}
		if key == nil {
			continue
		}
		sum = func(key []byte) []byte { return transcript{}.mac(key, sideAcceptor) }
		if d.proved(sum(key), sum) == nil {
			t.Errorf("%s: the dialler does not know what the acceptor proves", c.name)
		}
	}
	if _, err := newKeys([][]byte{before, []byte("short")}); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short one: %v", err)
	}
	if _, err := newKeys(nil); err == nil {
		t.Error("no secret is accepted")
	}
}
