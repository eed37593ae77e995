package mesh

import (
	"encoding/binary"
	"fmt"
	"io"
)

// kind is the first byte of a frame; see the package comment.
type kind uint8

const (
	kindControl kind = 1
	kindData    kind = 2
	kindBye     kind = 3
	kindCall    kind = 4
	kindAnswer  kind = 5
	kindFailure kind = 6
	kindHello   kind = 16
	kindProof   kind = 17
	kindRefuse  kind = 18
)

// prefixLen is the size of the fixed part of a frame in bytes.
const prefixLen = 12

// String returns the kind's name in the package comment.
func (k kind) String() string {
	switch k {
	case kindControl:
		return "control"
	case kindData:
		return "data"
	case kindBye:
		return "bye"
	case kindCall:
		return "call"
	case kindAnswer:
		return "answer"
	case kindFailure:
		return "failure"
	case kindHello:
		return "hello"
	case kindProof:
		return "proof"
	case kindRefuse:
		return "refuse"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// limits returns the longest header and body of the kind in bytes.
func (k kind) limits() (header, body int) {
	switch k {
	case kindControl:
		return 0, maxControlBody
	case kindData:
		return maxDataHeader, maxDataBody
	case kindCall:
		return maxMethod, maxCallBody
	case kindAnswer:
		return 0, maxCallBody
	case kindFailure:
		return 0, maxFailure
	case kindHello:
		return 0, helloLen
	case kindProof:
		return 0, maxAdmission
	case kindRefuse:
		return 0, maxReason
	}
	return 0, 0
}

// kinds is a set of kinds, one bit each; all kinds are below 32.
type kinds uint32

func only(list ...kind) kinds {
	var set kinds
	for _, k := range list {
		set |= 1 << k
	}
	return set
}

func (s kinds) has(k kind) bool { return k < 32 && s&(1<<k) != 0 }

// frame is one decoded frame. Header and body belong to whoever holds it.
type frame struct {
	kind   kind
	header []byte
	body   []byte
}

// newFrame encodes a frame whose body is the concatenation of body. Parts over
// the limits of the kind give ErrTooLarge.
func newFrame(k kind, header []byte, body ...[]byte) ([]byte, error) {
	size := 0
	for _, b := range body {
		size += len(b)
	}
	maxHeader, maxBody := k.limits()
	if len(header) > maxHeader {
		return nil, fmt.Errorf("%s frame: header of %d bytes, at most %d: %w", k, len(header), maxHeader, ErrTooLarge)
	}
	if size > maxBody {
		return nil, fmt.Errorf("%s frame: body of %d bytes, at most %d: %w", k, size, maxBody, ErrTooLarge)
	}
	out := make([]byte, prefixLen, prefixLen+len(header)+size)
	out[0] = byte(k)
	binary.BigEndian.PutUint32(out[4:], uint32(len(header)))
	binary.BigEndian.PutUint32(out[8:], uint32(size))
	out = append(out, header...)
	for _, b := range body {
		out = append(out, b...)
	}
	return out, nil
}

// readFrame reads one frame of a kind in want. It checks kind and lengths before
// it allocates. A clean end before the first byte is io.EOF, an end later is
// io.ErrUnexpectedEOF.
func readFrame(r io.Reader, want kinds) (frame, error) {
	var prefix [prefixLen]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return frame{}, err
	}
	k := kind(prefix[0])
	if !want.has(k) {
		return frame{}, fmt.Errorf("frame at byte 0: kind %s is not allowed here", k)
	}
	if prefix[1]|prefix[2]|prefix[3] != 0 {
		return frame{}, fmt.Errorf("%s frame at byte 1: % x where zeroes are wanted", k, prefix[1:4])
	}
	header, body := binary.BigEndian.Uint32(prefix[4:]), binary.BigEndian.Uint32(prefix[8:])
	maxHeader, maxBody := k.limits()
	if header > uint32(maxHeader) {
		return frame{}, fmt.Errorf("%s frame at byte 4: header of %d bytes, at most %d", k, header, maxHeader)
	}
	if body > uint32(maxBody) {
		return frame{}, fmt.Errorf("%s frame at byte 8: body of %d bytes, at most %d", k, body, maxBody)
	}
	raw := make([]byte, header+body)
	if _, err := io.ReadFull(r, raw); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	// The header's capacity ends with it, so appending to it cannot reach the body.
	return frame{kind: k, header: raw[:header:header], body: raw[header:]}, nil
}
