package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kevlard/kevlard/kvstream/mover"
)

// headLen is the bytes of a message before the piece's header.
const headLen = 32

const (
	messageWhole = 1
	messageAsk   = 2
	flagSummed   = 1
)

// message is what a unit of the ring begins with. Integers are big-endian:
//
//	offset  size  field
//	0       1     kind: 1 a whole piece, 2 asks for a place for the body
//	1       1     flags: 1 the sum of the body holds
//	2       2     zero
//	4       4     h, length of the piece's header
//	8       4     b, length of the body
//	12      4     number of the ask, 0 for a whole piece
//	16      8     XXH3 of the body, chained over each 64 KiB
//	24      8     XXH3 of the header, from the XXH3 of the 24 bytes before
//	32      h     header
//	32+h    b     body, of a whole piece
type message struct {
	ask    bool
	summed bool
	header []byte
	body   []byte // in the ring, of a whole piece
	bytes  int    // of the body
	number uint32
	sum    uint64
}

// messageLen is the bytes of a message.
func messageLen(header, body int, ask bool) int {
	if ask {
		body = 0
	}
	return headLen + header + body
}

// putMessage composes a message in dst, which has its length.
func putMessage(dst, header []byte, body [][]byte, size int, m message) {
	clear(dst[:headLen])
	dst[0] = messageWhole
	if m.ask {
		dst[0] = messageAsk
	}
	binary.BigEndian.PutUint32(dst[4:], uint32(len(header)))
	binary.BigEndian.PutUint32(dst[8:], uint32(size))
	binary.BigEndian.PutUint32(dst[12:], m.number)
	at := headLen + copy(dst[headLen:], header)
	if !m.ask {
		whole := dst[at:]
		for _, b := range body {
			at += copy(dst[at:], b)
		}
		if m.summed {
			m.sum = sumOf(0, whole)
		}
	}
	if m.summed {
		dst[1] = flagSummed
		binary.BigEndian.PutUint64(dst[16:], m.sum)
	}
	binary.BigEndian.PutUint64(dst[24:], xxh3.HashSeed(header, xxh3.Hash(dst[:24])))
}

// errCorrupt marks bytes that are not those that were sent.
var errCorrupt = errors.New("damaged on the way")

// decodeMessage reads the message of n bytes that begins a ring's rest. The peer can write
// there at any time: what is checked here is a copy, but for the body, whose sum is taken
// of a copy later.
func decodeMessage(ring []byte, n int) (message, error) {
	if n < headLen || n > len(ring) {
		return message{}, fmt.Errorf("message of %d bytes: want %d to %d", n, headLen, len(ring))
	}
	b := append(make([]byte, 0, headLen+64), ring[:headLen]...)
	if b[0] != messageWhole && b[0] != messageAsk || b[1] > flagSummed || b[2] != 0 || b[3] != 0 {
		return message{}, fmt.Errorf("message at byte 0: % x, want kind 1 or 2, flag 0 or 1, zeros", b[:4])
	}
	h, size := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if h > mover.MaxHeader || size > mover.MaxBody {
		return message{}, fmt.Errorf("message at byte 4: header of %d bytes and body of %d, want at most %d and %d", h, size, mover.MaxHeader, mover.MaxBody)
	}
	m := message{
		ask: b[0] == messageAsk, summed: b[1] == flagSummed, bytes: int(size),
		number: binary.BigEndian.Uint32(b[12:]), sum: binary.BigEndian.Uint64(b[16:]),
	}
	if want := messageLen(int(h), m.bytes, m.ask); want != n || m.ask && size == 0 || !m.ask && m.number != 0 {
		return message{}, fmt.Errorf("message of %d bytes: header %d, body %d, ask %d: want %d bytes", n, h, size, m.number, want)
	}
	b = append(b, ring[headLen:headLen+h]...)
	m.header, m.body = b[headLen:], ring[headLen+h:n]
	if got, want := xxh3.HashSeed(m.header, xxh3.Hash(b[:24])), binary.BigEndian.Uint64(b[24:]); got != want {
		return message{}, fmt.Errorf("%w: message at byte 24: checksum %016x, want %016x", errCorrupt, got, want)
	}
	return m, nil
}

// sumOf goes on with the sum of a body: all before the last call must be multiples of
// sumBytes.
func sumOf(seed uint64, b []byte) uint64 {
	for len(b) > sumBytes {
		seed = xxh3.HashSeed(b[:sumBytes], seed)
		b = b[sumBytes:]
	}
	if len(b) == 0 {
		return seed
	}
	return xxh3.HashSeed(b, seed)
}

// copySum copies b to dst, of the same length, and returns its sum, if it is wanted.
// Each part is summed while it is in the cache.
func copySum(dst, b []byte, summed bool) uint64 {
	return gatherSum(dst, [][]byte{b}, summed)
}

// gatherSum copies the parts of a body to dst, which has their length, and returns the
// sum, if it is wanted.
func gatherSum(dst []byte, body [][]byte, summed bool) uint64 {
	var sum uint64
	done, at := 0, 0
	for _, part := range body {
		for len(part) > 0 {
			n := copy(dst[at:min(done+sumBytes, len(dst))], part)
			part, at = part[n:], at+n
			if at-done == sumBytes || at == len(dst) {
				if summed {
					sum = sumOf(sum, dst[done:at])
				}
				done = at
			}
		}
	}
	return sum
}
