// Package codec makes rows of float32 or float16 smaller without loss, for links
// that are slower than it is.
//
// Of a float only the exponent is worth anything: activations have magnitudes of a few
// powers of two, and mantissas that are as good as random. So the bytes of equal
// significance are put together (a plane each, the word rotated by one bit first so that the
// exponent has a byte, or most of one, for itself), and a plane that a sample finds
// uneven is Huffman coded, block by block. Others are kept as they are. General compressors were
// tried on such planes: zstd at its fastest level finds chance matches that cost more than they
// save (ratio 2.6 instead of 3.1 on the exponents of normal numbers) and takes several
// times as long; s2 has no entropy coding and gains nothing.
//
// # Format
//
// Integers are big-endian.
//
//	0   1  version, 1
//	1   1  bytes per element: 4 or 2
//	2   4  n, the length of the original, at most 16 MiB
//	6      for each plane, from the most significant on, for each block of up to 128 Ki
//	       elements: method (1 byte), length (4 bytes), that many bytes:
//	         0 as it is; 1 one byte, repeated; 2 Huffman coded (huff0, four streams)
//	then   the last n modulo elements' bytes, as they are
//
// Elements are little-endian; rotated left by one bit, the sign is the lowest bit.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/klauspost/compress/huff0"
)

// Elem is the number of bytes of an element.
type Elem int

const (
	F32 Elem = 4
	F16 Elem = 2
)

// MaxLen is the most bytes of an original.
const MaxLen = 16 << 20

const (
	version   = 1
	headLen   = 6
	blockHead = 5
	block     = 128 << 10 // elements; under huff0's bound of 256 Ki

	methodRaw  = 0
	methodRLE  = 1
	methodHuff = 2
)

// Codec keeps scratch memory for any number of goroutines. The zero value is ready.
type Codec struct{ scratch sync.Pool } // of *scratch

type scratch struct {
	planes []byte // all planes, one after the other
	huff   huff0.Scratch
}

func (c *Codec) get(size int) *scratch {
	s, ok := c.scratch.Get().(*scratch)
	if !ok {
		s = new(scratch)
	}
	if cap(s.planes) < size {
		s.planes = make([]byte, size)
	}
	s.planes = s.planes[:size]
	return s
}

// Bound returns the most bytes that an original of n bytes can become.
func Bound(n int, e Elem) int {
	count := n / int(e)
	return headLen + n + int(e)*((count+block-1)/block)*blockHead
}

// Encode appends the encoded form of src to dst. It panics on an element size that it
// does not know and on originals over MaxLen.
func (c *Codec) Encode(dst, src []byte, e Elem) []byte {
	if e != F32 && e != F16 || len(src) > MaxLen {
		panic(fmt.Sprintf("codec: %d bytes of elements of %d bytes: want at most %d, of 2 or 4", len(src), e, MaxLen))
	}
	count := len(src) / int(e)
	s := c.get(count * int(e))
	defer c.scratch.Put(s)
	split(s.planes, src, e, count)
	dst = append(dst, version, byte(e))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(src)))
	for p := range int(e) {
		plane := s.planes[p*count : (p+1)*count]
		for len(plane) > 0 {
			n := min(len(plane), block)
			dst = s.encodeBlock(dst, plane[:n])
			plane = plane[n:]
		}
	}
	return append(dst, src[count*int(e):]...)
}

func (s *scratch) encodeBlock(dst, b []byte) []byte {
	method, data := byte(methodRaw), b
	if uneven(b) {
		s.huff.Reuse = huff0.ReusePolicyNone
		switch out, _, err := huff0.Compress4X(b, &s.huff); {
		case errors.Is(err, huff0.ErrUseRLE):
			method, data = methodRLE, b[:1]
		case err == nil && len(out) < len(b):
			method, data = methodHuff, out
		}
	}
	dst = append(dst, method)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	return append(dst, data...)
}

// uneven reports whether a sample of b uses some bytes much more often than others: the
// chance that two of its bytes are equal is over 1.3 times that of random ones.
func uneven(b []byte) bool {
	const most = 4096
	var count [256]int
	step := max(1, len(b)/most)
	n := 0
	for i := 0; i < len(b); i += step {
		count[b[i]]++
		n++
	}
	pairs := 0
	for _, c := range count {
		pairs += c * (c - 1)
	}
	return n >= 64 && pairs*256*10 > n*(n-1)*13
}

