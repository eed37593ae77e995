package sim

import (
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// lane is the bulk connection from one host to another: it carries KV only, has a
// bandwidth, and breaks by itself. The pieces of one session keep their order.
type lane struct {
	from, to *host
	used     bool
	until    kevlard.Instant // it can't be made again before
	free     kevlard.Instant // when all that was sent has left
	last     map[kevlard.SessionID]kevlard.Instant
	flights  []*flight

	holes     int // open black holes
	slow      int // factor on its times until slowUntil
	slowUntil kevlard.Instant
	corrupt   int // open faults that flip bits
}

// flight is one piece under way.
type flight struct {
	rows    rows
	life    uint64 // of the sender
	toLife  uint64
	at      kevlard.Instant // when it arrives
	waiting bool            // in a black hole
	gone    bool
}

func newLane(from, to *host) *lane {
	return &lane{from: from, to: to, last: map[kevlard.SessionID]kevlard.Instant{}}
}

// laneOf returns the bulk connection from a to b.
func (w *world) laneOf(a, b *host) *lane {
	p, s := w.pairOf(a, b)
	return p.lanes[s]
}

// blocked reports whether nothing gets through.
func (w *world) blocked(l *lane) bool {
	p, s := w.pairOf(l.from, l.to)
	return l.holes > 0 || p.sides[s].blocked > 0
}

// sendRows puts a piece under way.
func (w *world) sendRows(l *lane, r rows) {
	l.used = true
	if l.to.m == nil || w.now < l.until {
		w.unsent(l, l.from.life, r, "refused")
		return
	}
	f := &flight{rows: r, life: l.from.life, toLife: l.to.life}
	l.flights = append(l.flights, f)
	if w.blocked(l) {
		f.waiting = true
		return
	}
	w.fly(l, f)
}

// fly lets a piece arrive behind those that left before.
func (w *world) fly(l *lane, f *flight) {
	p, s := w.pairOf(l.from, l.to)
	slow := time.Duration(1)
	if w.now < l.slowUntil {
		slow = time.Duration(l.slow)
	}
	l.free = max(l.free, w.now).Add(slow * time.Duration(len(f.rows.body)) * w.sc.BulkByte)
	delay := p.sides[s].minimum + time.Duration(w.copyRNG.ExpFloat64()*float64(p.sides[s].mean))
	id := f.rows.header.Session
	at := max(l.free.Add(slow*delay), l.last[id])
	l.last[id], f.at = at, at
	w.at(at, func() {
		if f.gone {
			return
		}
		f.gone = true
		l.flights = slices.DeleteFunc(l.flights, func(o *flight) bool { return o == f })
		l.to.receiveRows(l, f)
	})
}

// unsent tells the sender that a piece will not arrive.
func (w *world) unsent(l *lane, life uint64, r rows, cause string) {
	h := r.header
	ev := node.Event(node.RowsUnsent{To: l.to.id, Session: h.Session, Stage: h.Stage, Cause: cause})
	if r.stored {
		ev = node.StoredUnsent{To: l.to.id, Session: h.Session, Fence: h.Fence, Stage: h.Stage, From: h.Pos, Cause: cause}
	}
	w.after(w.copyBetween(0, 5*time.Millisecond), func() { l.from.deliver(life, ev) })
}

// breakLane loses what is under way. The sender learns of some of it; what its
// kernel had taken is lost in silence.
func (w *world) breakLane(l *lane) {
	w.say(l.from.id, "bulk-break", "to %s, %d under way", l.to.id, len(l.flights))
	for _, f := range l.flights {
		f.gone = true
		if w.copyRNG.IntN(2) == 0 {
			w.unsent(l, f.life, f.rows, "reset")
		}
	}
	l.flights, l.free = nil, w.now
	clear(l.last)
	l.until = w.now.Add(w.copyBetween(0, 1500*time.Millisecond))
}

// healLane ends what slows a lane, and does not wait for what is late.
func (w *world) healLane(l *lane) {
	l.slowUntil = w.now
	if slices.ContainsFunc(l.flights, func(f *flight) bool { return f.at > w.now.Add(time.Second) }) {
		w.breakLane(l)
	}
}

// hole drops what is sent over a lane; the keep-alive breaks it if that lasts.
func (w *world) hole(l *lane) {
	l.holes++
	w.watchLane(l)
}

// watchLane breaks a lane on which nothing has got through for too long.
func (w *world) watchLane(l *lane) {
	w.after(w.copyBetween(keepAliveMin, keepAliveMax), func() {
		if w.blocked(l) && len(l.flights) > 0 {
			w.breakLane(l)
		}
	})
}

// open lets go what waited in a black hole, if nothing blocks it any more.
func (w *world) open(l *lane) {
	if w.blocked(l) {
		return
	}
	for _, f := range l.flights {
		if f.waiting {
			f.waiting = false
			w.fly(l, f)
		}
	}
}

// copyBetween is between for all that has to do with copies: it draws from a source
// of its own, so that runs without copies are what they were.
func (w *world) copyBetween(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.copyRNG.Int64N(int64(hi-lo)+1))
}

// receiveRows hands a piece that arrived to its daemon.
func (h *host) receiveRows(l *lane, f *flight) {
	w := h.w
	if h.life != f.toLife || h.m == nil {
		return
	}
	r := f.rows
	if l.corrupt > 0 && w.copyRNG.IntN(2) == 0 {
		r.body = slices.Clone(r.body)
		r.body[w.copyRNG.IntN(len(r.body))] ^= 1 << w.copyRNG.IntN(8)
	}
	r.header = w.wireRows(r)
	intact := slices.Equal(sums(r.body, len(r.header.Tokens)), r.header.Sums)
	w.lastRows = w.now
	h.pieceID++
	h.pieces[h.pieceID] = &piece{rows: r}
	h.deliver(h.life, node.RowsArrived{From: l.from.id, Piece: h.pieceID, Rows: r.header, Intact: intact})
}
