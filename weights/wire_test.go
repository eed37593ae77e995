package weights

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

func TestWire(t *testing.T) {
	c := newCodec()
	d := kevlard.Digest{1, 2, 3}
	for _, r := range []Request{{Version: 1, Kind: Describe, Model: d}, {Version: 1, Kind: SendChunk, Unit: d, Chunk: 7, Number: 1 << 63}, {Version: 9}} {
		if got, err := c.request(c.encode(r)); err != nil || got != r {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
	}
	for k, a := range map[Kind]Answer{
		Describe:  {Description: &Description{Name: "m", Header: d, HeaderBytes: 5, Units: []kevlard.Digest{d, {}}, Held: []byte{1, 0}}},
		ListSums:  {Bytes: ChunkBytes + 1, Sums: make([]byte, 2*sumBytes)},
		SendChunk: {Refusal: Busy, Text: "later"},
	} {
		if got, err := c.answer(k, c.encode(a)); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v became %+v, %v", a, got, err)
		}
	}
	for k, a := range map[Kind]Answer{
		Describe: {Description: &Description{Name: "m", HeaderBytes: 5, Units: []kevlard.Digest{d}}},
		ListSums: {Bytes: ChunkBytes, Sums: make([]byte, 2*sumBytes)},
	} {
		if _, err := c.answer(k, c.encode(a)); !errors.Is(err, errFormat) {
			t.Errorf("%+v is taken: %v", a, err)
		}
	}
	if n, ok := pieceNumber(pieceHeader(77)); n != 77 || !ok {
		t.Errorf("number %d, %v", n, ok)
	}
}

func FuzzRequest(f *testing.F) {
	c := newCodec()
	f.Add(c.encode(Request{Version: 1, Kind: ListSums, Unit: kevlard.Digest{1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := c.request(b)
		if err != nil {
			return
		}
		if again, err := c.request(c.encode(r)); err != nil || again != r {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	c := newCodec()
	f.Add(uint8(Describe), c.encode(Answer{Description: &Description{Name: "m", HeaderBytes: 5, Units: []kevlard.Digest{{}}, Held: []byte{1}}}))
	f.Add(uint8(ListSums), c.encode(Answer{Bytes: 1, Sums: make([]byte, sumBytes)}))
	f.Add(uint8(SendChunk), c.encode(Answer{Refusal: Absent, Text: "no"}))
	f.Fuzz(func(t *testing.T, k uint8, b []byte) {
		a, err := c.answer(Kind(k), b)
		if err != nil {
			return
		}
		if _, err := c.answer(Kind(k), c.encode(a)); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	})
}

func FuzzPieceHeader(f *testing.F) {
	f.Add(pieceHeader(1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := pieceNumber(b); ok && (!IsPiece(b) || !bytes.Equal(pieceHeader(n), b)) {
			t.Errorf("%x is number %d", b, n)
		}
	})
}

func TestPacer(t *testing.T) {
	p := pacer{rate: 1 << 20}
	now := time.Unix(1000, 0)
	if w := p.reserve(now, 1<<20); w > 0 {
		t.Errorf("the first waits %v", w)
	}
	if w, want := p.reserve(now, 1<<20), time.Second-burst; w != want {
		t.Errorf("the second waits %v, want %v", w, want)
	}
	if w := p.reserve(now.Add(10*time.Second), 1); w > 0 {
		t.Errorf("after a pause: %v", w)
	}
	if w, want := p.reserve(now.Add(10*time.Second), 1<<20), time.Duration(0); w > want {
		t.Errorf("unused time is kept for %v at most: %v", burst, w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.paid = time.Now().Add(time.Hour)
	if err := p.take(ctx, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was given up: %v", err)
	}
	if w := (&pacer{}).reserve(now, 1<<40); w != 0 {
		t.Errorf("without a bound: %v", w)
	}
}
