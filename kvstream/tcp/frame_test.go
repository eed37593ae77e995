package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

func TestDecodeHeadNamesWhatIsWrong(t *testing.T) {
	good := appendHead(nil, []byte("head"), 1000)
	if h, n, err := decodeHead(good); h != 4 || n != 1000 || err != nil {
		t.Fatalf("%d, %d, %v", h, n, err)
	}
	if err := checkHead(good, good[headLen:]); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(b []byte) []byte{
		"head of 15 bytes":       func(b []byte) []byte { return b[:15] },
		"byte 0: kind 02":        func(b []byte) []byte { b[0] = 2; return b },
		"byte 0: kind 01 00 00 ": func(b []byte) []byte { b[3] = 9; return b },
		"byte 4: header of 65537 bytes, want at most 65536": func(b []byte) []byte { binary.BigEndian.PutUint32(b[4:], 65537); return b },
		"byte 8: body of 16777217 bytes":                    func(b []byte) []byte { binary.BigEndian.PutUint32(b[8:], 16<<20+1); return b },
	} {
		if _, _, err := decodeHead(change(bytes.Clone(good))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for i := 4; i < len(good); i++ {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if checkHead(bad[:headLen], bad[headLen:]) == nil {
			t.Errorf("a flipped bit in byte %d passes", i)
		}
	}
}

// TestSum: however a body is cut, its checksum is that of the plain definition.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{0, 1, 1000, segment - 1, segment, segment + 1, 3 * segment, 3*segment + 77}).Draw(t, "size")
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(i * i >> 3)
		}
		var want uint64
		for rest := body; len(rest) > 0; {
			n := min(len(rest), segment)
			want = xxh3.HashSeed(rest[:n], want)
			rest = rest[n:]
		}
		if got := sumOf(body); got != want {
			t.Fatalf("sumOf: %x, want %x", got, want)
		}
		var s sum
		for range 2 { // the state must not outlive reset
			s.reset()
			for rest := body; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "part")
				s.write(rest[:n])
				rest = rest[n:]
			}
			if got := s.value(); got != want {
				t.Fatalf("in parts: %x, want %x", got, want)
			}
		}
	})
}

// tray is a Handler that keeps what it gets.
type tray struct {
	limit    int // bodies over it are refused
	pieces   [][2][]byte
	aborted  int
	out      int
	lastSize int
}

func (h *tray) Buffer(_ kevlard.NodeID, _ []byte, n int) []byte {
	if h.lastSize = n; n > h.limit {
		return nil
	}
	h.out++
	return make([]byte, n)
}

func (h *tray) Received(_ kevlard.NodeID, header, body []byte) {
	if body != nil {
		h.out--
	}
	h.pieces = append(h.pieces, [2][]byte{bytes.Clone(header), body})
}

func (h *tray) Aborted(kevlard.NodeID, []byte, []byte) { h.out--; h.aborted++ }
func (h *tray) Lost(kevlard.NodeID, error)             {}

func inputOf(r io.Reader, h mover.Handler, plain bool, size int) *input {
	in := newInput(r, size)
	in.from, in.summed, in.handler, in.counts = "a", plain, h, new(conns.Counts)
	return in
}

// encodePiece is the wire format as the package comment has it.
func encodePiece(header, body []byte, plain bool) []byte {
	b := append(appendHead(nil, header, len(body)), body...)
	if plain {
		b = binary.BigEndian.AppendUint64(b, sumOf(body))
	}
	return b
}

// TestInput: pieces of any sizes come out as they went in, however the bytes arrive.
func TestInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.Bool().Draw(t, "plain")
		var wire []byte
		var want [][2][]byte
		for range rapid.IntRange(0, 6).Draw(t, "pieces") {
			header := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "header")
			body := make([]byte, rapid.SampledFrom([]int{0, 1, 100, 4000, smallPiece, smallPiece + 1, 70_000}).Draw(t, "size"))
			for i := range body {
				body[i] = byte(i + len(header))
			}
			wire = append(wire, encodePiece(header, body, plain)...)
			want = append(want, [2][]byte{header, body})
		}
		var r io.Reader = bytes.NewReader(wire)
		if rapid.Bool().Draw(t, "halves") {
			r = iotest.HalfReader(r)
		}
		h := &tray{limit: 1 << 20}
		in := inputOf(r, h, plain, rapid.SampledFrom([]int{64, 1000, readBuffer}).Draw(t, "buffer"))
		if err := in.run(); err != nil {
			t.Fatal(err)
		}
		if len(h.pieces) != len(want) {
			t.Fatalf("%d pieces, want %d", len(h.pieces), len(want))
		}
		for i, p := range h.pieces {
			if !bytes.Equal(p[0], want[i][0]) || !bytes.Equal(p[1], want[i][1]) {
				t.Fatalf("piece %d differs", i)
			}
		}
	})
}

