package membership

import (
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kevlard/kevlard"
)

// delegate is what memberlist calls, mostly with its node lock held. It never
// calls memberlist and never blocks: it copies into the table or the inbox.
type delegate struct{ r *Ring }

// NotifyAlive implements memberlist.AliveDelegate: who may speak under a name.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	return d.r.table.admit(kevlard.NodeID(n.Name), m)
}

// NotifyJoin implements memberlist.EventDelegate.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.NotifyUpdate(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d delegate) NotifyUpdate(n *memberlist.Node) {
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return // NotifyAlive refused it before; nothing is stored without meta
	}
	d.r.table.alive(kevlard.NodeID(n.Name), n.Address(), m, time.Now())
}

// NotifyLeave implements memberlist.EventDelegate.
func (d delegate) NotifyLeave(n *memberlist.Node) {
	if d.r.table.lost(kevlard.NodeID(n.Name), time.Now()) {
		time.AfterFunc(d.r.table.vouch/4, d.r.expire)
	}
	d.r.lonely()
}

// NotifyConflict implements memberlist.ConflictDelegate: the same peer speaks
// from a second address while the first is not yet dead, as after a move. The
// newcomer keeps asking until the old address is declared dead.
func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.r.offer(conflict{name: existing.Name, have: existing.Address(), other: other.Address()})
}

// conflict is NotifyConflict's message to the loop.
type conflict struct{ name, have, other string }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte { return d.r.encodedMeta() }

// NotifyMsg implements memberlist.Delegate. A message that does not fit the
// inbox is dropped: claims are asked again, gone messages come by push/pull.
func (d delegate) NotifyMsg(b []byte) {
	if len(b) <= maxMessage {
		d.r.offer(slices.Clone(b))
	}
}

// GetBroadcasts implements memberlist.Delegate.
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.r.rumours.GetBroadcasts(overhead, limit)
}

// LocalState implements memberlist.Delegate.
func (d delegate) LocalState(bool) []byte {
	return encode(kindSync, d.r.table.sync(time.Now()))
}

// MergeRemoteState implements memberlist.Delegate: the dead and the gone that
// another node knows.
func (d delegate) MergeRemoteState(b []byte, _ bool) {
	v, err := decode(b)
	if err != nil {
		d.r.offer(badMessage{err})
		return
	}
	s, ok := v.(syncState)
	if !ok {
		return
	}
	holder, news := d.r.table.merge(s, time.Now())
	for _, g := range news {
		d.r.pass(g)
	}
	if holder != nil {
		d.r.offer(*holder)
	}
}

// badMessage is a message that could not be read.
type badMessage struct{ err error }

// AckPayload implements memberlist.PingDelegate: who answers pings says which life it is.
func (d delegate) AckPayload() []byte { return []byte(d.r.cfg.Meta.Boot) }

// NotifyPingComplete implements memberlist.PingDelegate.
func (d delegate) NotifyPingComplete(n *memberlist.Node, rtt time.Duration, payload []byte) {
	d.r.table.rtt(kevlard.NodeID(n.Name), rtt)
	if len(payload) <= maxBoot {
		d.r.table.heard(kevlard.NodeID(n.Name), kevlard.BootID(payload), time.Now())
	}
}

// rumour is one gone message on its way.
type rumour struct {
	key bootOf
	msg []byte
}

// Invalidates implements memberlist.Broadcast.
func (a rumour) Invalidates(b memberlist.Broadcast) bool {
	o, ok := b.(rumour)
	return ok && o.key == a.key
}

// Message implements memberlist.Broadcast.
func (a rumour) Message() []byte { return a.msg }

// Finished implements memberlist.Broadcast.
func (a rumour) Finished() {}
