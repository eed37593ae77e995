package sim

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// piece is KV that arrived and waits for its place.
type piece struct {
	rows    rows
	storing bool
}

// transfer is an export or a load under way at an engine.
type transfer struct {
	load     bool
	from, to int // cells
}

// whenAwake does what a thread of the daemon does: not while that is stopped.
func (h *host) whenAwake(life uint64, do func()) {
	switch {
	case h.life != life || h.m == nil:
	case h.frozen:
		h.stopped = append(h.stopped, do)
	default:
		do()
	}
}

// engineOf returns the engine that an effect is for; nil if it has just exited, of
// which the daemon will hear.
func (h *host) engineOf(stage kevlard.StageKey, run uint64) *engine {
	en := h.engines[stage]
	if en == nil || en.gone || en.run != run {
		return nil
	}
	return en
}

// whenRunning lets a transfer end: not while the engine is stopped.
func (en *engine) whenRunning(do func()) {
	switch {
	case en.gone:
	case en.frozen > 0:
		en.stopped = append(en.stopped, do)
	default:
		do()
	}
}

// begin notes a transfer. It returns what ends it.
func (en *engine) begin(t transfer) func() {
	x := &t
	en.transfers[x] = true
	return func() { delete(en.transfers, x) }
}

func (en *engine) copyTime(n int) time.Duration {
	w := en.h.w
	return time.Duration(en.slow) * (w.copyBetween(50*time.Microsecond, 2*time.Millisecond) + time.Duration(n)*w.copyBetween(2*time.Microsecond, 30*time.Microsecond))
}

// export reads cells a while after it was asked to, and sends them.
func (h *host) export(e node.Export) {
	w := h.w
	en := h.engineOf(e.Stage, e.Run)
	if en == nil {
		return
	}
	n := len(e.Rows.Tokens)
	t := transfer{from: e.Cell, to: e.Cell + n}
	w.judge.transfer(en, t)
	end := en.begin(t)
	w.after(en.copyTime(n), func() {
		en.whenRunning(func() {
			end()
			cell := e.Cell
			if w.plant == RowsShifted && e.Rows.Pos > 0 {
				cell--
			}
			body := make([]byte, n*en.toy.CellBytes())
			if err := en.toy.Read(cell, n, body); err != nil {
				w.judge.fail("%s: export: %v", h.id, err)
				return
			}
			r := rows{header: e.Rows, body: body}
			r.header.Sums = sums(body, n)
			if e.To == h.id {
				h.deliver(en.life, node.Exported{Stage: e.Stage, Run: e.Run, ID: e.ID})
				h.whenAwake(en.life, func() { h.ownRows(r) })
				return
			}
			h.whenAwake(en.life, func() { w.sendRows(w.laneOf(h, w.byID[e.To]), r) })
			h.deliver(en.life, node.Exported{Stage: e.Stage, Run: e.Run, ID: e.ID})
		})
	})
}

// ownRows hands rows of a host's own engine to its daemon.
func (h *host) ownRows(r rows) {
	h.pieceID++
	h.pieces[h.pieceID] = &piece{rows: r}
	h.deliver(h.life, node.RowsArrived{From: h.id, Piece: h.pieceID, Rows: r.header, Intact: true})
}

// load writes stored positions into cells a while after it was asked to.
func (h *host) load(e node.Load) {
	w := h.w
	en := h.engineOf(e.Stage, e.Run)
	if en == nil {
		return
	}
	n := length(e.From)
	t := transfer{load: true, from: e.Cell, to: e.Cell + n}
	w.judge.transfer(en, t)
	took := en.copyTime(n)
	end := en.begin(t)
	if w.plant == UnpinEarly {
		end()
		good := en.fill(e, h.memory.read(e.Stage, e.From))
		h.deliverSoon(node.Loaded{Stage: e.Stage, Run: e.Run, ID: e.ID, N: good, Damaged: good < n})
		took += w.copyBetween(0, 300*time.Millisecond)
	}
	w.after(took, func() {
		en.whenRunning(func() {
			h.whenAwake(en.life, func() {
				if en.gone {
					return
				}
				end()
				found := h.memory.read(e.Stage, e.From)
				w.judge.found(h, e.Session, e.Stage, e.Pos, found)
				w.judge.stats.Loaded += n
				if w.plant == UnpinEarly {
					return
				}
				good := en.fill(e, found)
				claimed := good
				if w.plant == TruncateLess && good < n {
					claimed++
				}
				h.deliver(en.life, node.Loaded{Stage: e.Stage, Run: e.Run, ID: e.ID, N: claimed, Damaged: good < n})
			})
		})
	})
}

