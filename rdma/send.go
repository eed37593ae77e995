package rdma

import (
	"context"
	"fmt"
	"time"

	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/rdma/flow"
)

// asking is a sender that waits for its ask's answer.
type asking struct {
	ch   chan answer // capacity 1
	size uint32
}

// send sends one piece of size bytes.
func (c *outgoing) send(ctx context.Context, header []byte, body [][]byte, size int) error {
	if len(header)+size <= eagerBytes || size == 0 {
		return c.sendWhole(ctx, header, body, size)
	}
	p, err := c.stage(ctx, size)
	if err != nil {
		return err
	}
	m := message{ask: true, summed: !c.mover.cfg.Unsummed}
	m.sum = gatherSum(p.mem, body, m.summed)
	return c.sendAsked(ctx, header, size, m, p)
}

// cut returns the writes of n bytes to a place.
func cut(local uint64, key uint32, to flow.Place, n int) (works []Work) {
	for at := 0; at < n; at += writeBytes {
		k := min(n-at, writeBytes)
		works = append(works, Work{Local: local + uint64(at), LKey: key, Bytes: uint32(k), Addr: to.Addr + uint64(at), RKey: to.RKey})
	}
	return works
}

// stage waits for staging memory.
func (c *outgoing) stage(ctx context.Context, size int) (place, error) {
	got := make(chan place, 1)
	r := &request{n: size, ready: func(p place) { got <- p }}
	c.mover.outgo.get(r)
	var err error
	select {
	case p := <-got:
		return p, nil
	case <-ctx.Done():
		err = c.givenUp(ctx)
	case <-c.ending:
		err = c.refusal()
	case <-c.broken:
		err = c.explain()
	}
	if !c.mover.outgo.cancel(r) {
		c.mover.outgo.put(<-got)
	}
	return place{}, err
}

// refusal is why nothing is accepted any more.
func (c *outgoing) refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *outgoing) givenUp(ctx context.Context) error {
	return fmt.Errorf("send to %s: %w", c.node, context.Cause(ctx))
}

// reserve waits for room in the ring for a message, and in the window for an ask. It
// returns with mu held, unless it fails.
func (c *outgoing) reserve(ctx context.Context, n int, ask bool) (offset int, err error) {
	c.mu.Lock()
	for {
		switch {
		case c.cause() != nil:
			c.mu.Unlock()
			return 0, c.explain()
		case c.ended != nil:
			c.mu.Unlock()
			return 0, c.ended
		}
		if !ask || c.flow.CanAsk() {
			if offset, ok := c.flow.Reserve(n); ok {
				c.uses++
				return offset, nil
			}
		}
		if c.waiting >= maxWaiters {
			c.mu.Unlock()
			return 0, fmt.Errorf("send to %s: %w (%d): let earlier ones finish first", c.node, mover.ErrBusy, maxWaiters)
		}
		c.owesLocked()
		room := c.room
		c.waiting++
		c.mu.Unlock()
		select {
		case <-room:
		case <-c.broken:
		case <-ctx.Done():
			err = fmt.Errorf("send to %s: waiting for room: %w", c.node, context.Cause(ctx))
		}
		c.mu.Lock()
		c.waiting--
		if err != nil {
			c.mu.Unlock()
			return 0, err
		}
	}
}

// owesLocked starts the clock for what the peer is to say, if it was not running.
func (c *outgoing) owesLocked() {
	if !c.owedLocked() {
		c.heard, c.grace = time.Now(), false
		c.queue.Wake() // run has to wait less long
	}
}

// sendWhole sends a piece as a message.
func (c *outgoing) sendWhole(ctx context.Context, header []byte, body [][]byte, size int) error {
	n := messageLen(len(header), size, false)
	offset, err := c.reserve(ctx, n, false)
	if err != nil {
		return err
	}
	defer c.mu.Unlock()
	putMessage(c.mem.mem[offset:offset+n], header, body, size, message{summed: !c.mover.cfg.Unsummed})
	return c.postLocked(nil, c.messageAt(offset, n))
}

// messageAt is the write of a message.
func (c *outgoing) messageAt(offset, n int) Work {
	own := c.mem.regions[0]
	return Work{
		Local: own.Addr + uint64(offset), LKey: own.LKey, Bytes: uint32(n),
		Addr: c.peer.Addr + uint64(offset), RKey: c.peer.RKey, Imm: flow.At(offset),
	}
}

// postLocked posts writes; an error breaks the connection.
func (c *outgoing) postLocked(end func(), works ...Work) error {
	if err := c.out.post(end, works...); err != nil {
		c.Fail(err)
		return c.explain()
	}
	return nil
}

// sendAsked asks for a place, and writes the body there. It gives staged, where the body
// is, back.
func (c *outgoing) sendAsked(ctx context.Context, header []byte, size int, m message, staged place) error {
	n := messageLen(len(header), size, true)
	offset, err := c.reserve(ctx, n, true)
	if err != nil {
		c.mover.outgo.put(staged)
		return err
	}
	c.places[staged.offset] = staged // takeDown gives it back, if nobody did before
	m.number = c.flow.Ask()
	wait := asking{make(chan answer, 1), uint32(size)}
	c.owesLocked()
	c.asks[m.number] = wait
	putMessage(c.mem.mem[offset:offset+n], header, nil, size, m)
	err = c.postLocked(nil, c.messageAt(offset, n))
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case a := <-wait.ch:
		return c.write(m.number, a, size, staged)
	case <-ctx.Done():
		err = c.givenUp(ctx)
	case <-c.ending:
		err = c.refusal()
	case <-c.broken:
		return c.explain()
	}
	return c.withdraw(m.number, wait, staged, err)
}

// withdraw takes an ask back, unless it was answered just now.
func (c *outgoing) withdraw(number uint32, wait asking, staged place, err error) error {
	c.mu.Lock()
	if !c.flow.Withdraw(number) {
		c.mu.Unlock()
		select {
		case a := <-wait.ch:
			return c.write(number, a, int(wait.size), staged)
		case <-c.broken:
			return c.explain()
		}
	}
	defer c.mu.Unlock()
	delete(c.asks, number)
	c.releaseLocked(staged)
	if c.cause() == nil {
		// A failure breaks the connection, and that the ask was given up is as true then.
		_ = c.postLocked(nil, c.word(flow.Say(flow.Withdraw, number)))
	}
	return err
}

// releaseLocked gives staging memory back that no write uses.
func (c *outgoing) releaseLocked(staged place) {
	if p, ok := c.places[staged.offset]; ok {
		delete(c.places, p.offset)
		c.mover.outgo.put(p)
	}
}

// write writes a body to its place, or drops it when it was refused.
func (c *outgoing) write(number uint32, a answer, size int, staged place) error {
	c.mu.Lock()
	if !a.granted {
		c.releaseLocked(staged)
		c.mu.Unlock()
		return nil
	}
	if c.cause() != nil {
		c.mu.Unlock()
		return c.explain()
	}
	region := c.mover.out.regions[c.rail]
	works := cut(region.Addr+uint64(staged.offset), region.LKey, a.place, size)
	works[len(works)-1].Imm = c.flow.Wrote(number)
	err := c.postLocked(func() { c.releaseLocked(staged) }, works...)
	c.stirLocked()
	c.mu.Unlock()
	if ended := c.refusal(); ended != nil {
		c.queue.Wake() // this may have been what bye waits for
	}
	return err
}
