package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// slot admits one request at a time. A request enters busy, then call; the reader
// takes it out of call, completes it and only then out of busy, so that the next
// one can't touch the area too early, even when nobody waits for this one any more.
type slot struct {
	busy chan struct{}
	call chan *call
}

func newSlot() slot { return slot{make(chan struct{}, 1), make(chan *call, 1)} }

// call is one outstanding request.
type call struct {
	rows    int // bytes of rows that the answer must have
	tokens  int // tokens that the answer must have
	result  Result
	err     error
	stored  func(kv []byte) // takes what a read left in the KV area
	arrived chan struct{}   // closed when result and err are set
}

// settle fails the requests that will get no answer. Requests that come later see
// that the reader has ended.
func (p *Process) settle() {
	for _, s := range []slot{p.batch, p.cells} {
		select {
		case c := <-s.call:
			c.err = p.dead()
			close(c.arrived)
		default:
		}
	}
}

// read hands answers to their requests until the socket ends. A child that breaks
// the protocol is killed; one that closed its socket is about to exit, and gets the
// time to do so by itself, since how it exits matters.
func (p *Process) read() {
	defer close(p.reading)
	for {
		k, b, err := p.codec.read(p.conn)
		if err == nil {
			err = p.answer(k, b)
		}
		if err == nil {
			continue
		}
		p.lost = err
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
			p.Kill()
			return
		}
		p.grace = time.AfterFunc(closeGrace, p.Kill)
		return
	}
}

// answer completes the outstanding request that the frame answers.
func (p *Process) answer(k kind, b []byte) error {
	var c *call
	s := p.batch
	if k == kindCellsResult {
		s = p.cells
	}
	select {
	case c = <-s.call:
	default:
		return fmt.Errorf("engine sent a frame of kind %d that nobody waits for", k)
	}
	err := p.complete(c, k, b)
	if err != nil {
		c.err = fmt.Errorf("%w: %w", ErrDead, err)
	}
	close(c.arrived)
	<-s.busy
	return err
}

// complete fills c from the frame. The error it returns is the child's breach of
// the protocol, not a refusal, which goes to c.
func (p *Process) complete(c *call, k kind, b []byte) error {
	switch k {
	case kindResult:
		var r resultBody
		if err := p.codec.body(k, b, &r); err != nil {
			return err
		}
		if c.err = r.Fault.err(); c.err != nil {
			return nil
		}
		if r.RowBytes != c.rows || len(r.Sampled) != c.tokens {
			return fmt.Errorf("engine answered %d row bytes and %d tokens, want %d and %d", r.RowBytes, len(r.Sampled), c.rows, c.tokens)
		}
		c.result = Result{Sampled: r.Sampled, Compute: r.Compute}
		p.area.use(func(_, out, _ []byte) {
			if c.rows > 0 {
				c.result.Rows = bytes.Clone(out[:c.rows])
			}
		})
		return nil
	case kindCellsResult:
		var r cellsReply
		if err := p.codec.body(k, b, &r); err != nil {
			return err
		}
		if c.err = r.Fault.err(); c.err == nil && c.stored != nil {
			p.area.use(func(_, _, kv []byte) { c.stored(kv) })
		}
		return nil
	default:
		return fmt.Errorf("engine sent a frame of kind %d", k)
	}
}

// dead is the error of requests to an ended child.
func (p *Process) dead() error {
	if p.lost != nil && !errors.Is(p.lost, io.EOF) && !errors.Is(p.lost, net.ErrClosed) && p.exit.Signal == syscall.SIGKILL {
		return fmt.Errorf("%w: engine %d: %v (%v)", ErrDead, p.PID(), p.lost, p.exit)
	}
	return fmt.Errorf("%w: engine %d ended by %v", ErrDead, p.PID(), p.exit)
}

// request fills the area and sends one frame when the slot is free, and waits for
// the answer.
func (p *Process) request(ctx context.Context, s slot, c *call, k kind, body any, fill func(in, kv []byte)) error {
	select {
	case s.busy <- struct{}{}:
	case <-p.reading:
		return p.ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fill != nil {
		p.area.use(func(in, _, kv []byte) { fill(in, kv) })
	}
	s.call <- c
	if err := p.send(k, body); err != nil {
		if errors.Is(err, ErrBatch) { // too large for a frame: nothing was sent
			<-s.call
			<-s.busy
			return err
		}
		p.Kill()
		return p.ended()
	}
	select {
	case <-c.arrived:
		return c.err
	case <-p.done: // both may be ready: an answer that came counts
		select {
		case <-c.arrived:
			return c.err
		default:
			return p.ended()
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended waits for the child's end and says how it was.
func (p *Process) ended() error {
	<-p.done
	return fmt.Errorf("request to engine: %w", p.dead())
}