// deliverSoon hands the daemon an event, but not while it steps.
func (h *host) deliverSoon(ev node.Event) {
	life := h.life
	h.w.after(0, func() { h.deliver(life, ev) })
}

// fill writes what was found, up to the first position that is not intact, and
// returns how many those are.
func (en *engine) fill(e node.Load, found []stored) int {
	for i, s := range found {
		if !s.intact() {
			return i
		}
		if err := en.toy.Write(e.Cell+i, 1, s.values); err != nil {
			en.h.w.judge.fail("%s: load: %v", en.h.id, err)
			return i
		}
	}
	return len(found)
}

// storeRows moves a piece to its place a while after it was asked to.
func (h *host) storeRows(e node.StoreRows) {
	w := h.w
	p := h.pieces[e.Piece]
	if p == nil || p.storing || p.rows.header.Stage != e.Stage || length(e.To) != len(p.rows.header.Tokens) {
		w.judge.fail("%s stores piece %d in %v: there is %+v", h.id, e.Piece, e.To, p)
		return
	}
	p.storing = true
	life := h.life
	if w.plant == AckEarly {
		h.deliverSoon(node.RowsStored{Piece: e.Piece})
	}
	w.after(w.copyBetween(20*time.Microsecond, 3*time.Millisecond), func() {
		h.whenAwake(life, func() {
			h.memory.put(e.Stage, e.To, p.rows, w.saltOf(p.rows.header.Session))
			delete(h.pieces, e.Piece)
			if w.plant != AckEarly {
				h.deliver(life, node.RowsStored{Piece: e.Piece})
			}
		})
	})
}

// saltOf returns whose a session is.
func (w *world) saltOf(id kevlard.SessionID) string {
	if c := w.judge.clients[id]; c != nil {
		return c.req.Salt
	}
	return ""
}

// sendStored sends stored rows, with the checksums that they were stored with, a
// while after it was asked to.
func (h *host) sendStored(e node.SendStored) {
	w := h.w
	life, n := h.life, length(e.From)
	if n != len(e.Rows.Tokens) {
		w.judge.fail("%s sends %d positions from %v", h.id, len(e.Rows.Tokens), e.From)
		return
	}
	h.sending++
	w.after(w.copyBetween(20*time.Microsecond, 3*time.Millisecond), func() {
		h.whenAwake(life, func() {
			h.sending--
			found := h.memory.read(e.Stage, e.From)
			w.judge.found(h, e.Rows.Session, e.Stage, e.Rows.Pos, found)
			r := rows{header: e.Rows, body: make([]byte, n*e.Rows.CellBytes), stored: true}
			r.header.Sums = make([]uint64, n)
			for i, s := range found {
				r.header.Sums[i] = s.sum
				for at := 0; at < len(s.values); at += 8 {
					copy(r.body[n*at+8*i:], s.values[at:at+8])
				}
			}
			w.sendRows(w.laneOf(h, w.byID[e.To]), r)
			h.deliver(life, node.StoredSent{ID: e.ID, N: n})
		})
	})
}

func (h *host) dropRows(e node.DropRows) {
	if p := h.pieces[e.Piece]; p == nil || p.storing {
		h.w.judge.fail("%s drops piece %d: there is %+v", h.id, e.Piece, p)
	}
	delete(h.pieces, e.Piece)
}

// length adds up runs.
func length(runs []index.Run) int {
	n := 0
	for _, r := range runs {
		n += r.N
	}
	return n
}

// wireRows passes a piece's header through its byte format when the run asks for
// that.
func (w *world) wireRows(r rows) protocol.Rows {
	if w.codec == nil {
		return r.header
	}
	b, err := w.codec.EncodeRows(r.header)
	if err != nil {
		w.judge.fail("%v", err)
		return r.header
	}
	out, err := w.codec.DecodeRows(b, len(r.body))
	if err != nil {
		w.judge.fail("own rows are refused: %v", err)
		return r.header
	}
	return out
}
