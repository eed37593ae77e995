package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/kevlard/kevlard"
)

// Version is that of the protocol that this build speaks.
const Version = 1

// Kind is what a request asks for.
type Kind uint8

// The kinds.
const (
	Describe  Kind = 1 // Model: the units, and which are here; answered by Description
	ListSums  Kind = 2 // Unit: its size and the sums of its chunks; answered by Sums
	SendChunk Kind = 3 // Unit, Chunk: a piece with Number
)

// Request is one question to a node.
type Request struct {
	Version int            `cbor:"1,keyasint"`
	Kind    Kind           `cbor:"2,keyasint"`
	Model   kevlard.Digest `cbor:"3,keyasint,omitempty"`
	Unit    kevlard.Digest `cbor:"4,keyasint,omitempty"`
	Chunk   int            `cbor:"5,keyasint,omitempty"`
	Number  uint64         `cbor:"6,keyasint,omitempty"`
}

// Refusal is why a node does not give what it was asked for.
type Refusal string

// The refusals.
const (
	Absent   Refusal = "absent"  // it has no such model, unit or chunk
	Damaged  Refusal = "damaged" // it has, but not as it should be
	Busy     Refusal = "busy"    // too many requests wait
	Unspoken Refusal = "version" // it does not speak the request's version
	Failing  Refusal = "failed"  // reading or sending failed
)

// Answer is a node's answer: a refusal, or what was asked for.
type Answer struct {
	Refusal     Refusal      `cbor:"1,keyasint,omitempty"`
	Text        string       `cbor:"2,keyasint,omitempty"` // of a refusal, for people
	Description *Description `cbor:"3,keyasint,omitempty"`
	Sums        []byte       `cbor:"4,keyasint,omitempty"` // 32 bytes for each chunk
	Bytes       int64        `cbor:"5,keyasint,omitempty"` // of the unit
}

// Description is what a node has of a model.
type Description struct {
	Name        string           `cbor:"1,keyasint"`
	Header      kevlard.Digest   `cbor:"2,keyasint"`
	HeaderBytes int64            `cbor:"3,keyasint"`
	Units       []kevlard.Digest `cbor:"4,keyasint"` // all of the model, in order
	Held        []byte           `cbor:"5,keyasint"` // one for each: 1 if it is here
}

// key is equal for descriptions of one header and one model.
func (d *Description) key() kevlard.Digest {
	h := sha256.New()
	h.Write(d.Header[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(d.HeaderBytes)))
	for _, u := range d.Units {
		h.Write(u[:])
	}
	return kevlard.Digest(h.Sum(nil))
}

// has reports whether the node that says d has a unit.
func (d *Description) has(it item) bool {
	if it.header {
		return d.Header == it.digest && d.HeaderBytes == it.bytes
	}
	for i, u := range d.Units {
		if u == it.digest && d.Held[i] == 1 {
			return true
		}
	}
	return false
}

// errFormat marks bytes that are not of this protocol.
var errFormat = errors.New("malformed")

// codec is safe for concurrent use.
type codec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

func newCodec() codec {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(fmt.Sprintf("weights: cbor encoder options: %v", err)) // constants of ours
	}
	dec, err := cbor.DecOptions{
		MaxArrayElements: maxUnits, MaxMapPairs: 16, MaxNestedLevels: 4,
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, DupMapKey: cbor.DupMapKeyEnforcedAPF,
	}.DecMode()
	if err != nil {
		panic(fmt.Sprintf("weights: cbor decoder options: %v", err)) // constants of ours
	}
	return codec{enc, dec}
}

func (c codec) encode(v any) []byte {
	b, err := c.enc.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("weights: %T does not encode: %v", v, err)) // of numbers, bytes and texts
	}
	return b
}

// request decodes a request of whatever version; only of ours the rest is checked.
func (c codec) request(b []byte) (Request, error) {
	var r Request
	if len(b) > maxRequest {
		return r, fmt.Errorf("request for weights of %d bytes, at most %d are taken: %w", len(b), maxRequest, errFormat)
	}
	if err := c.dec.Unmarshal(b, &r); err != nil {
		return Request{}, fmt.Errorf("request for weights: %w: %w", errFormat, err)
	}
	if r.Version == Version && (r.Kind < Describe || r.Kind > SendChunk || r.Chunk < 0) {
		return Request{}, fmt.Errorf("request for weights: kind %d, chunk %d: %w", r.Kind, r.Chunk, errFormat)
	}
	return r, nil
}

// answer decodes the answer to a request of kind k.
func (c codec) answer(k Kind, b []byte) (Answer, error) {
	var a Answer
	bad := func(format string, args ...any) (Answer, error) {
		return Answer{}, fmt.Errorf("answer about weights: %w: %w", errFormat, fmt.Errorf(format, args...))
	}
	if len(b) > maxAnswer {
		return bad("%d bytes, at most %d are taken", len(b), maxAnswer)
	}
	if err := c.dec.Unmarshal(b, &a); err != nil {
		return bad("%w", err)
	}
	if a.Refusal != "" {
		a.Text = a.Text[:min(len(a.Text), maxText)]
		return a, nil
	}
	switch d := a.Description; k {
	case Describe:
		if d == nil || len(d.Units) == 0 || len(d.Units) > maxUnits || len(d.Held) != len(d.Units) || len(d.Name) > maxName || d.HeaderBytes < 1 || d.HeaderBytes > maxHeader {
			return bad("a description of a model that can't be")
		}
	case ListSums:
		if a.Bytes < 1 || a.Bytes > maxUnit || len(a.Sums) != chunks(a.Bytes)*sumBytes {
			return bad("%d bytes of sums for a unit of %d", len(a.Sums), a.Bytes)
		}
	}
	return a, nil
}

// chunks is the number of chunks of a unit.
func chunks(bytes int64) int { return int((bytes + ChunkBytes - 1) / ChunkBytes) }

// chunkSize is the size of chunk i of a unit.
func chunkSize(bytes int64, i int) int { return int(min(ChunkBytes, bytes-int64(i)*ChunkBytes)) }

const pieceMagic = "KVW"

// pieceHeader is the header of the piece that answers a request.
func pieceHeader(number uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(pieceMagic), Version), number)
}

// IsPiece reports whether the header of a bulk piece is one of weights, of whatever version.
func IsPiece(header []byte) bool {
	return len(header) > len(pieceMagic) && string(header[:3]) == pieceMagic
}

// pieceNumber reads a header; false if it is not one of this version.
func pieceNumber(header []byte) (uint64, bool) {
	if !IsPiece(header) || header[3] != Version || len(header) != 12 {
		return 0, false
	}
	return binary.BigEndian.Uint64(header[4:]), true
}
