package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kevlard/kevlard/kvstream/mover"
)

// headLen is the bytes before a piece's header; sumLen those after its body in
// plain mode.
const (
	headLen   = 16
	sumLen    = 8
	kindPiece = 1
)

// appendHead appends the head of a piece and its header.
func appendHead(dst, header []byte, body int) []byte {
	at := len(dst)
	dst = append(dst, kindPiece, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(header)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(body))
	dst = binary.BigEndian.AppendUint32(dst, headSum(dst[at:], header))
	return append(dst, header...)
}

// headSum covers the lengths, so that a reader never trusts a damaged one.
func headSum(head, header []byte) uint32 {
	return uint32(xxh3.HashSeed(header, xxh3.Hash(head[:12])))
}

// decodeHead checks the bounds in the first headLen bytes of a piece.
func decodeHead(b []byte) (header, body int, err error) {
	if len(b) < headLen {
		return 0, 0, fmt.Errorf("piece: head of %d bytes, want %d", len(b), headLen)
	}
	if b[0] != kindPiece || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return 0, 0, fmt.Errorf("piece at byte 0: kind % x, want 01 00 00 00", b[:4])
	}
	h, n := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if h > mover.MaxHeader {
		return 0, 0, fmt.Errorf("piece at byte 4: header of %d bytes, want at most %d", h, mover.MaxHeader)
	}
	if n > mover.MaxBody {
		return 0, 0, fmt.Errorf("piece at byte 8: body of %d bytes, want at most %d", n, mover.MaxBody)
	}
	return int(h), int(n), nil
}

// checkHead verifies the head's checksum once the header is there.
func checkHead(head, header []byte) error {
	if got, want := headSum(head, header), binary.BigEndian.Uint32(head[12:]); got != want {
		return fmt.Errorf("piece at byte 12: checksum %08x of head and header, want %08x", want, got)
	}
	return nil
}

// segment is what the body's checksum is chained over.
const segment = 64 << 10

// sum is the checksum of a body, of which it sees one part after the other.
type sum struct {
	seed uint64 // of the segment under way: the hash of the one before
	part *xxh3.Hasher
	held int // bytes of the segment under way that part has seen
}

func (s *sum) write(p []byte) {
	for len(p) > 0 {
		if s.held == 0 && len(p) >= segment {
			s.seed = xxh3.HashSeed(p[:segment], s.seed)
			p = p[segment:]
			continue
		}
		if s.part == nil {
			s.part = xxh3.NewSeed(s.seed)
		} else if s.held == 0 {
			s.part.ResetSeed(s.seed)
		}
		n := min(len(p), segment-s.held)
		s.part.Write(p[:n])
		p = p[n:]
		if s.held += n; s.held == segment {
			s.seed, s.held = s.part.Sum64(), 0
		}
	}
}

// value returns the checksum of all that was written.
func (s *sum) value() uint64 {
	if s.held > 0 {
		return s.part.Sum64()
	}
	return s.seed
}

// reset begins another body.
func (s *sum) reset() { s.seed, s.held = 0, 0 }

// sumOf returns the checksum of a body in one piece.
func sumOf(b []byte) uint64 {
	var seed uint64
	for len(b) > segment {
		seed = xxh3.HashSeed(b[:segment], seed)
		b = b[segment:]
	}
	if len(b) == 0 {
		return seed
	}
	return xxh3.HashSeed(b, seed)
}
