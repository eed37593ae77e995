package daemon

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/node"
)

// copies carries out what the machine decides about KV that is kept for others.
// Bytes pass it by: from an engine to the mover, from the mover to the block store,
// from there to an engine.
type copies struct {
	mover  mover.Mover // nil: this node sends and takes no KV
	store  *kvstream.Store
	keeper *keeper
	sender *sender
}

// bindCopies makes the block store, and the mover unless this node has none.
func (d *Daemon) bindCopies(deps Deps) error {
	c := &d.copies
	c.store = kvstream.NewStore(d.cfg.KV.BlockTokens, d.cfg.KV.Bytes)
	c.keeper = newKeeper(c.store, d.codec, d.post, d.rejectKV)
	c.sender = newSender(c.store, d.codec, d.post, d.rejectKV)
	c.sender.sent = func(to kevlard.NodeID, n int) {
		d.metrics.replicated.WithLabelValues(cmp.Or(d.transportTo(to), d.cfg.transport())).Add(float64(n))
	}
	d.engines.copies, d.engines.reject = c, d.rejectKV
	if deps.Mover != nil {
		if err := d.bindMover(deps, sorter{c.keeper, &d.weights}); err != nil {
			return err
		}
	}
	d.bindWeights(deps)
	return nil
}

// rejectKV counts KV that was not used. One event a minute, peer and reason is
// enough.
func (d *Daemon) rejectKV(reason string, from kevlard.NodeID, detail string) {
	d.metrics.rejected.WithLabelValues(reason).Inc()
	if d.seldom.allow("kv " + reason + " " + string(from)) {
		d.report(node.Report{Type: "kv-rejected", Node: from, Cause: reason, Detail: detail})
	}
}

// run moves KV until ctx ends, and then gives everything back: memory, buffers and
// connections. Nobody may use them any more then but peers, whose pieces end.
func (c *copies) run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { c.sender.run(ctx) })
	all.Go(func() { c.keeper.run(ctx) })
	<-ctx.Done()
	var err error
	if c.mover != nil {
		err = c.mover.Close()
	}
	all.Wait()
	return errors.Join(err, c.keeper.close())
}
