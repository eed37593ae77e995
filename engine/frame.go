package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/kevlard/kevlard"
)

// protocolVersion is in the open frame.
const protocolVersion = 2

// kind is the meaning of a frame.
type kind byte

const (
	kindOpen    kind = 1
	kindForward kind = 2
	kindCells   kind = 3
	kindClose   kind = 4

	kindProgress    kind = 65
	kindOpened      kind = 66
	kindResult      kind = 67
	kindCellsResult kind = 68
)

type openBody struct {
	Version int  `cbor:"1,keyasint"`
	Spec    Spec `cbor:"2,keyasint"`
}

type forwardBody struct {
	Parts []Part `cbor:"1,keyasint"`
}

// cellsOp is what a cells frame asks for.
type cellsOp int

const (
	opRead cellsOp = iota + 1
	opWrite
	opCopy
)

type cellsBody struct {
	Op   cellsOp `cbor:"1,keyasint"`
	Cell int     `cbor:"2,keyasint"` // of copy: the destination
	Src  int     `cbor:"3,keyasint,omitempty"`
	N    int     `cbor:"4,keyasint"`
}

type closeBody struct{}

type progressBody struct {
	Done  int64 `cbor:"1,keyasint"`
	Total int64 `cbor:"2,keyasint"`
}

type openedBody struct {
	Info  Info  `cbor:"1,keyasint"`
	Fault fault `cbor:"2,keyasint"`
}

type resultBody struct {
	Sampled  []kevlard.Sampled `cbor:"1,keyasint,omitempty"`
	RowBytes int               `cbor:"2,keyasint,omitempty"`
	Compute  time.Duration     `cbor:"3,keyasint"`
	Fault    fault             `cbor:"4,keyasint"`
}

type cellsReply struct {
	Fault fault `cbor:"1,keyasint"`
}

// fault carries an error over the socket: which of the package's errors it is, so
// that errors.Is works on the other side, and its text. The zero fault is none.
type fault struct {
	Code int    `cbor:"1,keyasint,omitempty"`
	Text string `cbor:"2,keyasint,omitempty"`
}

// faultErrors are the errors that keep their identity, by code from 2 on.
func faultErrors() []error {
	return []error{ErrUnsupported, ErrBatch, ErrRange, ErrCompute, ErrNoMemory, ErrDead}
}

func faultOf(err error) fault {
	if err == nil {
		return fault{}
	}
	for i, e := range faultErrors() {
		if errors.Is(err, e) {
			return fault{i + 2, err.Error()}
		}
	}
	return fault{1, err.Error()}
}

func (f fault) err() error {
	switch known := faultErrors(); {
	case f.Code == 0:
		return nil
	case f.Code >= 2 && f.Code < 2+len(known):
		return remoteError{known[f.Code-2], f.Text}
	default:
		return errors.New(f.Text)
	}
}

// remoteError is an error of the child: the text is the child's.
type remoteError struct {
	is   error
	text string
}

func (e remoteError) Error() string { return e.text }
func (e remoteError) Unwrap() error { return e.is }

// codec holds the CBOR modes; each end of a connection makes its own.
type codec struct {
	dec cbor.DecMode
}

func newCodec() codec {
	dec, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxNestedLevels: 8, MaxArrayElements: maxElements, MaxMapPairs: 64,
	}.DecMode()
	if err != nil {
		panic(fmt.Sprintf("engine: cbor options: %v", err))
	}
	return codec{dec}
}

// frame returns the bytes of a frame of this kind and body.
func (codec) frame(k kind, body any) ([]byte, error) {
	b, err := cbor.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode frame of kind %d: %w", k, err)
	}
	if 1+len(b) > maxFrame {
		return nil, fmt.Errorf("%w: it needs a frame of %d bytes, the limit is %d", ErrBatch, len(b), maxFrame)
	}
	out := binary.LittleEndian.AppendUint32(make([]byte, 0, 5+len(b)), uint32(1+len(b)))
	return append(append(out, byte(k)), b...), nil
}

// read returns the next frame's kind and body bytes. io.EOF only means an end
// between frames.
func (codec) read(r io.Reader) (kind, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("frame length: %w", err)
		}
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 1 || n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes: want 1 to %d", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, fmt.Errorf("frame of %d bytes: %w", n, noEOF(err))
	}
	return kind(b[0]), b[1:], nil
}

// body decodes b into the struct that v points to.
func (c codec) body(k kind, b []byte, v any) error {
	if err := c.dec.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode frame of kind %d: %w", k, err)
	}
	return nil
}

// noEOF turns the end of input inside a frame into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
