package membership

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

var printable = unicode.RangeTable{R16: []unicode.Range16{{Lo: '!', Hi: '~', Stride: 1}}, LatinOffset: 1}

func genMeta(t *rapid.T) Meta {
	text := func(name string, lo, hi int) string {
		return rapid.StringOfN(rapid.RuneFrom(nil, &printable), lo, hi, hi).Draw(t, name)
	}
	m := Meta{
		Peer: text("peer", 1, maxPeer), Boot: kevlard.BootID(text("boot", 1, maxBoot)),
		Role:     rapid.SampledFrom([]string{RoleHost, RoleGateway}).Draw(t, "role"),
		ProtoMin: rapid.Uint8().Draw(t, "min"), Mesh: text("mesh", 0, maxAddr), Bulk: text("bulk", 0, maxAddr),
		API: text("api", 0, maxAddr), Record: rapid.Uint64().Draw(t, "record"),
		Version: text("version", 0, maxVersion), Leaving: rapid.Bool().Draw(t, "leaving"),
	}
	m.ProtoMax = rapid.Uint8Range(m.ProtoMin, 255).Draw(t, "max")
	return m
}

func TestMetaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMeta(t)
		b, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > metaMax {
			t.Fatalf("%d bytes", len(b))
		}
		// Later builds append: the rest is ignored.
		for _, in := range [][]byte{b, append(bytes.Clone(b), 1, 2, 3)[:min(len(b)+3, metaMax)]} {
			var got Meta
			if err := got.UnmarshalBinary(in); err != nil {
				t.Fatal(err)
			}
			if got != m {
				t.Fatalf("got %+v, want %+v", got, m)
			}
		}
		for n := range b {
			var got Meta
			if err := got.UnmarshalBinary(b[:n]); err == nil {
				t.Fatalf("%d of %d bytes decode to %+v", n, len(b), got)
			}
		}
	})
}

// The widest meta fits: beyond metaMax memberlist panics.
func TestMetaLimits(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	wide := Meta{
		Peer: x(maxPeer), Boot: kevlard.BootID(x(maxBoot)), Role: RoleGateway, ProtoMax: 255,
		Mesh: x(maxAddr), Bulk: x(maxAddr), API: x(maxAddr), Record: 1<<64 - 1, Version: x(maxVersion), Leaving: true,
	}
	b, err := wide.MarshalBinary()
	if err != nil || len(b) > metaMax {
		t.Fatalf("the widest meta: %d bytes, %v", len(b), err)
	}
	good := Meta{Peer: "p", Boot: "b", Role: RoleHost}
	for _, c := range []struct {
		field string
		edit  func(*Meta)
	}{
		{"peer", func(m *Meta) { m.Peer = "" }},
		{"peer", func(m *Meta) { m.Peer = x(maxPeer + 1) }},
		{"boot", func(m *Meta) { m.Boot = "" }},
		{"role", func(m *Meta) { m.Role = "king" }},
		{"protocol", func(m *Meta) { m.ProtoMin, m.ProtoMax = 2, 1 }},
		{"mesh", func(m *Meta) { m.Mesh = x(maxAddr + 1) }},
		{"bulk", func(m *Meta) { m.Bulk = "a b" }},
		{"api", func(m *Meta) { m.API = "a\x1b[2J" }},
		{"version", func(m *Meta) { m.Version = x(maxVersion + 1) }},
	} {
		m := good
		c.edit(&m)
		if _, err := m.MarshalBinary(); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: error %v, want one naming %s", m, err, c.field)
		}
	}
}

// The layout is a contract between builds: these bytes must stay readable.
func TestMetaGolden(t *testing.T) {
	m := Meta{
		Peer: "P", Boot: "B", Role: RoleGateway, ProtoMin: 1, ProtoMax: 3, Mesh: "m:1", Bulk: "b:2", API: "a:3",
		Record: 0x0102030405060708, Version: "v", Leaving: true, APITLS: true,
	}
	want := []byte("\x01\x01\x03\x01\x03\x01\x02\x03\x04\x05\x06\x07\x08" + "\x01P\x01B\x03m:1\x03b:2\x03a:3\x01v")
	b, err := m.MarshalBinary()
	if err != nil || !bytes.Equal(b, want) {
		t.Errorf("got %q, %v, want %q", b, err, want)
	}
	want[0] = 2
	if err := m.UnmarshalBinary(want); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a later version: %v", err)
	}
}

func FuzzMeta(f *testing.F) {
	for _, m := range []Meta{{Peer: "p", Boot: "b", Role: RoleHost}, {Peer: "p", Boot: "b", Role: RoleGateway, Mesh: "1.2.3.4:5", Leaving: true}} {
		b, err := m.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add(make([]byte, metaMax+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Meta
		if m.UnmarshalBinary(b) != nil {
			if m != (Meta{}) {
				t.Fatalf("failed, but set %+v", m)
			}
			return
		}
		again, err := m.MarshalBinary()
		if err != nil {
			t.Fatalf("decoded %+v, which does not encode: %v", m, err)
		}
		known := bytes.Clone(b)
		known[2] &= flagLeaving | flagAPITLS
		if !bytes.HasPrefix(known, again) {
			t.Fatalf("%q decodes and encodes to %q", b, again)
		}
	})
}
