package protocol

import "github.com/kevlard/kevlard"

// Frame is what one stage (or the owner) sends to the next: a list of items.
type Frame struct {
	Items []Item `cbor:"1,keyasint"`
}

// Item is the work of one session in a frame: Tokens at positions
// [Pos, Pos+len(Tokens)), with their rows when the target is not a first stage.
type Item struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Fence   kevlard.Fence     `cbor:"2,keyasint"`
	Lo      int               `cbor:"3,keyasint"` // start of the target stage's layers
	Pos     kevlard.Pos       `cbor:"4,keyasint"`
	Tokens  []kevlard.Token   `cbor:"5,keyasint"`
	// Start marks the first item after a prepare: the stage drops what it holds
	// from Pos on and continues there. Travelling with the work, it saves a round
	// trip.
	Start bool `cbor:"6,keyasint,omitempty"`
	// Sample asks the last stage for the token that follows the last position.
	Sample bool `cbor:"7,keyasint,omitempty"`
	// Width is the bytes of one row in the body; 0 when there are no rows.
	Width int `cbor:"8,keyasint,omitempty"`
	// Marks are the watermarks of the stages that the item has been through, in
	// order: how many leading positions each one's standby has acknowledged, -1
	// where there is no standby.
	Marks []kevlard.Pos `cbor:"9,keyasint,omitempty"`

	// Rows is len(Tokens) x Width bytes. The decision code passes it on and never
	// looks inside. It is not part of the header.
	Rows []byte `cbor:"-"`
}

// End returns the position after the item's last one.
func (it Item) End() kevlard.Pos { return it.Pos + len(it.Tokens) }

// Split cuts the item after n tokens, 0 < n < len(it.Tokens). Only the first
// half keeps Start, only the second keeps Sample.
func (it Item) Split(n int) (head, tail Item) {
	head, tail = it, it
	head.Tokens, tail.Tokens = it.Tokens[:n:n], it.Tokens[n:]
	head.Sample, tail.Start = false, false
	tail.Pos += n
	if it.Rows != nil {
		head.Rows, tail.Rows = it.Rows[:n*it.Width:n*it.Width], it.Rows[n*it.Width:]
	}
	return head, tail
}
