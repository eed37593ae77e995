package mesh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"pgregory.net/rapid"
)

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

const allKinds = ^kinds(0)

func TestFrameLayout(t *testing.T) {
	f, err := newFrame(kindData, []byte("hd"), []byte("bo"), []byte("dy"))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte{2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4}, "hdbody"...)
	if !bytes.Equal(f, want) {
		t.Fatalf("frame % x, want % x", f, want)
	}
}

func TestFrameRoundTrip(t *testing.T) {
	list := []kind{kindControl, kindData, kindBye, kindCall, kindAnswer, kindFailure, kindHello, kindProof, kindRefuse}
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(list).Draw(t, "kind")
		maxHeader, maxBody := k.limits()
		header := rapid.SliceOfN(rapid.Byte(), 0, min(maxHeader, 300)).Draw(t, "header")
		body := rapid.SliceOfN(rapid.Byte(), 0, min(maxBody, 300)).Draw(t, "body")
		cut := rapid.IntRange(0, len(body)).Draw(t, "cut")
		raw, err := newFrame(k, header, body[:cut], body[cut:])
		if err != nil {
			t.Fatal(err)
		}
		f, err := readFrame(bytes.NewReader(raw), only(k))
		if err != nil {
			t.Fatal(err)
		}
		if f.kind != k || !bytes.Equal(f.header, header) || !bytes.Equal(f.body, body) {
			t.Fatalf("got %+v", f)
		}
		end := rapid.IntRange(0, len(raw)-1).Draw(t, "end")
		_, err = readFrame(bytes.NewReader(raw[:end]), only(k))
		want := io.ErrUnexpectedEOF
		if end == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) {
			t.Fatalf("cut at %d of %d: %v, want %v", end, len(raw), err, want)
		}
	})
}

func TestFrameRefused(t *testing.T) {
	prefix := func(k kind, pad byte, h, b uint32) []byte {
		p := []byte{byte(k), 0, pad, 0}
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(p, h), b)
	}
	for name, raw := range map[string][]byte{
		"unwanted kind":   prefix(kindControl, 0, 0, 0),
		"unknown kind":    prefix(200, 0, 0, 0),
		"padding":         prefix(kindData, 1, 0, 0),
		"header too long": prefix(kindData, 0, maxDataHeader+1, 0),
		"body too long":   prefix(kindData, 0, 0, maxDataBody+1),
		"lengths wrap":    prefix(kindData, 0, 1<<31, 1<<31),
	} {
		if _, err := readFrame(bytes.NewReader(raw), only(kindData)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: error is %v, want a refusal before the body is read", name, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, k := range []kind{kindControl, kindData, kindBye, kindCall, kindHello, kindRefuse} {
		header, _ := k.limits()
		raw, err := newFrame(k, bytes.Repeat([]byte{'h'}, min(header, 3)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := readFrame(bytes.NewReader(raw), allKinds)
		if err != nil {
			return
		}
		again, err := newFrame(got.kind, got.header, got.body)
		if err != nil {
			t.Fatalf("decoded frame does not encode: %v", err)
		}
		if !bytes.HasPrefix(raw, again) {
			t.Fatalf("encoded again % x, from % x", again, raw)
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(newHello(classControl, Versions{1, 3}, 7).encode())
	f.Add([]byte(helloMagic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := decodeHello(raw)
		if err != nil {
			return
		}
		if !bytes.Equal(h.encode(), raw) {
			t.Fatalf("hello %+v encodes to % x, came from % x", h, h.encode(), raw)
		}
	})
}

func FuzzDecodeProof(f *testing.F) {
	f.Add(append(names{"ring", "node", "boot"}.encode(), make([]byte, macLen)...))
	f.Add([]byte{1, 'r', 255, 'n'})
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, encoded, mac, err := decodeProof(raw)
		if err != nil {
			return
		}
		if !bytes.Equal(append(n.encode(), mac...), raw) || !bytes.Equal(n.encode(), encoded) {
			t.Fatalf("proof of %+v does not encode to % x", n, raw)
		}
	})
}

// Every part of what a MAC covers changes it.
func TestMACCoversEverything(t *testing.T) {
	base := transcript{
		dialler: "d", acceptor: "a",
		first:  newHello(classControl, Versions{1, 1}, 1),
		second: newHello(classControl, Versions{1, 1}, 1),
	}
	own, theirs := names{"r", "n1", "b1"}.encode(), names{"r", "n2", "b2"}.encode()
	want := base.mac([]byte("key"), sideAcceptor, own, theirs)
	if !bytes.Equal(want, base.mac([]byte("key"), sideAcceptor, own, theirs)) {
		t.Fatal("MAC is not a function of its inputs")
	}
	change := func(edit func(*transcript)) []byte {
		c := base
		edit(&c)
		return c.mac([]byte("key"), sideAcceptor, own, theirs)
	}
	for name, got := range map[string][]byte{
		"key":         base.mac([]byte("kez"), sideAcceptor, own, theirs),
		"side":        base.mac([]byte("key"), sideDialler, own, theirs),
		"names":       base.mac([]byte("key"), sideAcceptor, own, own),
		"name border": base.mac([]byte("key"), sideAcceptor, append(bytes.Clone(own), theirs[0]), theirs[1:]),
		"dialler":     change(func(c *transcript) { c.dialler = "x" }),
		"acceptor":    change(func(c *transcript) { c.acceptor = "x" }),
		"peers swap":  change(func(c *transcript) { c.dialler, c.acceptor = peer.ID("a"), peer.ID("d") }),
		"class":       change(func(c *transcript) { c.first.class = classData }),
		"versions":    change(func(c *transcript) { c.second.versions.Max++ }),
		"link":        change(func(c *transcript) { c.first.link++ }),
		"nonce 1":     change(func(c *transcript) { c.first.nonce[0]++ }),
		"nonce 2":     change(func(c *transcript) { c.second.nonce[31]++ }),
	} {
		if bytes.Equal(got, want) {
			t.Errorf("%s does not change the MAC", name)
		}
	}
}
