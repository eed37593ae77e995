package protocol

import (
	"fmt"

	"github.com/kevlard/kevlard"
)

// Rows is the header of one piece of KV: the cells of consecutive positions of one
// session in all layers of a stage. The body, len(Tokens) x CellBytes, holds for
// each layer the keys of all positions, then their values, little-endian.
//
// KV is known by the tokens that made it, never by its position alone: Tokens are
// those of the positions themselves, and the receiver knows the ones before.
type Rows struct {
	Session   kevlard.SessionID `cbor:"1,keyasint"`
	Fence     kevlard.Fence     `cbor:"2,keyasint"`
	Stage     kevlard.StageKey  `cbor:"3,keyasint"`
	Class     string            `cbor:"4,keyasint"`
	CellBytes int               `cbor:"5,keyasint"`
	Pos       kevlard.Pos       `cbor:"6,keyasint"` // of the first
	Tokens    []kevlard.Token   `cbor:"7,keyasint"`
	// Sums has one checksum (xxh3, 64 bits) for each position, over its bytes in the
	// order of the body. The receiver keeps them: the same sum guards a position from
	// the engine that computed it to the engine that goes on from it.
	Sums []uint64 `cbor:"8,keyasint"`
	// Try is that of the Stored which the sender heard last.
	Try uint64 `cbor:"9,keyasint,omitempty"`
	// Before is the name of the block before the first position, of rows that stay on
	// their node.
	Before [16]byte `cbor:"-"`
}

// End returns the position after the last one.
func (r Rows) End() kevlard.Pos { return r.Pos + len(r.Tokens) }

// EncodeRows returns the header's bytes.
func (c *Codec) EncodeRows(r Rows) ([]byte, error) {
	b, err := c.enc.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode header of KV: %w", err)
	}
	if len(b) > MaxRowsHeader {
		return nil, fmt.Errorf("encode header of KV: %d bytes, at most %d are sent", len(b), MaxRowsHeader)
	}
	return b, nil
}

// DecodeRows is the inverse of EncodeRows. body is the length of the body, which
// must be the one that the header says.
func (c *Codec) DecodeRows(b []byte, body int) (Rows, error) {
	var r Rows
	if len(b) > MaxRowsHeader {
		return r, fmt.Errorf("header of KV of %d bytes, at most %d are taken: %w", len(b), MaxRowsHeader, ErrFormat)
	}
	if err := c.frame.Unmarshal(b, &r); err != nil {
		return Rows{}, fmt.Errorf("decode header of KV: %w: %w", ErrFormat, err)
	}
	if err := r.check(); err != nil {
		return Rows{}, fmt.Errorf("decode header of KV: %w: %w", ErrFormat, err)
	}
	if want := len(r.Tokens) * r.CellBytes; body != want {
		return Rows{}, fmt.Errorf("decode header of KV: a body of %d bytes, want %d (%d positions of %d): %w", body, want, len(r.Tokens), r.CellBytes, ErrFormat)
	}
	return r, nil
}
