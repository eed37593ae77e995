package mesh

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// Against a plain list: whatever the sizes and the order of pushes and takes, what
// was accepted comes out once and in order, refusals come exactly at the bounds,
// and the budget returns to zero.
func TestQueueAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxFrames := rapid.IntRange(1, 20).Draw(t, "frames")
		maxBytes := rapid.IntRange(1, 1000).Draw(t, "bytes")
		q := newQueue(maxFrames, maxBytes)
		scratch := make([]byte, 0, 100)
		var list [][]byte // accepted and not taken
		held := 0         // bytes of these
		serial := byte(0)
		take := func(t *rapid.T) {
			batch := q.take(scratch)
			for rest := batch; len(rest) > 0; {
				if len(list) == 0 || !bytes.HasPrefix(rest, list[0]) {
					t.Fatalf("took % x, expected next %v", batch, list)
				}
				rest = rest[len(list[0]):]
				held -= len(list[0])
				list = list[1:]
			}
			if batch == nil && len(list) > 0 {
				t.Fatalf("took nothing, %d frames wait", len(list))
			}
			q.wrote(len(batch))
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				serial++
				f := bytes.Repeat([]byte{serial}, rapid.IntRange(1, 150).Draw(t, "size"))
				err := q.push(f)
				full := len(list) >= maxFrames || held+len(f) > maxBytes
				if full != errors.Is(err, ErrQueueFull) || !full && err != nil {
					t.Fatalf("push with %d frames, %d bytes and %d more: %v", len(list), held, len(f), err)
				}
				if err == nil {
					list = append(list, f)
					held += len(f)
				}
			},
			"take": take,
			"": func(t *rapid.T) {
				if q.bytes != held || len(q.frames)-q.head != len(list) {
					t.Fatalf("queue counts %d bytes, %d frames; want %d, %d", q.bytes, len(q.frames)-q.head, held, len(list))
				}
				if len(q.frames) > 2*maxFrames {
					t.Fatalf("the slice grew to %d for %d frames", len(q.frames), maxFrames)
				}
			},
		})
	})
}

func TestQueueFinish(t *testing.T) {
	for name, farewell := range map[string][]byte{"abrupt": nil, "polite": []byte("bye")} {
		q := newQueue(10, 100)
		if err := q.push([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		q.finish(farewell)
		q.finish([]byte("again"))
		wantError(t, q.push([]byte("late")), ErrNotConnected)
		var out bytes.Buffer
		if err := q.drain(&out); err != nil || out.String() != string(farewell) {
			t.Fatalf("%s: wrote %q, error %v", name, out.String(), err)
		}
	}
}

// A writer that fails ends the drain with its error.
func TestQueueWriteError(t *testing.T) {
	q := newQueue(10, 100)
	r, w := io.Pipe()
	r.CloseWithError(io.ErrClosedPipe)
	if err := q.push([]byte("x")); err != nil {
		t.Fatal(err)
	}
	wantError(t, q.drain(w), io.ErrClosedPipe)
}
