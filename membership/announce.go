package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kevlard/kevlard"
)

// announceWait bounds how long one announcement may take. memberlist's
// UpdateNode returns only when the rumour was sent often enough.
const announceWait = time.Second

// SetRecord announces that our node record is now at version. It never blocks;
// versions set in quick succession are announced as one.
func (r *Ring) SetRecord(version uint64) {
	r.metaMu.Lock()
	r.meta.Record = max(r.meta.Record, version) // callers may overtake one another
	r.metaMu.Unlock()
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

func (r *Ring) encodedMeta() []byte {
	r.metaMu.Lock()
	defer r.metaMu.Unlock()
	b, err := r.meta.MarshalBinary()
	if err != nil {
		panic(fmt.Sprintf("membership: meta was valid in New and is not now: %v", err))
	}
	return b
}

// announce gossips our meta whenever it is dirty.
func (r *Ring) announce(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.dirty:
		}
		r.life.Lock()
		if !r.left.Load() {
			if err := r.ml.UpdateNode(announceWait); err != nil {
				// Not lost: push/pull carries it too.
				r.cfg.Log.Debug("announcing our meta took long", "err", err)
			}
		}
		r.life.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.p.announce):
		}
	}
}

// Leave says goodbye, so that others show us as left, free our name and don't
// wait for a death. It returns when the goodbye was gossiped, or with an error
// when ctx ends first: those who missed it will show us as dead. The ring goes on
// gossiping until Run's context ends, but joins no more; to come back, make a
// new Ring.
func (r *Ring) Leave(ctx context.Context) error {
	r.life.Lock()
	defer r.life.Unlock()
	if r.left.Load() {
		return nil
	}
	if r.closed {
		return errors.New("leave the ring: it is shut down already")
	}
	r.left.Store(true)
	r.metaMu.Lock()
	r.meta.Leaving = true
	g := gone{Name: r.cfg.Name, Boot: r.meta.Boot}
	r.metaMu.Unlock()
	r.spread(g)
	r.tell(g)
	err := r.ml.UpdateNode(budget(ctx, announceWait))
	if err == nil {
		err = ctx.Err()
	}
	// Leave even if the flag was not heard by all: the gone message backs it.
	if lerr := r.ml.Leave(budget(ctx, r.p.tcp)); lerr != nil || err != nil {
		return fmt.Errorf("leave ring %s: some members may not have heard and will show this node as dead: %w",
			r.cfg.Ring, errors.Join(err, lerr))
	}
	return nil
}

// budget is what remains of ctx, at most limit and at least a millisecond, since
// memberlist takes zero for "for ever".
func budget(ctx context.Context, limit time.Duration) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at))
	}
	return max(limit, time.Millisecond)
}

// ForceLeave drops a dead node from this view and tells the others to do the
// same, which frees its name for another peer. A node that is alive here is
// refused: let it leave.
func (r *Ring) ForceLeave(name kevlard.NodeID) error {
	m, ok := r.table.get(name)
	switch {
	case !ok:
		return fmt.Errorf("force-leave %s: no such member in ring %s; see `kevlard members`", name, r.cfg.Ring)
	case name == r.cfg.Name:
		return fmt.Errorf("force-leave %s: that is this node; use leave", name)
	case m.State == StateAlive:
		return fmt.Errorf("force-leave %s: it is alive at %s; run leave there, or stop it and wait until it is dead", name, m.Addr)
	}
	g := gone{Name: name, Boot: m.Meta.Boot, Forced: true}
	if !r.table.farewell(g, time.Now()) {
		if m, ok = r.table.get(name); ok && m.State == StateAlive {
			return fmt.Errorf("force-leave %s: it has just come back at %s", name, m.Addr)
		}
	}
	r.pass(g)
	r.tell(g)
	return nil
}

// spread queues a gone message for gossip.
func (r *Ring) spread(g gone) {
	r.rumours.QueueBroadcast(rumour{key: bootOf{g.Name, g.Boot}, msg: encode(kindGone, g)})
	r.rumours.Prune(maxQueued)
}

// pass acts on a gone message that is news, and gossips it on.
func (r *Ring) pass(g gone) {
	if g.Forced {
		r.forget(g.Name)
	}
	r.spread(g)
}

// tell sends a gone message to the first members directly: a leaving node may
// be off before gossip has carried it everywhere. Losses are made good by
// gossip and push/pull.
func (r *Ring) tell(g gone) {
	msg, n := encode(kindGone, g), 0
	for _, m := range r.table.members() {
		if m.State != StateAlive || m.Name == r.cfg.Name || n == maxFarewell {
			continue
		}
		n++
		if err := r.ml.SendToAddress(memberlist.Address{Addr: m.Addr, Name: string(m.Name)}, msg); err != nil {
			r.cfg.Log.Debug("telling a member directly failed", "node", m.Name, "err", err)
		}
	}
}
