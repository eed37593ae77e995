package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// bodies are one empty value of each kind of frame body.
func bodies() map[kind]any {
	return map[kind]any{
		kindOpen: &openBody{}, kindForward: &forwardBody{}, kindCells: &cellsBody{}, kindClose: &closeBody{},
		kindProgress: &progressBody{}, kindOpened: &openedBody{}, kindResult: &resultBody{}, kindCellsResult: &cellsReply{},
	}
}

// TestFrameRoundTrip: a forward frame arrives as it was sent.
func TestFrameRoundTrip(t *testing.T) {
	c := newCodec()
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32(), 1, 20)
		var want forwardBody
		for range rapid.IntRange(1, 5).Draw(t, "parts") {
			want.Parts = append(want.Parts, Part{
				Cell: rapid.Int().Draw(t, "cell"), Pos: rapid.Int().Draw(t, "pos"), N: rapid.Int().Draw(t, "n"),
				Tokens: tokens.Draw(t, "tokens"), Sample: rapid.Bool().Draw(t, "sample"), History: tokens.Draw(t, "history"),
				Sampling: kevlard.Sampling{
					Temperature: rapid.Float32().Draw(t, "temperature"), TopK: rapid.Int().Draw(t, "top_k"), Seed: rapid.Uint64().Draw(t, "seed"), Repetition: 1.5,
					Bias: []kevlard.TokenBias{{Token: rapid.Int32().Draw(t, "biased"), Bias: rapid.Float32().Draw(t, "bias")}}, Ban: tokens.Draw(t, "ban"), BanUntil: rapid.Int().Draw(t, "until"),
				},
			})
		}
		f, err := c.frame(kindForward, want)
		if err != nil {
			t.Fatal(err)
		}
		k, b, err := c.read(bytes.NewReader(f))
		if err != nil || k != kindForward {
			t.Fatalf("kind %d, %v", k, err)
		}
		var got forwardBody
		if err := c.body(k, b, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v (%v), want %+v", got, err, want)
		}
		if _, _, err := c.read(bytes.NewReader(f[:rapid.IntRange(1, len(f)-1).Draw(t, "cut")])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a cut frame: %v", err)
		}
	})
}

// TestFrameLimits: lengths are checked before anything is allocated.
func TestFrameLimits(t *testing.T) {
	c := newCodec()
	for _, n := range []uint32{0, maxFrame + 1, 1<<32 - 1} {
		head := binary.LittleEndian.AppendUint32(nil, n)
		if _, _, err := c.read(bytes.NewReader(append(head, 1, 2, 3))); err == nil || !strings.Contains(err.Error(), "want 1 to") {
			t.Errorf("length %d: %v", n, err)
		}
	}
	if _, _, err := c.read(strings.NewReader("")); err != io.EOF {
		t.Errorf("no frame: %v", err)
	}
	// An array that claims 2^40 parts in a few bytes.
	huge := []byte{0xa1, 0x01, 0x9b, 0, 0, 1, 0, 0, 0, 0, 0}
	if err := c.body(kindForward, huge, &forwardBody{}); err == nil {
		t.Error("a huge array is accepted")
	}
}

// TestFaults: an error keeps its identity and its text over the socket.
func TestFaults(t *testing.T) {
	for _, e := range append(faultErrors(), errors.New("else")) {
		err := faultOf(fmt.Errorf("part 3: %w", e)).err()
		if err == nil || err.Error() != "part 3: "+e.Error() {
			t.Errorf("%v arrives as %v", e, err)
		}
		if known := e.Error() != "else"; errors.Is(err, e) != known {
			t.Errorf("%v: identity kept is %v", e, !known)
		}
	}
	if err := faultOf(nil).err(); err != nil {
		t.Errorf("no error arrives as %v", err)
	}
}

// FuzzFrame: no input makes the decoder panic, and what it accepts survives
// another round.
func FuzzFrame(f *testing.F) {
	c := newCodec()
	for k, body := range bodies() {
		b, err := c.frame(k, body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	full, err := c.frame(kindForward, forwardBody{[]Part{{Cell: 1, Pos: 2, N: 3, Tokens: []kevlard.Token{4, 5, 6}, Sample: true}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Fuzz(func(t *testing.T, data []byte) {
		k, b, err := c.read(bytes.NewReader(data))
		if err != nil {
			return
		}
		body, known := bodies()[k]
		if !known || c.body(k, b, body) != nil {
			return
		}
		again, err := c.frame(k, body)
		if err != nil {
			t.Fatal(err)
		}
		_, b, err = c.read(bytes.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		second := bodies()[k]
		if err := c.body(k, b, second); err != nil {
			t.Fatal(err)
		}
		if third, err := c.frame(k, second); err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%+v became %+v (%v)", body, second, err)
		}
	})
}

// TestForwardLines: long lines are cut, floods are counted, the tail is kept.
func TestForwardLines(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	now := time.Unix(0, 0)
	in := strings.Repeat("x", 5*maxLine) + "\nbad \xff\n" + strings.Repeat("again\n", 3*maxLines) + "last"
	tail := forward(strings.NewReader(in), log, func() time.Time {
		now = now.Add(logWindow / (2 * maxLines))
		return now
	})
	lines := strings.Count(out.String(), "msg=engine line=")
	if lines < maxLines || lines > 2*maxLines+1 || !strings.Contains(out.String(), "dropped=") {
		t.Errorf("%d lines were logged", lines)
	}
	if want := strings.Repeat("again\n", maxTail-1) + "last"; tail != want {
		t.Errorf("tail %q, want %q", tail, want)
	}
	if first, _, _ := strings.Cut(out.String(), "\n"); len(first) > maxLine+200 {
		t.Errorf("a line of %d bytes was logged", len(first))
	}
}
