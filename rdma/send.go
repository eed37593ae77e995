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
	works, ok := c.inPlace(body)
	m := message{ask: true, summed: !c.mover.cfg.Unsummed}
	if ok {
		m.sum = sumParts(body, m.summed)
		return c.sendAsked(ctx, header, size, m, works, nil)
	}
	p, err := c.stage(ctx, size)
	if err != nil {
		return err
	}
	m.sum = gatherSum(p.mem, body, m.summed)
	region := c.mover.out.regions[c.rail]
	return c.sendAsked(ctx, header, size, m, cut(nil, region.Addr+uint64(p.offset), region.LKey, size), &p)
}

// sumParts sums a body where it is.
func sumParts(body [][]byte, summed bool) uint64 {
	if !summed {
		return 0
	}
	var s summer
	for _, b := range body {
		s.write(b)
	}
	return s.value()
}

// inPlace returns the writes of a body that lies in registered memory.
func (c *outgoing) inPlace(body [][]byte) (works []Work, ok bool) {
	for _, b := range body {
		if len(b) == 0 {
			continue
		}
		addr, region, ok := c.mover.cfg.Memory.find(b, c.rail)
		if !ok || len(works) > maxParts {
			return nil, false
		}
		works = cut(works, addr, region.LKey, len(b))
	}
	return works, true
}

// cut appends the writes of n bytes.
func cut(works []Work, addr uint64, key uint32, n int) []Work {
	for n > 0 {
		k := min(n, writeBytes)
		works = append(works, Work{Local: addr, LKey: key, Bytes: uint32(k)})
		addr, n = addr+uint64(k), n-k
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
	return fmt.Errorf("send to %s: %w", c.slot.to, context.Cause(ctx))
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
			return 0, fmt.Errorf("send to %s: %w (%d): let earlier ones finish first", c.slot.to, mover.ErrBusy, maxWaiters)
		}
		c.owesLocked()
		room := c.room
		c.waiting++
		c.mu.Unlock()
		select {
		case <-room:
		case <-c.broken:
		case <-ctx.Done():
			err = fmt.Errorf("send to %s: waiting for room: %w", c.slot.to, context.Cause(ctx))
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
		c.fail(err)
		return c.explain()
	}
	return nil
}

// sendAsked asks for a place, and writes the body there. staged, if not nil, is the place
// of the body, which is given back.
func (c *outgoing) sendAsked(ctx context.Context, header []byte, size int, m message, works []Work, staged *place) error {
	n := messageLen(len(header), size, true)
	offset, err := c.reserve(ctx, n, true)
	if err != nil {
		if staged != nil {
			c.mover.outgo.put(*staged)
		}
		return err
	}
	if staged != nil {
		c.places[staged.offset] = *staged // takeDown gives it back, if nobody did before
	}
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
		return c.write(m.number, a, works, staged)
	case <-ctx.Done():
		err = c.givenUp(ctx)
	case <-c.ending:
		err = c.refusal()
	case <-c.broken:
		return c.explain()
	}
	return c.withdraw(m.number, wait, works, staged, err)
}

// withdraw takes an ask back, unless it was answered just now.
func (c *outgoing) withdraw(number uint32, wait asking, works []Work, staged *place, err error) error {
	c.mu.Lock()
	if !c.flow.Withdraw(number) {
		c.mu.Unlock()
		select {
		case a := <-wait.ch:
			return c.write(number, a, works, staged)
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
func (c *outgoing) releaseLocked(staged *place) {
	if staged == nil {
		return
	}
	if p, ok := c.places[staged.offset]; ok {
		delete(c.places, p.offset)
		c.mover.outgo.put(p)
	}
}

// write writes a body to its place, or drops it when it was refused.
func (c *outgoing) write(number uint32, a answer, works []Work, staged *place) error {
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
	at := a.place.Addr
	for i := range works {
		works[i].Addr, works[i].RKey = at, a.place.RKey
		at += uint64(works[i].Bytes)
	}
	works[len(works)-1].Imm = c.flow.Wrote(number)
	written := make(chan struct{})
	err := c.postLocked(func() {
		c.releaseLocked(staged)
		close(written)
	}, works...)
	c.stirLocked()
	c.mu.Unlock()
	if ended := c.refusal(); ended != nil {
		c.queue.Wake() // this may have been what bye waits for
	}
	if err != nil || staged != nil {
		return err
	}
	select { // the body is the caller's
	case <-written:
		return nil
	case <-c.gone:
		return c.explain()
	}
}
