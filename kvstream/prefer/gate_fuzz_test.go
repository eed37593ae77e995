package prefer

import (
	"bytes"
	"testing"
)

func FuzzSplit(f *testing.F) {
	f.Add(append(tag{1, 2}.append(nil), "header"...))
	f.Add([]byte("header"))
	f.Add([]byte(tagMagic))
	f.Fuzz(func(t *testing.T, header []byte) {
		got, rest := split(header)
		if got == (tag{}) && bytes.Equal(rest, header) {
			return
		}
		if again := append(got.append(nil), rest...); !bytes.Equal(again, header) {
			t.Fatalf("% x is read as %+v before % x", header, got, rest)
		}
	})
}
