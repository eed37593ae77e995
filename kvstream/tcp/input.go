package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// errCorrupt marks a piece whose checksum does not fit.
var errCorrupt = errors.New("damaged on the way")

// input decodes the pieces of one accepted connection and hands them on.
type input struct {
	from    kevlard.NodeID
	src     io.Reader  // TLS or the socket itself
	summed  bool       // a checksum follows each body
	busy    func(bool) // tells the socket whether the other end owes bytes
	handler mover.Handler
	counts  *conns.Counts

	buf    []byte // read and not yet used: buf[r:w]
	r, w   int
	header []byte // of the piece under way
	large  bool   // the last body was large: read no further than the next header
	sum    sum
}

func newInput(src io.Reader, size int) *input {
	return &input{src: src, buf: make([]byte, size), busy: func(bool) {}}
}

// run reads pieces until the connection ends. It returns nil if that was between
// two pieces.
func (in *input) run() error {
	for {
		err := in.piece()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// piece reads one piece. io.EOF means that there was none.
func (in *input) piece() error {
	in.busy(false)
	if _, err := in.need(1); err != nil {
		return err
	}
	in.busy(true)
	head, err := in.need(headLen)
	if err != nil {
		return unfinished(err)
	}
	h, n, err := decodeHead(head)
	if err != nil {
		return err
	}
	if cap(in.header) < headLen+h {
		in.header = make([]byte, 0, headLen+max(h, 256))
	}
	in.header = in.header[:headLen+h]
	if err := in.full(in.header); err != nil {
		return err
	}
	header := in.header[headLen:]
	if err := checkHead(in.header, header); err != nil {
		in.counts.Corrupt.Add(1)
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	in.large = n > smallPiece
	if n == 0 {
		if err := in.check(0); err != nil {
			return err
		}
		in.received(header, nil)
		return nil
	}
	body := in.handler.Buffer(in.from, header, n)
	if body == nil {
		in.counts.Refused.Add(1)
		return in.skip(n)
	}
	if len(body) != n {
		panic(fmt.Sprintf("kvstream/tcp: Handler.Buffer returned %d bytes for a body of %d", len(body), n))
	}
	if err := in.body(body); err != nil {
		in.counts.Aborted.Add(1)
		in.handler.Aborted(in.from, header, body)
		return err
	}
	in.received(header, body)
	return nil
}

func (in *input) received(header, body []byte) {
	in.counts.Received.Add(1)
	in.counts.ReceivedBytes.Add(uint64(len(header) + len(body)))
	in.handler.Received(in.from, header, body)
}

// body reads straight into b, but for what came along with the header. Each chunk is
// hashed as soon as it is there.
func (in *input) body(b []byte) error {
	in.sum.reset()
	for len(b) > 0 {
		n := min(len(b), chunkBytes)
		if err := in.full(b[:n]); err != nil {
			return err
		}
		if in.summed {
			in.sum.write(b[:n])
		}
		b = b[n:]
	}
	return in.check(in.sum.value())
}

// check compares the checksum that follows a body where there is one.
func (in *input) check(got uint64) error {
	if !in.summed {
		return nil
	}
	b, err := in.need(sumLen)
	if err != nil {
		return unfinished(err)
	}
	in.r += sumLen
	if want := binary.BigEndian.Uint64(b); got != want {
		in.counts.Corrupt.Add(1)
		return fmt.Errorf("%w: checksum %016x of the body, want %016x", errCorrupt, got, want)
	}
	return nil
}

// skip drops a refused body. Its checksum, if any, is dropped too: nobody uses it.
func (in *input) skip(n int) error {
	if in.summed {
		n += sumLen
	}
	for n > 0 {
		if in.r == in.w {
			if err := in.fill(len(in.buf)); err != nil {
				return unfinished(err)
			}
		}
		k := min(n, in.w-in.r)
		in.r, n = in.r+k, n-k
	}
	return nil
}

// need returns the next n bytes, at most 16, without using them up.
func (in *input) need(n int) ([]byte, error) {
	for in.w-in.r < n {
		// After a large piece a like one is expected, whose body shall not pass through buf.
		want := len(in.buf)
		if in.large {
			want = max(len(in.header), headLen)
			if n == sumLen {
				want += sumLen
			}
			want -= in.w - in.r
		}
		if err := in.fill(want); err != nil {
			return nil, err
		}
	}
	return in.buf[in.r : in.r+n], nil
}

// fill reads at least one and at most about want bytes behind what is there.
func (in *input) fill(want int) error {
	if in.r > 0 {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	n, err := in.src.Read(in.buf[in.w:min(in.w+want, len(in.buf))])
	in.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// full fills p, from what is buffered first.
func (in *input) full(p []byte) error {
	n := copy(p, in.buf[in.r:in.w])
	in.r += n
	for p = p[n:]; len(p) > 0; p = p[n:] {
		var err error
		if n, err = in.src.Read(p); n == 0 {
			if err == nil {
				err = io.ErrNoProgress
			}
			return unfinished(err)
		}
	}
	return nil
}

// unfinished makes the end of the connection inside a piece an error.
func unfinished(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
