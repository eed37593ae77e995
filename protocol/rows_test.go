package protocol

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kevlard/kevlard"
)

func FuzzDecodeRows(f *testing.F) {
	c := NewCodec()
	for _, r := range []Rows{
		{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 2}, Stage: kevlard.StageKey{Layers: kevlard.Layers{Hi: 2}}, Class: "a", CellBytes: 8, Pos: 3, Tokens: []kevlard.Token{1, 2}, Sums: []uint64{3, 4}},
		{Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Stage: kevlard.StageKey{Layers: kevlard.Layers{Lo: 1, Hi: 2}}, Class: "a", CellBytes: 1, Tokens: []kevlard.Token{0}, Sums: []uint64{0}, Try: 7},
	} {
		b, err := c.EncodeRows(r)
		if err != nil {
			f.Fatal(err)
		}
		body := len(r.Tokens) * r.CellBytes
		if _, err := c.DecodeRows(b, body); err != nil {
			f.Fatalf("a seed is refused: %v", err)
		}
		f.Add(b, body)
	}
	f.Fuzz(func(t *testing.T, b []byte, body int) {
		r, err := c.DecodeRows(b, body)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v is not ErrFormat", err)
			}
			return
		}
		if len(r.Tokens) == 0 || len(r.Sums) != len(r.Tokens) || r.Pos < 0 || r.End() <= r.Pos || r.CellBytes < 1 || body/r.CellBytes != len(r.Tokens) {
			t.Fatalf("accepted %+v for a body of %d bytes", r, body)
		}
		again, err := c.EncodeRows(r)
		if err != nil {
			return // an odd encoding may have been shorter than ours
		}
		if s, err := c.DecodeRows(again, body); err != nil || !reflect.DeepEqual(s, r) {
			t.Fatalf("%+v became %+v, %v", r, s, err)
		}
	})
}
