package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
)

// kind is what a greeting says; see the package comment.
type kind uint8

const (
	kindOpen      kind = 1
	kindChallenge kind = 2
	kindProof     kind = 3
	kindWelcome   kind = 4
	kindRefusal   kind = 5
)

const (
	magic       = "KVBK"
	version     = 1
	prefixLen   = 8
	maxGreeting = 1024
	maxName     = 255
	maxReason   = 512
	nonceLen    = 32
	macLen      = sha256.Size
	minSecret   = 16

	transportTLS      = 1
	transportPlain    = 2
	transportUnsummed = 3
)

// greeting is one message before the pieces.
type greeting struct {
	version uint8
	kind    kind
	fields  []byte
}

// errVersion marks a greeting whose fields cannot be read.
type errVersion uint8

func (v errVersion) Error() string {
	return fmt.Sprintf("speaks version %d of bulk transfers, this node version %d: run the same release of kevlard on both", uint8(v), version)
}

func (g greeting) encode() []byte {
	out := append([]byte(magic), g.version, byte(g.kind))
	out = binary.BigEndian.AppendUint16(out, uint16(len(g.fields)))
	return append(out, g.fields...)
}

// readGreeting reads one greeting and no byte more. An unequal version is an
// errVersion, except in a refusal, which can always be read.
func readGreeting(r io.Reader) (greeting, error) {
	var p [prefixLen]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return greeting{}, fmt.Errorf("read greeting: %w", err)
	}
	if string(p[:4]) != magic {
		return greeting{}, fmt.Errorf("greeting at byte 0: magic %q, want %q: is this the bulk port of a kevlard node?", p[:4], magic)
	}
	g := greeting{version: p[4], kind: kind(p[5])}
	n := binary.BigEndian.Uint16(p[6:])
	if n > maxGreeting {
		return greeting{}, fmt.Errorf("greeting at byte 6: %d bytes of fields, want at most %d", n, maxGreeting)
	}
	g.fields = make([]byte, n)
	if _, err := io.ReadFull(r, g.fields); err != nil {
		return greeting{}, fmt.Errorf("read greeting: %w", err)
	}
	if g.version != version && g.kind != kindRefusal {
		return greeting{}, errVersion(g.version)
	}
	return g, nil
}

// opening is what a dialler says first.
type opening struct {
	transport   uint8
	slot        uint8
	number      uint64
	incarnation [16]byte
	nonce       [nonceLen]byte
	from, to    kevlard.NodeID
}

// fixedOpening is the length of the fields before the names.
const fixedOpening = 1 + 1 + 8 + 16 + nonceLen

func (o opening) encode() []byte {
	out := []byte{o.transport, o.slot}
	out = binary.BigEndian.AppendUint64(out, o.number)
	out = append(out, o.incarnation[:]...)
	out = append(out, o.nonce[:]...)
	for _, s := range []kevlard.NodeID{o.from, o.to} {
		out = append(append(out, byte(len(s))), s...)
	}
	return greeting{version, kindOpen, out}.encode()
}

func decodeOpening(b []byte) (opening, error) {
	if len(b) < fixedOpening {
		return opening{}, fmt.Errorf("open: %d bytes, want at least %d", len(b), fixedOpening)
	}
	o := opening{transport: b[0], slot: b[1], number: binary.BigEndian.Uint64(b[2:])}
	if o.transport < transportTLS || o.transport > transportUnsummed {
		return opening{}, fmt.Errorf("open at byte 0: transport %d, want 1 (TLS), 2 (plain) or 3 (plain without checksums)", o.transport)
	}
	if o.slot >= conns.MaxConns {
		return opening{}, fmt.Errorf("open at byte 1: slot %d, want 0 to %d", o.slot, conns.MaxConns-1)
	}
	copy(o.incarnation[:], b[10:])
	copy(o.nonce[:], b[26:])
	rest := b[fixedOpening:]
	for _, name := range []*kevlard.NodeID{&o.from, &o.to} {
		if len(rest) == 0 || rest[0] == 0 || int(rest[0]) > len(rest)-1 {
			return opening{}, fmt.Errorf("open at byte %d: no complete name of 1 to %d bytes", len(b)-len(rest), maxName)
		}
		*name = kevlard.NodeID(rest[1 : 1+rest[0]])
		if !utf8.ValidString(string(*name)) {
			return opening{}, fmt.Errorf("open at byte %d: the name is not UTF-8", len(b)-len(rest))
		}
		rest = rest[1+rest[0]:]
	}
	if len(rest) != 0 {
		return opening{}, fmt.Errorf("open: %d bytes after the names, want none", len(rest))
	}
	return o, nil
}

// refusal is the greeting that turns a dialler away.
func refusal(reason string) []byte {
	if n := maxReason; len(reason) > n {
		for !utf8.RuneStart(reason[n]) {
			n--
		}
		reason = reason[:n]
	}
	out := binary.BigEndian.AppendUint16(nil, uint16(len(reason)))
	return greeting{version, kindRefusal, append(out, reason...)}.encode()
}

// RefusedError says that the peer refused this node's connection.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "refused by the peer: " + e.Reason }

// expect returns the fields of a greeting of the wanted kind.
func (g greeting) expect(want kind) ([]byte, error) {
	if g.kind == want {
		return g.fields, nil
	}
	if g.kind != kindRefusal {
		return nil, fmt.Errorf("greeting of kind %d, want %d", g.kind, want)
	}
	b := g.fields
	if len(b) < 2 || int(binary.BigEndian.Uint16(b)) > min(len(b)-2, maxReason) {
		return nil, &RefusedError{"(no reason given)"}
	}
	return nil, &RefusedError{string(b[2 : 2+binary.BigEndian.Uint16(b)])}
}

func newNonce() (n [nonceLen]byte) {
	rand.Read(n[:]) // crypto/rand ends the process if it cannot
	return n
}

// ticket is the MAC by which one side ("dialler" or "acceptor") of a plain
// connection proves that it holds the pair's secret. open is the whole first greeting.
func ticket(secret []byte, side string, open []byte, challenge []byte) []byte {
	h := hmac.New(sha256.New, secret)
	var size [4]byte
	for _, p := range [][]byte{[]byte("kevlard bulk ticket 1"), []byte(side), open, challenge} {
		binary.BigEndian.PutUint32(size[:], uint32(len(p)))
		h.Write(size[:])
		h.Write(p)
	}
	return h.Sum(nil)
}
