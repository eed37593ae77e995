package mesh

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/kevlard/kevlard"
)

// class says what a connection carries.
type class uint8

const (
	classControl class = 1
	classData    class = 2
)

// String returns "control" or "data".
func (c class) String() string {
	switch c {
	case classControl:
		return "control"
	case classData:
		return "data"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// carries returns the kinds of frames a reader accepts on a connection of the class.
func (c class) carries() kinds {
	if c == classControl {
		return only(kindControl, kindBye, kindRefuse)
	}
	return only(kindData, kindBye, kindRefuse)
}

const (
	helloMagic  = "KVMS"
	helloFormat = 1
	helloLen    = 48
	nonceLen    = 32
	macLen      = sha256.Size
	keyInfo     = "kevlard mesh admission 1"
)

// hello is the first frame each way. It holds nothing that must stay secret.
type hello struct {
	class    class
	versions Versions
	link     uint64 // the dialler's count of links to this peer
	nonce    [nonceLen]byte
}

func newHello(c class, v Versions, link uint64) hello {
	h := hello{class: c, versions: v, link: link}
	rand.Read(h.nonce[:]) // crypto/rand ends the process if it cannot
	return h
}

func (h hello) encode() []byte {
	out := make([]byte, helloLen)
	copy(out, helloMagic)
	out[4], out[5], out[6], out[7] = helloFormat, byte(h.class), h.versions.Min, h.versions.Max
	binary.BigEndian.PutUint64(out[8:], h.link)
	copy(out[16:], h.nonce[:])
	return out
}

func decodeHello(b []byte) (hello, error) {
	if len(b) != helloLen {
		return hello{}, fmt.Errorf("hello: %d bytes, want %d", len(b), helloLen)
	}
	if !bytes.HasPrefix(b, []byte(helloMagic)) {
		return hello{}, fmt.Errorf("hello at byte 0: magic % x, want %q", b[:4], helloMagic)
	}
	if b[4] != helloFormat {
		return hello{}, fmt.Errorf("hello at byte 4: format %d, want %d", b[4], helloFormat)
	}
	h := hello{class: class(b[5]), versions: Versions{Min: b[6], Max: b[7]}, link: binary.BigEndian.Uint64(b[8:])}
	if h.class != classControl && h.class != classData {
		return hello{}, fmt.Errorf("hello at byte 5: class %d, want 1 (control) or 2 (data)", b[5])
	}
	if h.versions.Min == 0 || h.versions.Max < h.versions.Min {
		return hello{}, fmt.Errorf("hello at byte 6: versions %s are no range", h.versions)
	}
	copy(h.nonce[:], b[16:])
	return h, nil
}

// names are what a side claims to be and proves with its MAC.
type names struct {
	ring string
	node kevlard.NodeID
	boot kevlard.BootID
}

func (n names) encode() []byte {
	var out []byte
	for _, s := range []string{n.ring, string(n.node), string(n.boot)} {
		out = append(append(out, byte(len(s))), s...)
	}
	return out
}

// decodeProof splits a proof into the names, their encoding and the MAC.
func decodeProof(b []byte) (n names, raw, mac []byte, err error) {
	var parts [3]string
	rest := b
	for i, field := range []string{"ring", "node", "boot"} {
		at := len(b) - len(rest)
		if len(rest) == 0 {
			return names{}, nil, nil, fmt.Errorf("proof at byte %d: ends before the %s", at, field)
		}
		size := int(rest[0])
		if size == 0 || size > len(rest)-1 {
			return names{}, nil, nil, fmt.Errorf("proof at byte %d: %s of %d bytes, want 1 to %d", at, field, size, min(len(rest)-1, maxName))
		}
		parts[i] = string(rest[1 : 1+size])
		if !utf8.ValidString(parts[i]) {
			return names{}, nil, nil, fmt.Errorf("proof at byte %d: %s is not UTF-8", at, field)
		}
		rest = rest[1+size:]
	}
	if len(rest) != macLen {
		return names{}, nil, nil, fmt.Errorf("proof at byte %d: %d bytes of MAC, want %d", len(b)-len(rest), len(rest), macLen)
	}
	n = names{ring: parts[0], node: kevlard.NodeID(parts[1]), boot: kevlard.BootID(parts[2])}
	return n, b[:len(b)-macLen], rest, nil
}

// admissionKey derives the MAC key, so that the secret itself, which gossip uses
// as an AES key, is used for one purpose only.
func admissionKey(secret []byte) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, nil, keyInfo, sha256.Size)
}

// transcript is what both MACs of one connection cover.
type transcript struct {
	dialler, acceptor peer.ID
	first, second     hello
}

// mac signs the transcript for one side ("dialler" or "acceptor") and the names
// sent up to and including that side's own.
func (t transcript) mac(key []byte, side string, names ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	parts := [][]byte{[]byte(side), []byte(t.dialler), []byte(t.acceptor), t.first.encode(), t.second.encode()}
	var size [4]byte
	for _, p := range append(parts, names...) {
		binary.BigEndian.PutUint32(size[:], uint32(len(p)))
		h.Write(size[:])
		h.Write(p)
	}
	return h.Sum(nil)
}