// Len returns the length of the original.
func Len(src []byte) (int, error) {
	if len(src) < headLen {
		return 0, fmt.Errorf("compressed rows: %d bytes, want at least %d", len(src), headLen)
	}
	if src[0] != version {
		return 0, fmt.Errorf("compressed rows at byte 0: version %d, want %d", src[0], version)
	}
	if e := Elem(src[1]); e != F32 && e != F16 {
		return 0, fmt.Errorf("compressed rows at byte 1: elements of %d bytes, want 2 or 4", e)
	}
	n := binary.BigEndian.Uint32(src[2:])
	if n > MaxLen {
		return 0, fmt.Errorf("compressed rows at byte 2: %d bytes, want at most %d", n, MaxLen)
	}
	return int(n), nil
}

// Decode is the inverse of Encode. dst has the length that Len returns.
func (c *Codec) Decode(dst, src []byte) error {
	n, err := Len(src)
	if err != nil {
		return err
	}
	if len(dst) != n {
		return fmt.Errorf("compressed rows: a buffer of %d bytes for %d", len(dst), n)
	}
	e := Elem(src[1])
	count := n / int(e)
	s := c.get(count * int(e))
	defer c.scratch.Put(s)
	rest := src[headLen:]
	for p := range int(e) {
		plane := s.planes[p*count : (p+1)*count]
		for len(plane) > 0 {
			k := min(len(plane), block)
			if rest, err = s.decodeBlock(plane[:k:k], rest); err != nil {
				return fmt.Errorf("compressed rows at byte %d: %w", len(src)-len(rest), err)
			}
			plane = plane[k:]
		}
	}
	if tail := n - count*int(e); len(rest) != tail {
		return fmt.Errorf("compressed rows at byte %d: %d bytes after the planes, want %d", len(src)-len(rest), len(rest), tail)
	}
	join(dst, s.planes, e, count)
	copy(dst[count*int(e):], rest)
	return nil
}

// decodeBlock fills b and returns what follows in src.
func (s *scratch) decodeBlock(b, src []byte) ([]byte, error) {
	if len(src) < blockHead {
		return src, fmt.Errorf("ends within the head of a block")
	}
	method, n := src[0], binary.BigEndian.Uint32(src[1:])
	if uint64(n) > uint64(len(src)-blockHead) {
		return src, fmt.Errorf("block of %d bytes, %d are left", n, len(src)-blockHead)
	}
	data, rest := src[blockHead:blockHead+n], src[blockHead+n:]
	switch {
	case method == methodRaw && len(data) == len(b):
		copy(b, data)
	case method == methodRLE && len(data) == 1:
		for i := range b {
			b[i] = data[0]
		}
	case method == methodHuff:
		table, streams, err := huff0.ReadTable(data, &s.huff)
		if err != nil {
			return src, fmt.Errorf("the table of a Huffman block: %w", err)
		}
		out, err := table.Decoder().Decompress4X(b[:0:len(b)], streams)
		if err != nil {
			return src, fmt.Errorf("the streams of a Huffman block: %w", err)
		}
		if len(out) != len(b) {
			return src, fmt.Errorf("block of %d bytes, want %d", len(out), len(b))
		}
	default:
		return src, fmt.Errorf("block of method %d with %d bytes for %d", method, len(data), len(b))
	}
	return rest, nil
}

// split distributes count elements over planes, the most significant byte first.
func split(planes, src []byte, e Elem, count int) {
	src = src[:count*int(e)]
	if e == F16 {
		hi, lo := planes[:count], planes[count:2*count]
		for i := range hi {
			v := bits.RotateLeft16(binary.LittleEndian.Uint16(src[2*i:]), 1)
			hi[i], lo[i] = byte(v>>8), byte(v)
		}
		return
	}
	a, b, c, d := planes[:count], planes[count:2*count], planes[2*count:3*count], planes[3*count:4*count]
	for i := range a {
		v := bits.RotateLeft32(binary.LittleEndian.Uint32(src[4*i:]), 1)
		a[i], b[i], c[i], d[i] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
	}
}

// join is the inverse of split.
func join(dst, planes []byte, e Elem, count int) {
	dst = dst[:count*int(e)]
	if e == F16 {
		hi, lo := planes[:count], planes[count:2*count]
		for i := range hi {
			v := uint16(hi[i])<<8 | uint16(lo[i])
			binary.LittleEndian.PutUint16(dst[2*i:], bits.RotateLeft16(v, -1))
		}
		return
	}
	a, b, c, d := planes[:count], planes[count:2*count], planes[2*count:3*count], planes[3*count:4*count]
	for i := range a {
		v := uint32(a[i])<<24 | uint32(b[i])<<16 | uint32(c[i])<<8 | uint32(d[i])
		binary.LittleEndian.PutUint32(dst[4*i:], bits.RotateLeft32(v, -1))
	}
}
