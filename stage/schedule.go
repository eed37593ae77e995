package stage

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// schedule gives an idle engine its next batch.
func (m *Machine) schedule(now kevlard.Instant, out []Effect) []Effect {
	if m.state != topology.Ready || m.batch != nil || len(m.fast)+len(m.slow) == 0 {
		return out
	}
	b := &running{id: m.counters.Batches + 1, started: now}
	rows := min(m.cfg.Limits.BatchRows, m.pace.rows(m.batchTime()))
	// Decodes and replays come first, but never starve prefills: with both
	// waiting, a quarter of the batch is left to the prefills.
	first := rows
	if len(m.slow) > 0 {
		first = max(1, rows*3/4)
	}
	m.fast = m.take(b, m.fast, first)
	if !b.solo() {
		m.slow = m.take(b, m.slow, max(1, rows-b.rows))
	}
	if len(b.work) == 0 {
		return out // all of it waits for cells to be read
	}
	b.limited = b.rows >= rows && len(m.fast)+len(m.slow) > 0
	m.counters.Batches++
	m.counters.Rows += uint64(b.rows)
	b.patience = max(m.cfg.Timing.Stall, 10*m.pace.predict(b.rows))
	if m.pace.lessons < warmUp { // nothing is known of this engine yet
		b.patience = max(b.patience, m.cfg.Timing.Stall+time.Duration(b.rows)*warmUpRow)
	}
	b.overdue = now.Add(b.patience)
	m.batch = b
	return append(out, Run{m.engine, m.describeBatch(b)})
}

// batchTime returns how long the next batch may take.
func (m *Machine) batchTime() time.Duration {
	for _, s := range m.slots {
		if s.decoding {
			return m.cfg.Timing.Batch
		}
	}
	return max(m.cfg.Timing.Batch, m.cfg.Timing.Prefill)
}

// solo reports whether the batch is taken by a session that must run alone.
func (b *running) solo() bool { return len(b.work) > 0 && b.work[0].slot.solo }

// take moves up to rows rows from a queue into the batch and returns what stays.
// A session has at most one part in a batch, and a solo session has it to itself.
func (m *Machine) take(b *running, queue []work, rows int) []work {
	stay := make([]work, 0, len(queue))
	for _, w := range queue {
		full := rows <= 0 || len(b.work) >= m.cfg.Limits.BatchParts || b.solo()
		if full || w.slot.inBatch || w.slot.reads() || w.slot.solo && len(b.work) > 0 {
			stay = append(stay, w)
			continue
		}
		if n := len(w.item.Tokens); n > rows {
			head, tail := w.item.Split(rows)
			stay = append(stay, work{w.slot, tail})
			w.item = head
		}
		w.slot.inBatch = true
		b.work = append(b.work, w)
		b.rows += len(w.item.Tokens)
		rows -= len(w.item.Tokens)
	}
	return stay
}

func (m *Machine) describeBatch(b *running) Batch {
	batch := Batch{ID: b.id, Parts: make([]Part, len(b.work))}
	for i, w := range b.work {
		p := Part{Cell: w.slot.cells.cell, Pos: w.item.Pos, Tokens: w.item.Tokens, Rows: w.item.Rows}
		if m.cfg.Last && w.item.Sample {
			p.Sample, p.Sampling, p.History = true, w.slot.sampling, w.slot.tokens[:w.item.End():w.item.End()]
		}
		batch.Parts[i] = p
	}
	return batch
}

// BatchDone takes the engine's result: rows for the next stage, or at the last
// stage one token for each part that sampled.
func (m *Machine) BatchDone(now kevlard.Instant, engine, id uint64, rows [][]byte, sampled []kevlard.Sampled, out []Effect) []Effect {
	b := m.batch
	if engine != m.engine || b == nil || b.id != id {
		m.counters.Fenced++
		return out
	}
	m.batch = nil
	if m.state == topology.Stalled {
		m.state, m.reason = topology.Ready, ""
		m.judge(now)
		out = append(out, Changed{}, Note{Type: "engine-awake", Detail: "a late result came; it is not used"})
	}
	// A late result teaches too, or an engine that is merely slow would stall for
	// ever; but one long freeze must not blunt the next detection.
	m.pace.learn(b.rows, min(now.Sub(b.started), 4*b.patience), b.limited)
	if m.tempo.batch(now, b.rows, now.Sub(b.started), m.cfg.Timing.Tempo) {
		out = append(out, Changed{})
	}
	ahead := map[kevlard.NodeID][]protocol.Item{}
	var order []kevlard.NodeID // of first appearance: the batch's own order
	for i, w := range b.work {
		s := w.slot
		s.inBatch = false
		var chosen kevlard.Sampled
		if m.cfg.Last && w.item.Sample {
			chosen, sampled = sampled[0], sampled[1:]
		}
		if s.closed {
			m.counters.Fenced++
			s.held = w.item.End() // what was computed may be kept
			out = m.settle(now, s, out)
			continue
		}
		s.held = w.item.End()
		s.gap, s.advanced = max(s.gap, now.Sub(s.advanced)), now
		s.standby.Computed(now, s.held)
		if w.item.Sample {
			s.solo = false // the replay went well: it was not this session
			s.decoding = true
		}
		s.queued -= len(w.item.Tokens)
		s.lease = now.Add(m.cfg.Timing.Lease)
		if s.parked != nil {
			m.counters.Fenced++
			continue
		}
		if m.cfg.Last {
			out = append(out, Reply{s.owner, protocol.Step{
				Session: s.id, Fence: s.fence, Next: s.held, Sampled: w.item.Sample,
				Token: chosen.Token, Logprobs: chosen.Logprobs, Marks: m.marks(w),
			}})
			continue
		}
		it := w.item
		it.Lo, it.Width, it.Rows, it.Marks = m.cfg.Key.Layers.Hi, m.cfg.Width, rows[i], m.marks(w)
		if _, ok := ahead[s.next]; !ok {
			order = append(order, s.next)
		}
		ahead[s.next] = append(ahead[s.next], it)
	}
	for _, to := range order {
		for _, f := range frames(ahead[to]) {
			out = append(out, Forward{to, f})
		}
	}
	for _, w := range b.work {
		out = m.unpark(now, w.slot, out)
		out = m.replicate(now, w.slot, out)
		out = m.keep(now, w.slot, out)
	}
	return m.schedule(now, m.awake(now, out))
}

