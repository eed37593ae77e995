package tcp

import (
	"crypto/tls"
	"encoding/binary"
	"net"
)

// maxRecord is the most bytes that TLS puts into one record.
const maxRecord = 16 << 10

// output encodes pieces on one connection. Its methods return when the memory given to them
// may be used again; flush ends what must not wait any longer.
type output struct {
	socket *socket
	secure *tls.Conn // nil: plain
	summed bool      // a checksum follows each body
	pace   func(bytes int) error

	chunk  int    // most bytes between two calls of pace
	head   []byte // scratch for head and header
	record []byte // TLS: the beginning of a record, of capacity maxRecord
	vector net.Buffers
	sum    sum
}

func newOutput(s *socket, secure *tls.Conn, summed bool, chunk int, pace func(int) error) *output {
	o := &output{socket: s, secure: secure, summed: summed, pace: pace, chunk: chunk}
	if secure != nil {
		o.record = make([]byte, 0, maxRecord)
		s.Gather(recordsBytes)
	}
	return o
}

// block writes complete pieces.
func (o *output) block(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), o.chunk)
		if err := o.pace(n); err != nil {
			return err
		}
		if err := o.write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// piece writes a large piece.
func (o *output) piece(w *work) error {
	o.head = appendHead(o.head[:0], w.header, w.size)
	if o.secure != nil {
		return o.pieceTLS(w)
	}
	return o.piecePlain(w)
}

// pieceTLS fills records across the borders of parts.
func (o *output) pieceTLS(w *work) error {
	if err := o.write(o.head); err != nil {
		return err
	}
	for _, part := range w.body {
		if err := o.block(part); err != nil {
			return err
		}
	}
	return nil
}

// piecePlain writes head, parts and checksum from where they are. Each chunk is hashed
// just before it is written, so that the second pass finds it in the cache.
func (o *output) piecePlain(w *work) error {
	o.sum.reset()
	o.vector = append(o.vector[:0], o.head)
	held := 0
	for _, part := range w.body {
		for len(part) > 0 {
			if held == o.chunk || len(o.vector) == maxVector {
				if err := o.writeVector(held); err != nil {
					return err
				}
				held = 0
			}
			n := min(len(part), o.chunk-held)
			if o.summed {
				o.sum.write(part[:n])
			}
			o.vector = append(o.vector, part[:n])
			part, held = part[n:], held+n
		}
	}
	if o.summed {
		var sum [sumLen]byte
		binary.BigEndian.PutUint64(sum[:], o.sum.value())
		o.vector = append(o.vector, sum[:])
		held += sumLen
	}
	return o.writeVector(held)
}

// maxVector is the most parts of one vectored write.
const maxVector = 256

func (o *output) writeVector(n int) error {
	if err := o.pace(n); err != nil {
		return err
	}
	v := o.vector // writing consumes a copy, so that the array is used again
	err := o.socket.Vector(v)
	clear(o.vector)
	o.vector = o.vector[:0]
	return err
}

// write writes b; with TLS its end may wait in a record that is not yet full.
func (o *output) write(b []byte) error {
	if o.secure == nil {
		_, err := o.socket.Write(b)
		return err
	}
	if len(o.record) > 0 {
		n := min(len(b), maxRecord-len(o.record))
		o.record = append(o.record, b[:n]...)
		b = b[n:]
		if len(o.record) < maxRecord {
			return nil
		}
		if err := o.seal(o.record); err != nil {
			return err
		}
		o.record = o.record[:0]
	}
	if whole := len(b) / maxRecord * maxRecord; whole > 0 {
		if err := o.seal(b[:whole]); err != nil {
			return err
		}
		b = b[whole:]
	}
	o.record = append(o.record, b...)
	return nil
}

func (o *output) seal(b []byte) error {
	_, err := o.secure.Write(b)
	return err
}

// flush sends all that was written.
func (o *output) flush() error {
	if o.secure == nil {
		return nil
	}
	if len(o.record) > 0 {
		if err := o.seal(o.record); err != nil {
			return err
		}
		o.record = o.record[:0]
	}
	return o.socket.Flush()
}

// finish ends this direction after a flush.
func (o *output) finish() error {
	if o.secure != nil {
		if err := o.secure.CloseWrite(); err != nil {
			return err
		}
		return o.socket.Flush()
	}
	return o.socket.CloseWrite()
}
