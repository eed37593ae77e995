package sim

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// class separates control from data: each keeps its order, not across.
type class int

const (
	control class = iota
	data
	classes
)

// pair is the connection between two hosts; side 0 is the lesser one.
type pair struct {
	ends  [2]*host
	life  uint64 // grows with every break
	up    bool
	lives [2]uint64 // of the daemons that it connects
	sides [2]side
	lanes [2]*lane // for KV
}

// side is one direction: from ends[i] to the other.
type side struct {
	told    bool // the sender knows that the connection stands
	floor   [classes]kevlard.Instant
	blocked int // open blocks; while positive, what is sent is held
	held    []parcel
	minimum time.Duration
	mean    time.Duration
}

type parcel struct {
	class class
	event node.Event
}

func (w *world) pairOf(a, b *host) (*pair, int) {
	i, s := [2]int{a.index, b.index}, 0
	if i[0] > i[1] {
		i, s = [2]int{b.index, a.index}, 1
	}
	return w.pairs[i], s
}

// send puts an event under way to another host.
func (w *world) send(from, to *host, c class, ev node.Event) {
	p, s := w.pairOf(from, to)
	if !p.up || !p.sides[s].told {
		life := from.life
		w.after(0, func() { from.deliver(life, node.SendFailed{Node: to.id}) })
		return
	}
	if p.sides[s].blocked > 0 {
		p.sides[s].held = append(p.sides[s].held, parcel{c, ev})
		return
	}
	w.carry(p, s, parcel{c, ev})
}

// carry lets a parcel arrive after the link's delay, behind what went before.
func (w *world) carry(p *pair, s int, x parcel) {
	l := &p.sides[s]
	at := max(w.now.Add(l.minimum+time.Duration(w.rng.ExpFloat64()*float64(l.mean))), l.floor[x.class])
	l.floor[x.class] = at
	life, to := p.life, p.ends[1-s]
	toLife := to.life
	w.at(at, func() {
		if p.life == life {
			to.deliver(toLife, x.event)
		}
	})
}

// connect makes a connection when it can, and tries again when it cannot.
func (w *world) connect(p *pair) {
	a, b := p.ends[0], p.ends[1]
	if p.up || a.m == nil || b.m == nil {
		return // a boot connects anew
	}
	if a.frozen || b.frozen || p.sides[0].blocked+p.sides[1].blocked > 0 || a.cut || b.cut {
		life := p.life
		w.after(w.between(200*time.Millisecond, 1500*time.Millisecond), func() {
			if p.life == life {
				w.connect(p)
			}
		})
		return
	}
	p.up, p.lives = true, [2]uint64{a.life, b.life}
	p.life++
	life := p.life
	var stands kevlard.Instant
	for s, h := range p.ends {
		other := p.ends[1-s]
		at := w.now.Add(w.between(time.Millisecond, 40*time.Millisecond))
		stands = max(stands, at)
		lives := h.life
		boot := other.boot
		w.at(at, func() {
			if p.life == life {
				p.sides[s].told = true
				h.deliver(lives, node.PeerUp{Node: other.id, Boot: boot})
			}
		})
	}
	for s := range p.sides {
		for c := range p.sides[s].floor {
			p.sides[s].floor[c] = stands
		}
	}
}

// disconnect loses what is under way and tells both ends.
func (w *world) disconnect(p *pair, cause string) {
	if !p.up {
		return
	}
	p.up = false
	p.life++
	w.say(p.ends[0].id, "break", "%s %s", p.ends[1].id, cause)
	for s, h := range p.ends {
		told := p.sides[s].told
		p.sides[s].told, p.sides[s].held = false, nil
		if !told {
			continue
		}
		life, other := p.lives[s], p.ends[1-s].id
		w.after(w.between(0, 5*time.Millisecond), func() { h.deliver(life, node.PeerDown{Node: other, Cause: cause}) })
	}
	life := p.life
	w.after(w.between(100*time.Millisecond, 1500*time.Millisecond), func() {
		if p.life == life {
			w.connect(p)
		}
	})
}

// block stops one direction; the keep-alive breaks the connection if that lasts.
func (w *world) block(p *pair, s int) {
	p.sides[s].blocked++
	life := p.life
	w.after(w.between(keepAliveMin, keepAliveMax), func() {
		if p.life == life && p.sides[s].blocked > 0 {
			w.disconnect(p, "keepalive")
		}
	})
	w.watchLane(p.lanes[s])
}

// unblock opens a direction and sends what waited.
func (w *world) unblock(p *pair, s int) {
	l := &p.sides[s]
	if l.blocked--; l.blocked > 0 {
		return
	}
	held := l.held
	l.held = nil
	for _, x := range held {
		w.carry(p, s, x)
	}
	w.open(p.lanes[s])
}

// wire passes a message through its byte format when the run asks for that.
func (w *world) wire(m protocol.Message) protocol.Message {
	if w.codec == nil {
		return m
	}
	b, err := w.codec.EncodeMessage(m)
	if err != nil {
		w.judge.fail("%v", err)
		return m
	}
	out, err := w.codec.DecodeMessage(b)
	if err != nil {
		w.judge.fail("own message is refused: %v", err)
		return m
	}
	return out
}

// wireFrame is wire for frames.
func (w *world) wireFrame(f protocol.Frame) protocol.Frame {
	if w.codec == nil {
		return f
	}
	header, pieces, err := w.codec.EncodeFrame(f)
	if err != nil {
		w.judge.fail("%v", err)
		return f
	}
	var body []byte
	for _, p := range pieces {
		body = append(body, p...)
	}
	out, err := w.codec.DecodeFrame(header, body)
	if err != nil {
		w.judge.fail("own frame is refused: %v", err)
		return f
	}
	return out
}