// TestInputDamage: a connection that ends, or a bit that flips, anywhere in a piece
// gives the buffer back and hands over nothing.
func TestInputDamage(t *testing.T) {
	wire := encodePiece([]byte("header"), bytes.Repeat([]byte("body"), 50), true)
	for at := range wire {
		for name, bad := range map[string][]byte{
			"ends":  wire[:at],
			"flips": append(append(bytes.Clone(wire[:at]), wire[at]^0x10), wire[at+1:]...),
		} {
			h := &tray{limit: 1 << 20}
			in := inputOf(bytes.NewReader(bad), h, true, readBuffer)
			err := in.run()
			if at > 0 && err == nil {
				t.Errorf("%s at byte %d: no error", name, at)
			}
			if len(h.pieces) != 0 || h.out != 0 {
				t.Errorf("%s at byte %d: %d pieces, %d buffers out", name, at, len(h.pieces), h.out)
			}
			if name == "flips" && at >= 16 && (!errors.Is(err, errCorrupt) || in.counts.Corrupt.Load() != 1) {
				t.Errorf("flips at byte %d: %v, counted %d", at, err, in.counts.Corrupt.Load())
			}
		}
	}
}

func FuzzInput(f *testing.F) {
	f.Add(encodePiece([]byte("header"), []byte("body"), true), true)
	f.Add(encodePiece([]byte("header"), make([]byte, 5000), false), false)
	f.Add(append(encodePiece(nil, nil, false), encodePiece([]byte("x"), make([]byte, 300), false)...), false)
	f.Fuzz(func(t *testing.T, wire []byte, plain bool) {
		h := &tray{limit: 50_000}
		in := inputOf(bytes.NewReader(wire), h, plain, 256)
		err := in.run()
		if h.out != 0 || h.lastSize > mover.MaxBody || cap(in.header) > headLen+mover.MaxHeader {
			t.Fatalf("%d buffers out, asked for %d bytes, header of %d", h.out, h.lastSize, cap(in.header))
		}
		var again []byte
		for _, p := range h.pieces {
			again = append(again, encodePiece(p[0], p[1], plain)...)
		}
		if err == nil && in.counts.Refused.Load() == 0 && !bytes.Equal(again, wire) {
			t.Fatalf("decoded without an error, and %d bytes encode to %d others", len(wire), len(again))
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add(opening{transport: transportTLS, number: 3, from: "a", to: "b"}.encode())
	f.Add(refusal("no"))
	f.Add(greeting{version, kindWelcome, nil}.encode())
	f.Fuzz(func(t *testing.T, wire []byte) {
		g, err := readGreeting(bytes.NewReader(wire))
		if err != nil {
			return
		}
		if again := g.encode(); !bytes.Equal(again, wire[:len(again)]) {
			t.Fatalf("% x encodes to % x", wire, again)
		}
		if o, err := decodeOpening(g.fields); err == nil && !bytes.Equal(o.encode()[prefixLen:], g.fields) {
			t.Fatalf("opening % x encodes to % x", g.fields, o.encode())
		}
		g.expect(kindWelcome)
	})
}

func TestRefusalIsCutAtARune(t *testing.T) {
	g, err := readGreeting(bytes.NewReader(refusal(strings.Repeat("é", 400))))
	if err != nil {
		t.Fatal(err)
	}
	var refused *RefusedError
	if _, err := g.expect(kindWelcome); !errors.As(err, &refused) || refused.Reason != strings.Repeat("é", 256) {
		t.Errorf("got %v", err)
	}
}
