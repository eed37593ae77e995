package daemon

import (
	"context"
	"fmt"
	"sync"

	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
)

// transfers is what is to be read from, or written to, the cells of one engine.
// It is bounded by the machine: one transfer for each session.
type transfers struct {
	wake chan struct{} // capacity 1: there is something

	mu      sync.Mutex
	loads   []node.Load
	exports []node.Export
	keeps   []node.Export // for this node's own block memory: nobody waits for them
}

func newTransfers() *transfers { return &transfers{wake: make(chan struct{}, 1)} }

func (t *transfers) add(f func()) {
	t.mu.Lock()
	f()
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // the engine's goroutine has not yet looked
	}
}

// next takes the oldest load, for which a session waits, or else the oldest export, or
// else the oldest of what is kept here.
// The machine keeps them off each other's cells.
// It returns nil when there is none.
func (t *transfers) next() (ev node.Effect) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.loads) > 0:
		ev, t.loads = t.loads[0], t.loads[1:]
	case len(t.exports) > 0:
		ev = t.exports[0]
		t.exports[0] = node.Export{} // let go of the tokens
		t.exports = t.exports[1:]
	case len(t.keeps) > 0:
		ev = t.keeps[0]
		t.keeps[0] = node.Export{}
		t.keeps = t.keeps[1:]
	}
	return ev
}

// export and load do nothing when the engine is gone: its exit is in the inbox.
func (e *engines) export(ev node.Export) {
	l := e.life(engineID{ev.Stage, ev.Run})
	switch {
	case l == nil:
	case ev.To == e.self:
		l.transfers.add(func() { l.transfers.keeps = append(l.transfers.keeps, ev) })
	default:
		l.transfers.add(func() { l.transfers.exports = append(l.transfers.exports, ev) })
	}
}

func (e *engines) load(ev node.Load) {
	if l := e.life(engineID{ev.Stage, ev.Run}); l != nil {
		l.transfers.add(func() { l.transfers.loads = append(l.transfers.loads, ev) })
	}
}

// transfer moves the KV of an engine, one transfer after the other, beside its
// batches.
func (e *engines) transfer(ctx context.Context, l *engineLife, eng Engine, cellBytes int) {
	var buf []byte // of loads
	for {
		ev := l.transfers.next()
		if ev == nil {
			select {
			case <-l.transfers.wake:
				continue
			case <-eng.Done():
			case <-ctx.Done():
			}
			return
		}
		switch ev := ev.(type) {
		case node.Load:
			buf = e.fill(ctx, eng, cellBytes, ev, buf)
		case node.Export:
			e.read(ctx, eng, cellBytes, ev)
		}
		select {
		case <-eng.Done():
			return // what waits is answered by its exit
		default:
		}
	}
}

// read carries out an Export as far as the engine is concerned.
func (e *engines) read(ctx context.Context, eng Engine, cellBytes int, ev node.Export) {
	done := node.Exported{Stage: ev.Stage, Run: ev.Run, ID: ev.ID}
	if ev.Rows.CellBytes != cellBytes {
		panic(fmt.Sprintf("daemon: cells of %d bytes are to be read, the engine's have %d", ev.Rows.CellBytes, cellBytes))
	}
	if ev.To == e.self {
		e.keep(ctx, eng, ev)
		return
	}
	n := len(ev.Rows.Tokens)
	body, err := e.copies.sender.room(ev.To, n*cellBytes)
	if err != nil {
		e.post(done) // the rows are lost, and not for the engine's fault
		e.post(node.RowsUnsent{To: ev.To, Session: ev.Rows.Session, Stage: ev.Stage, Cause: err.Error()})
		return
	}
	if err := eng.ReadCells(ctx, ev.Cell, n, body); err != nil {
		e.copies.sender.buffers.Put(body)
		done.Failed = err.Error()
		e.post(done)
		return
	}
	e.post(done)
	e.copies.sender.send(outgoing{to: ev.To, rows: ev.Rows, body: body})
}

// keep carries out an Export to this node's own block memory. Without a buffer it fails,
// and the stage tries again later.
func (e *engines) keep(ctx context.Context, eng Engine, ev node.Export) {
	done := node.Exported{Stage: ev.Stage, Run: ev.Run, ID: ev.ID}
	n := len(ev.Rows.Tokens)
	body := e.copies.keeper.buffers.Get(n * ev.Rows.CellBytes)
	if body == nil {
		done.Failed = fmt.Sprintf("no buffer for %d bytes", n*ev.Rows.CellBytes)
		e.post(done)
		return
	}
	layout, err := kvstream.LayoutOf(ev.Stage.Layers, ev.Rows.CellBytes)
	if err == nil {
		err = eng.ReadCells(ctx, ev.Cell, n, body)
	}
	if err != nil {
		e.copies.keeper.buffers.Put(body)
		done.Failed = err.Error()
		e.post(done)
		return
	}
	e.post(done)
	ev.Rows.Sums = layout.Sums(make([]uint64, 0, n), body, n)
	e.copies.keeper.own(ev.To, ev.Rows, body)
}

// fill carries out a Load, in pieces, with buf or a larger one, which it returns.
func (e *engines) fill(ctx context.Context, eng Engine, cellBytes int, ev node.Load, buf []byte) []byte {
	done := node.Loaded{Stage: ev.Stage, Run: ev.Run, ID: ev.ID}
	most := max(1, loadPiece/max(1, cellBytes))
	for runs := ev.From; len(runs) > 0; {
		var piece []index.Run
		var n int
		piece, n, runs = split(runs, most)
		if size := n * cellBytes; len(buf) < size {
			buf = make([]byte, size)
		}
		sums, damaged := e.copies.store.Get(ev.Stage, cellBytes, piece, buf)
		whole := len(sums)
		if whole > 0 {
			if err := eng.WriteCells(ctx, ev.Cell+done.N, whole, buf[:whole*cellBytes]); err != nil {
				e.log.Debug("a copy of KV was not loaded", "stage", ev.Stage.Layers, "run", ev.Run, "err", err)
				break // the rest is computed again, or the engine is gone
			}
		}
		done.N += whole
		if damaged {
			done.Damaged = true
			break
		}
	}
	if done.Damaged {
		e.reject(rejectedDamaged, "", fmt.Sprintf("a stored position of layers %v", ev.Stage.Layers))
	}
	e.post(done)
	return buf
}

// split cuts runs after at most n positions. first has got of them.
func split(runs []index.Run, n int) (first []index.Run, got int, rest []index.Run) {
	for i, r := range runs {
		if got+r.N < n {
			got += r.N
			first = append(first, r)
			continue
		}
		k := n - got
		first = append(first, index.Run{Slot: r.Slot, At: r.At, N: k})
		rest = runs[i+1:]
		if k < r.N {
			rest = append([]index.Run{{Slot: r.Slot, At: r.At + k, N: r.N - k}}, rest...)
		}
		return first, n, rest
	}
	return first, got, nil
}