// marks adds this stage's watermark to those that came with the work.
func (m *Machine) marks(w work) []kevlard.Pos {
	mark := -1
	if w.slot.standby.To != "" {
		mark = w.slot.standby.Acked()
	}
	return append(w.item.Marks[:len(w.item.Marks):len(w.item.Marks)], mark)
}

// unpark takes up the prepare that waited for a session's cells to be at rest.
func (m *Machine) unpark(now kevlard.Instant, s *slot, out []Effect) []Effect {
	p := s.parked
	if p == nil || s.closed || s.busy() {
		return out
	}
	s.parked = nil
	return m.Prepare(now, p.from, p.msg, p.link, false, out)
}

// frames cuts items into frames of at most protocol.MaxBody bytes of rows.
func frames(items []protocol.Item) []protocol.Frame {
	var out []protocol.Frame
	var f protocol.Frame
	room := protocol.MaxBody
	for _, it := range items {
		for {
			if fit := room / it.Width; fit >= len(it.Tokens) && len(f.Items) < protocol.MaxItems/2 {
				f.Items = append(f.Items, it)
				room -= len(it.Rows)
				break
			} else if fit > 0 && fit < len(it.Tokens) && len(f.Items) < protocol.MaxItems/2 {
				var head protocol.Item
				head, it = it.Split(fit)
				f.Items = append(f.Items, head)
			}
			out = append(out, f)
			f, room = protocol.Frame{}, protocol.MaxBody
		}
	}
	if len(f.Items) > 0 {
		out = append(out, f)
	}
	return out
}

// pace predicts how long a batch takes: a fixed part and a part for each row,
// both learned from the batches that ran.
type pace struct {
	fixed, row time.Duration
	lessons    int
	largest    int // rows of the largest batch that ran
}

// An engine's first batches are judged leniently: each row may take warmUpRow
// until warmUp batches have taught what is usual. Batches grow from firstRows to
// at most twice the largest that ran, so no estimate is trusted far beyond what
// it was learned from.
const (
	warmUp    = 3
	warmUpRow = 50 * time.Millisecond
	firstRows = 8
)

func newPace() pace { return pace{fixed: 500 * time.Microsecond, row: 50 * time.Microsecond} }

func (p pace) predict(rows int) time.Duration { return p.fixed + time.Duration(rows)*p.row }

// rows returns how many rows are predicted to take d, at least 1. Where the fixed
// part alone is most of d (weights are read once for all rows), the rows may
// take as long again: batches of one row would waste it.
func (p pace) rows(d time.Duration) int {
	d = max(d, 2*p.fixed)
	return max(1, min(int((d-p.fixed)/p.row), max(firstRows, 2*p.largest)))
}

// learn moves the estimate an eighth of the way to what was seen: small batches
// teach the fixed part, larger ones the rows. A small batch that was faster than
// its rows alone should have been teaches the rows too: else a slow hour would
// leave batches small for ever, with nothing large to learn from. So it would where
// the fixed part is large: one that left work behind makes the rows a little cheaper,
// until batches are large enough to teach what they cost.
func (p *pace) learn(rows int, took time.Duration, limited bool) {
	p.lessons++
	p.largest = max(p.largest, rows)
	extra := took - time.Duration(rows)*p.row
	grow := limited && rows <= firstRows
	if rows <= 4 || grow {
		p.fixed += (max(extra, 0) - p.fixed) / 8
	}
	if rows > 4 && !grow || extra < 0 {
		p.row += (max((took-p.fixed)/time.Duration(rows), time.Microsecond) - p.row) / 8
	} else if grow {
		p.row -= p.row / 16
	}
}
