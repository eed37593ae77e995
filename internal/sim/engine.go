package sim

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/node"
)

// engine is one engine process: a toy stage that takes time.
type engine struct {
	h     *host
	life  uint64 // of the daemon that started it
	stage kevlard.StageKey
	run   uint64
	toy   *toymodel.Stage
	gone  bool

	frozen int  // open freezes
	slow   int  // factor on its time, at least 1
	busy   bool // a batch is under way
	batch  node.RunBatch
	result func() // a finished batch that waits for a thaw
	thawed bool   // the batch ends late, because of a freeze
	doomed bool   // the batch will kill it
	early  bool   // a planted bug has already answered for the batch

	transfers map[*transfer]bool // of KV, under way
	stopped   []func()           // ends of transfers that wait for a thaw
}

func (h *host) startEngine(e node.StartEngine) {
	w := h.w
	if old := h.engines[e.Stage]; old != nil && !old.gone {
		w.judge.fail("%s starts engine %d of %v while engine %d lives", h.id, e.Run, e.Stage.Layers, old.run)
	}
	toy, err := toymodel.NewStage(h.weights(), e.Stage.Layers, h.cells)
	if err != nil {
		w.judge.fail("%v", err)
		return
	}
	en := &engine{h: h, life: h.life, stage: e.Stage, run: e.Run, toy: toy, slow: 1, transfers: map[*transfer]bool{}}
	h.engines[e.Stage] = en
	load := w.between(50*time.Millisecond, 500*time.Millisecond)
	w.after(load/2, func() {
		if !en.gone {
			h.deliver(en.life, node.EngineLoading{Stage: e.Stage, Run: e.Run, Progress: 500})
		}
	})
	w.after(load, func() {
		if !en.gone {
			h.deliver(en.life, node.EngineReady{Stage: e.Stage, Run: e.Run, Class: "toy", Cells: h.cells, Width: w.toy().Width, CellBytes: toy.CellBytes()})
		}
	})
}

func (h *host) runBatch(e node.RunBatch) {
	w := h.w
	en := h.engines[e.Stage]
	if en == nil || en.gone || en.run != e.Run {
		return // it has just exited, and the daemon will hear of that
	}
	if en.busy && !en.early {
		w.judge.fail("%s gives engine %v a second batch", h.id, e.Stage.Layers)
		return
	}
	if en.early { // the planted bug: the engine is still writing the last batch
		stale := en.batch
		w.after(w.between(time.Millisecond, 40*time.Millisecond), func() {
			if !en.gone {
				_, _, _ = en.toy.Forward(stale.Batch)
			}
		})
	}
	en.busy, en.batch, en.early, en.doomed, en.thawed = true, e, false, false, false
	for t := range en.transfers {
		w.judge.overlap(en, e, *t)
	}
	rows := 0
	for _, p := range e.Batch.Parts {
		rows += len(p.Tokens)
		for _, t := range p.Tokens {
			if int(t) >= w.model.Vocab {
				en.doomed = true
			}
		}
	}
	took := w.sc.BatchFixed + time.Duration(rows)*w.sc.BatchRow
	took = time.Duration(en.slow) * w.between(took*3/4, took*5/4)
	id := e.Batch.ID
	w.after(took, func() {
		if en.gone || !en.busy || en.batch.Batch.ID != id {
			return
		}
		if en.frozen > 0 {
			en.result, en.thawed = func() { en.finish(id) }, true
			return
		}
		en.finish(id)
	})
}

// finish computes a batch at its end and reports it.
func (en *engine) finish(id uint64) {
	if en.gone || !en.busy || en.batch.Batch.ID != id || en.early {
		return
	}
	if en.doomed {
		en.exit(true, "signal: aborted")
		return
	}
	rows, sampled, err := en.toy.Forward(en.batch.Batch)
	if err != nil {
		en.h.w.judge.fail("%s: engine %v: %v", en.h.id, en.stage.Layers, err)
		en.exit(true, err.Error())
		return
	}
	en.busy = false
	en.h.deliver(en.life, node.BatchDone{Stage: en.stage, Run: en.run, Batch: id, Rows: rows, Sampled: sampled})
}

// exit ends the process; the daemon hears of it at once.
func (en *engine) exit(poisonous bool, reason string) {
	if en.gone || en.h.life != en.life {
		return
	}
	en.gone = true
	if poisonous && en.doomed && en.busy {
		en.h.w.judge.poisonKills++
		if en.thawed {
			en.h.w.judge.lateKills++
		}
		if en.h.safe {
			en.h.w.judge.spareKilled = en.h.w.now
		}
	}
	en.h.w.say(en.h.id, "exit", "engine %v %s", en.stage.Layers, reason)
	en.h.deliver(en.life, node.EngineExited{Stage: en.stage, Run: en.run, Poisonous: poisonous, Reason: reason})
}

func (en *engine) freeze() { en.frozen++ }

func (en *engine) thaw() {
	if en.frozen--; en.frozen > 0 {
		return
	}
	if f := en.result; f != nil {
		en.result = nil
		f()
	}
	stopped := en.stopped
	en.stopped = nil
	for _, do := range stopped {
		en.whenRunning(do)
	}
}

// toy is the model that all engines compute.
func (w *world) toy() toymodel.Model {
	return toymodel.Model{Layers: w.model.Layers, Vocab: w.model.Vocab, Width: 8}
}
