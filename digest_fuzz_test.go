package kevlard_test

import (
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

func FuzzParseDigest(f *testing.F) {
	f.Add(kevlard.Digest{1, 0xff}.String())
	f.Add("sha256:" + strings.Repeat("0", 63) + "g")
	f.Add("sha256:")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := kevlard.ParseDigest(text)
		if err != nil {
			if !d.IsZero() {
				t.Fatalf("%q fails, and is %s", text, d)
			}
			return
		}
		if d.String() != strings.ToLower(text) {
			t.Fatalf("%q is %s", text, d)
		}
	})
}
