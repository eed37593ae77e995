package rdma

import (
	"errors"
	"fmt"

	"github.com/kevlard/kevlard/rdma/flow"
)

// arrived takes a message in the ring. A whole piece stays there until its turn.
func (g *guest) arrived(d Done) error {
	offset, err := g.flow.Arrived(d.Imm)
	if err != nil {
		return err
	}
	m, err := decodeMessage(g.mem.mem[offset:flow.RingBytes], int(d.Bytes))
	if err != nil {
		return g.corrupt(err)
	}
	if !m.ask {
		err = g.flow.Whole(offset, int(d.Bytes))
	} else {
		err = g.flow.Asked(offset, int(d.Bytes), m.number)
	}
	if err != nil {
		return err
	}
	g.heads[offset] = m
	if !m.ask {
		return nil
	}
	return g.answer(m)
}

// corrupt counts err if it says that bytes were damaged.
func (g *guest) corrupt(err error) error {
	if errors.Is(err, errCorrupt) {
		g.mover.counts.Corrupt.Add(1)
	}
	return err
}

// buffer asks the handler for memory.
func (g *guest) buffer(m message) []byte {
	b := g.mover.cfg.Handler.Buffer(g.node, m.header, m.bytes)
	if b == nil {
		g.mover.counts.Refused.Add(1)
	} else if len(b) != m.bytes {
		panic(fmt.Sprintf("rdma: Handler.Buffer returned %d bytes for a body of %d", len(b), m.bytes))
	}
	return b
}

// answer finds a place for a body that is asked for.
func (g *guest) answer(m message) error {
	buf := g.buffer(m)
	if buf == nil {
		g.flow.Refused(m.number)
		return g.say(flow.Say(flow.Refuse, m.number), nil)
	}
	b := &arriving{number: m.number, message: m, buffer: buf}
	g.bodies[m.number] = b
	b.request = &request{n: m.bytes, ready: func(p place) { g.placed(b, p) }}
	g.mover.inco.get(b.request)
	return nil
}

// placed takes a place that staging gave, in whichever goroutine that was.
func (g *guest) placed(b *arriving, p place) {
	g.mu.Lock()
	ended := g.ended
	if !ended {
		g.places = append(g.places, placed{b, p})
	}
	g.mu.Unlock()
	if ended {
		g.mover.inco.put(p)
		return
	}
	g.queue.Wake()
}

// grantPlaced grants what staging memory was found for. Its bodies may have been given up.
func (g *guest) grantPlaced() error {
	g.mu.Lock()
	places := g.places
	g.places = nil
	g.mu.Unlock()
	var err error
	for _, p := range places {
		b := p.body
		if err != nil || g.bodies[b.number] != b {
			g.mover.inco.put(p.place)
			continue
		}
		b.request, b.staged = nil, &p.place
		region := g.mover.in.regions[g.rail]
		err = g.grant(b, region.Addr+uint64(p.offset), region.RKey)
	}
	return err
}

// grant tells the sender where to write.
func (g *guest) grant(b *arriving, addr uint64, key uint32) error {
	if !g.flow.Granted(b.number) {
		panic("rdma: a place for what was not asked for")
	}
	at := flow.RingBytes + flow.Slot(b.number)
	flow.PutPlace(g.mem.mem[at:at+flow.GrantBytes], b.number, flow.Place{Addr: addr, RKey: key, Size: uint32(b.message.bytes)})
	own, peer := g.mem.regions[0], g.peer
	return g.out.post(nil, Work{
		Local: own.Addr + uint64(at), LKey: own.LKey, Bytes: flow.GrantBytes,
		Addr: peer.Addr + uint64(flow.Slot(b.number)), RKey: peer.RKey, Imm: flow.Say(flow.Grant, b.number),
	})
}

// landed takes a body that the peer has written: its staging memory is wanted by others.
func (g *guest) landed(b *arriving) error {
	m := b.message
	sum := copySum(b.buffer, b.staged.mem, m.summed)
	g.mover.inco.put(*b.staged)
	b.staged = nil
	if m.summed && sum != m.sum {
		return g.corrupt(fmt.Errorf("%w: checksum %016x of the body, want %016x", errCorrupt, sum, m.sum))
	}
	return nil
}

// abandon gives everything back that belongs to a body which will not come.
func (g *guest) abandon(b *arriving) {
	if b.request != nil {
		g.mover.inco.cancel(b.request) // if that is too late, grantPlaced or takeDown gives it back
	}
	if b.staged != nil {
		g.mover.inco.put(*b.staged)
		b.staged = nil
	}
	g.mover.counts.Aborted.Add(1)
	g.mover.cfg.Handler.Aborted(g.node, b.message.header, b.buffer)
}

// deliver hands on what is complete, in order.
func (g *guest) deliver() error {
	for g.cause() == nil {
		offset, deliver, ok := g.flow.Next()
		if !ok {
			return nil
		}
		m := g.heads[offset]
		if deliver {
			if err := g.hand(m); err != nil {
				return err
			}
		}
		delete(g.heads, offset)
		if credit, ok := g.flow.Done(); ok {
			if err := g.say(credit, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// hand hands one piece on.
func (g *guest) hand(m message) error {
	var body []byte
	switch {
	case m.ask:
		body = g.bodies[m.number].buffer
		delete(g.bodies, m.number)
	case m.bytes > 0:
		if body = g.buffer(m); body == nil {
			return nil
		}
		if sum := copySum(body, m.body, m.summed); m.summed && sum != m.sum {
			g.mover.counts.Aborted.Add(1)
			g.mover.cfg.Handler.Aborted(g.node, m.header, body)
			return g.corrupt(fmt.Errorf("%w: checksum %016x of the body, want %016x", errCorrupt, sum, m.sum))
		}
	}
	g.mover.counts.Received.Add(1)
	g.mover.counts.ReceivedBytes.Add(uint64(len(m.header) + len(body)))
	g.mover.cfg.Handler.Received(g.node, m.header, body)
	return nil
}
