package sim

import (
	"encoding/binary"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// copyJudge watches copies of KV. What a position must hold follows from the
// session's tokens alone; the judge computes it by itself.
type copyJudge struct {
	marks map[copyID]kevlard.Pos // what each copy has acknowledged
	best  map[sessionStage]copyID
	kv    map[sessionStage][]uint64 // checksum of each position
}

type copyID struct {
	host  int
	life  uint64
	stage sessionStage
}

type sessionStage struct {
	session kevlard.SessionID
	layers  kevlard.Layers
}

func newCopyJudge() copyJudge {
	return copyJudge{marks: map[copyID]kevlard.Pos{}, best: map[sessionStage]copyID{}, kv: map[sessionStage][]uint64{}}
}

// sumsOf returns the checksums that a session's positions must have at a stage.
func (j *judge) sumsOf(id kevlard.SessionID, l kevlard.Layers) []uint64 {
	key := sessionStage{id, l}
	if out, ok := j.copies.kv[key]; ok {
		return out
	}
	c := j.clients[id]
	if c == nil {
		return nil
	}
	all := append(append([]kevlard.Token(nil), c.req.Prompt...), kevlard.Tokens(c.want)...)
	kv := j.w.toy().KV(all)
	out := make([]uint64, len(all))
	values := make([]byte, 8*l.Len())
	for pos := range all {
		for layer := l.Lo; layer < l.Hi; layer++ {
			binary.LittleEndian.PutUint64(values[8*(layer-l.Lo):], kv[layer][pos])
		}
		out[pos] = sum(values)
	}
	j.copies.kv[key] = out
	return out
}

// transfer judges whether an export or a load may begin: nothing else may touch
// the cells that it fills, nothing may write those that it reads.
func (j *judge) transfer(en *engine, t transfer) {
	for o := range en.transfers {
		if (o.load || t.load) && o.from < t.to && t.from < o.to {
			j.fail("%s: a transfer of the cells [%d,%d) begins in one of [%d,%d)", en.h.id, t.from, t.to, o.from, o.to)
		}
	}
	if en.busy && !en.early {
		j.overlap(en, en.batch, t)
	}
}

// overlap judges whether a batch and a transfer may go on at once.
func (j *judge) overlap(en *engine, b node.RunBatch, t transfer) {
	for _, p := range b.Batch.Parts {
		from := p.Cell + p.Pos
		if t.load {
			from = p.Cell // attention reads all cells of the session
		}
		if from < t.to && t.from < p.Cell+p.Pos+len(p.Tokens) {
			j.fail("%s: batch %d works on the cells [%d,+%d) while [%d,%d) are transferred", en.h.id, b.Batch.ID, p.Cell+p.Pos, len(p.Tokens), t.from, t.to)
		}
	}
}

// found judges what is read of block memory: the session's own KV, as far as it is
// intact, and damage only where a fault was.
func (j *judge) found(h *host, id kevlard.SessionID, stage kevlard.StageKey, pos kevlard.Pos, found []stored) {
	if j.w.sc.Liar != 0 { // what it makes is not that, and other salts keep it apart
		return
	}
	want := j.sumsOf(id, stage.Layers)
	for _, s := range found {
		switch {
		case !s.intact():
			if !s.rotten {
				j.fail("%s reads position %d of %s where nothing is", h.id, pos, id)
			}
			j.stats.Rotten++
			return
		case s.salt != j.w.saltOf(id):
			j.fail("%s reads position %d of %s, which is of another tenant", h.id, pos, id)
			return
		case pos >= len(want) || s.sum != want[pos]:
			j.fail("%s reads position %d of %s, and the KV there is not that of its tokens", h.id, pos, id)
			return
		}
		pos++
	}
}

// stored judges a standby's word on what it has.
func (j *judge) stored(h *host, ev node.Event, m protocol.Stored) {
	key := sessionStage{m.Session, m.Stage.Layers}
	id := copyID{h.index, h.life, key}
	if m.Refusal != "" {
		if m.Refusal != protocol.RefusedStale {
			delete(j.copies.marks, id)
		}
		j.stats.Refused++
		return
	}
	before, known := j.copies.marks[id]
	if r, ok := ev.(node.Received); ok {
		if _, ok := r.Message.(protocol.Offer); ok {
			known = false
		}
	}
	if m.Again {
		known = false
		j.stats.Again++
	}
	if !known {
		before = 0
	} else if m.Through < before {
		j.fail("%s acknowledges %d positions of %s at %v after %d", h.id, m.Through, m.Session, m.Stage.Layers, before)
	}
	want := j.sumsOf(m.Session, m.Stage.Layers)
	for pos := before; pos < m.Through && j.w.sc.Liar == 0; pos++ {
		if pos >= len(want) || !h.memory.has(content{m.Stage, want[pos]}) {
			j.fail("%s acknowledges %d positions of %s at %v, and does not have %d", h.id, m.Through, m.Session, m.Stage.Layers, pos)
			break
		}
	}
	j.copies.marks[id] = m.Through
	j.copies.best[key] = id
}

// copied returns how much of a session a live host has acknowledged last.
func (j *judge) copied(key sessionStage) kevlard.Pos {
	id, ok := j.copies.best[key]
	if h := j.w.hosts[id.host]; !ok || h.m == nil || h.life != id.life {
		return 0
	}
	return j.copies.marks[id]
}

// prepares notes the route of a newer term.
func (j *judge) prepares(c *client, e node.Send, m protocol.Prepare) {
	if m.Fence.Compare(c.fence) > 0 {
		c.next = map[kevlard.Layers]kevlard.NodeID{}
	}
	c.next[m.Stage.Layers], c.known = e.To, len(m.Tokens)
}

// starts counts a session's start after a re-route: how much was there, and how
// much must be computed again.
func (j *judge) starts(c *client, pos kevlard.Pos) {
	moved, had := 0, true
	for layers, n := range c.next {
		if c.running[layers] == n {
			continue
		}
		moved++
		had = had && j.copied(sessionStage{c.id, layers}) > 0
	}
	first := c.running == nil
	c.running = c.next
	if first || moved == 0 {
		return
	}
	j.stats.Moved++
	j.stats.Recomputed += c.known - 1 - pos
	if had {
		j.stats.Copied++
		if pos > 0 {
			j.stats.WentOn++
			j.stats.AfterCopy += c.known - 1 - pos
		}
	}
}

// copiesEnded judges what is left of copies at the end.
func (j *judge) copiesEnded(h *host, s node.Snapshot) {
	if kv := s.KV; kv.Copies != 0 || kv.Pins != 0 || kv.Transfers != 0 || kv.Bytes != kv.CachedBytes {
		j.fail("%s still keeps %d copies, %d pins, %d transfers, %d bytes of which %d are cached", h.id, kv.Copies, kv.Pins, kv.Transfers, kv.Bytes, kv.CachedBytes)
	}
	if h.sending > 0 {
		j.fail("%s is still reading %d stored pieces", h.id, h.sending)
	}
	if len(h.pieces) > 0 {
		j.fail("%s has %d pieces that were neither stored nor dropped", h.id, len(h.pieces))
	}
	for _, en := range h.engines {
		if !en.gone && len(en.transfers) > 0 {
			j.fail("%s: engine %v has %d transfers under way", h.id, en.stage.Layers, len(en.transfers))
		}
	}
}

// surveyCopies judges what a node keeps for others.
func (j *judge) surveyCopies(h *host, s node.Snapshot) {
	if s.KV.Bytes > h.kv.Bytes || s.KV.Copies > h.kv.Copies {
		j.fail("%s keeps %d copies in %d bytes, and may keep %d in %d", h.id, s.KV.Copies, s.KV.Bytes, h.kv.Copies, h.kv.Bytes)
	}
	if s.KV.Diverged > 0 && j.w.sc.Liar == 0 {
		j.fail("%s: %d blocks of one name had different bytes", h.id, s.KV.Diverged)
	}
}
