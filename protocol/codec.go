package protocol

import (
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// ErrFormat marks bytes that are not a message or frame of this protocol.
var ErrFormat = errors.New("malformed")

// modes are built once per codec: cbor's modes are immutable and safe to share.
type modes struct {
	enc   cbor.EncMode
	dec   cbor.DecMode
	frame cbor.DecMode // for headers: no array in one is longer than an item
}

// Codec encodes and decodes messages and frames. It is safe for concurrent use.
type Codec struct{ modes }

// NewCodec returns a codec with the limits of this package.
func NewCodec() *Codec {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(fmt.Sprintf("protocol: cbor encoder options: %v", err)) // constants of ours
	}
	decoder := func(arrays int) cbor.DecMode {
		dec, err := cbor.DecOptions{
			MaxArrayElements: arrays,
			MaxMapPairs:      64,
			MaxNestedLevels:  8,
			IndefLength:      cbor.IndefLengthForbidden,
			TagsMd:           cbor.TagsForbidden,
			DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		}.DecMode()
		if err != nil {
			panic(fmt.Sprintf("protocol: cbor decoder options: %v", err)) // constants of ours
		}
		return dec
	}
	return &Codec{modes{enc, decoder(MaxTokens), decoder(MaxItemTokens)}}
}

// EncodeMessage returns m's bytes.
func (c *Codec) EncodeMessage(m Message) ([]byte, error) {
	body, err := c.enc.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", m, err)
	}
	if len(body)+1 > MaxMessage {
		return nil, fmt.Errorf("encode %T: %d bytes, at most %d are sent", m, len(body)+1, MaxMessage)
	}
	return append([]byte{byte(m.kind())}, body...), nil
}

// DecodeMessage is the inverse of EncodeMessage.
func (c *Codec) DecodeMessage(b []byte) (Message, error) {
	if len(b) == 0 || len(b) > MaxMessage {
		return nil, fmt.Errorf("control message of %d bytes, want 1 to %d: %w", len(b), MaxMessage, ErrFormat)
	}
	body := b[1:]
	switch k := kind(b[0]); k {
	case kindPrepare:
		return decode[Prepare](c, body)
	case kindPrepared:
		return decode[Prepared](c, body)
	case kindClose:
		return decode[Close](c, body)
	case kindRefused:
		return decode[Refused](c, body)
	case kindStep:
		return decode[Step](c, body)
	case kindProbe:
		return decode[Probe](c, body)
	case kindProbed:
		return decode[Probed](c, body)
	case kindPing:
		return decode[Ping](c, body)
	case kindPong:
		return decode[Pong](c, body)
	case kindLost:
		return decode[Lost](c, body)
	case kindRenew:
		return decode[Renew](c, body)
	case kindReplicate:
		return decode[Replicate](c, body)
	case kindOffer:
		return decode[Offer](c, body)
	case kindStored:
		return decode[Stored](c, body)
	case kindStandbyLost:
		return decode[StandbyLost](c, body)
	case kindFetch:
		return decode[Fetch](c, body)
	case kindFetched:
		return decode[Fetched](c, body)
	case kindFollow:
		return decode[Follow](c, body)
	case kindFollowed:
		return decode[Followed](c, body)
	case kindUnfollow:
		return decode[Unfollow](c, body)
	case kindRecord:
		return decode[Record](c, body)
	case kindLog:
		return decode[Log](c, body)
	case kindLogged:
		return decode[Logged](c, body)
	case kindLocate:
		return decode[Locate](c, body)
	case kindLocated:
		return decode[Located](c, body)
	case kindVote:
		return decode[Vote](c, body)
	case kindPromise:
		return decode[Promise](c, body)
	case kindForget:
		return decode[Forget](c, body)
	case kindSeek:
		return decode[Seek](c, body)
	case kindSought:
		return decode[Sought](c, body)
	case kindKeep:
		return decode[Keep](c, body)
	default:
		return nil, fmt.Errorf("control message of unknown kind %d: %w", k, ErrFormat)
	}
}

func decode[M interface {
	Message
	check() error
}](c *Codec, b []byte) (Message, error) {
	var m M
	if err := c.dec.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("decode %T: %w: %w", m, ErrFormat, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("decode %T: %w: %w", m, ErrFormat, err)
	}
	return m, nil
}

// EncodeFrame returns the header and the pieces of the body of f. The pieces
// alias the items' rows.
func (c *Codec) EncodeFrame(f Frame) (header []byte, body [][]byte, err error) {
	header, err = c.enc.Marshal(f)
	if err != nil {
		return nil, nil, fmt.Errorf("encode frame: %w", err)
	}
	if len(header) > MaxHeader {
		return nil, nil, fmt.Errorf("encode frame: header of %d bytes, at most %d are sent", len(header), MaxHeader)
	}
	for _, it := range f.Items {
		if len(it.Rows) > 0 {
			body = append(body, it.Rows)
		}
	}
	return header, body, nil
}

// DecodeFrame is the inverse of EncodeFrame; the items' rows alias body.
func (c *Codec) DecodeFrame(header, body []byte) (Frame, error) {
	var f Frame
	if len(header) > MaxHeader || len(body) > MaxBody {
		return f, fmt.Errorf("frame of %d+%d bytes, at most %d+%d are taken: %w", len(header), len(body), MaxHeader, MaxBody, ErrFormat)
	}
	if err := c.frame.Unmarshal(header, &f); err != nil {
		return Frame{}, fmt.Errorf("decode frame: %w: %w", ErrFormat, err)
	}
	if len(f.Items) == 0 || len(f.Items) > MaxItems {
		return Frame{}, fmt.Errorf("decode frame: %d items, want 1 to %d: %w", len(f.Items), MaxItems, ErrFormat)
	}
	for i := range f.Items {
		it := &f.Items[i]
		if err := it.check(); err != nil {
			return Frame{}, fmt.Errorf("decode frame: item %d: %w: %w", i, ErrFormat, err)
		}
		n := it.Width * len(it.Tokens)
		if n > len(body) {
			return Frame{}, fmt.Errorf("decode frame: item %d: %d bytes of rows, %d left: %w", i, n, len(body), ErrFormat)
		}
		if n > 0 {
			it.Rows, body = body[:n:n], body[n:]
		}
	}
	if len(body) > 0 {
		return Frame{}, fmt.Errorf("decode frame: %d bytes after the last item: %w", len(body), ErrFormat)
	}
	return f, nil
}
