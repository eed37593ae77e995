package protocol

import (
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
)

// Follow asks the owner of a session for its tokens from the index From on: its client
// is connected to the sender now. It is sent again every few seconds, and when tokens
// are missing. The answers are Followed.
type Follow struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Number  uint64            `cbor:"2,keyasint"` // grows with each new client that comes to the sender
	From    int               `cbor:"3,keyasint"`
}

// Followed brings generated tokens from the index From on, and with Done the end.
type Followed struct {
	Session  kevlard.SessionID  `cbor:"1,keyasint"`
	Number   uint64             `cbor:"2,keyasint"` // of the Follow
	From     int                `cbor:"3,keyasint"`
	Tokens   []kevlard.Token    `cbor:"4,keyasint,omitempty"`
	Logprobs []kevlard.Logprobs `cbor:"5,keyasint,omitempty"` // one for each of Tokens, or none
	More     bool               `cbor:"6,keyasint,omitempty"` // there are more: ask again
	Done     bool               `cbor:"7,keyasint,omitempty"`
	Reason   string             `cbor:"8,keyasint,omitempty"` // with Done: stop, length, cancelled, paused or error
	// Of a kevlard.Failure, with the reason error.
	Code    string `cbor:"9,keyasint,omitempty"`
	Status  int    `cbor:"10,keyasint,omitempty"`
	Message string `cbor:"11,keyasint,omitempty"`
	// Cached is how many leading positions of the prompt were found instead of computed.
	Cached int `cbor:"12,keyasint,omitempty"`
}

// Unfollow tells the owner that the client is gone, or (Ended) that it has what it
// wanted.
type Unfollow struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Number  uint64            `cbor:"2,keyasint"`
	Ended   bool              `cbor:"3,keyasint,omitempty"`
}

func (Follow) kind() kind   { return kindFollow }
func (Followed) kind() kind { return kindFollowed }
func (Unfollow) kind() kind { return kindUnfollow }

func checkFollow(id kevlard.SessionID, number uint64) error {
	err := checkID("session", id)
	if number == 0 {
		err = errors.Join(err, errors.New("number is 0, counts from 1"))
	}
	return err
}

func (m Follow) check() error {
	return errors.Join(checkFollow(m.Session, m.Number), checkRange("from", m.From, 0, MaxTokens))
}

func (m Followed) check() error {
	err := errors.Join(checkFollow(m.Session, m.Number), checkRange("from", m.From, 0, MaxTokens),
		checkRange("tokens", len(m.Tokens), 0, MaxFollowed), checkRange("cached", m.Cached, 0, MaxTokens), checkRange("message bytes", len(m.Message), 0, maxFollowedText),
		checkLength("reason", m.Reason), checkLength("code", m.Code), checkRange("status", m.Status, 0, 599))
	if n := len(m.Logprobs); n != 0 && n != len(m.Tokens) {
		err = errors.Join(err, fmt.Errorf("%d logprobs for %d tokens", n, len(m.Tokens)))
	}
	for _, l := range m.Logprobs {
		err = errors.Join(err, l.Check())
	}
	return err
}

func (m Unfollow) check() error { return checkFollow(m.Session, m.Number) }
