package sim

import (
	"reflect"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// roaming is what a client does that comes back on any node when its owner is gone or
// silent, or for no reason.
type roaming struct {
	roams   bool
	between bool   // it has no connection
	asked   uint64 // number of its last question
	had     int    // tokens that came over this connection
	old     map[connection]bool
}

// comes is the number of the token that its connection brings next.
func (c *client) comes() int {
	if c.roams {
		return c.had
	}
	return c.got
}

// took counts a token.
func (c *client) took() {
	if !c.roams {
		c.got++
		return
	}
	c.had++
	c.got = max(c.got, c.had)
}

// connection is a host in one life.
type connection struct {
	host int
	life uint64
}

// maxReturns is how often a client asks for its session before it gives up.
const maxReturns = 8

// roam makes some clients come back anywhere.
func (w *world) roam(c *client) bool {
	if !w.sc.Roam || c.poison || w.ownRNG.IntN(3) == 0 {
		return false
	}
	c.req.Envelope = []byte{2}
	c.at, c.atLife = c.owner, c.life
	c.roams, c.must, c.old = true, false, map[connection]bool{}
	if w.ownRNG.IntN(4) == 0 { // its own network breaks
		w.after(time.Duration(w.ownRNG.Int64N(int64(2*time.Second))), func() {
			if c.between || c.done || c.cancelled || c.owner.life != c.life || c.owner.m == nil || c.owner.frozen {
				return
			}
			h, life := c.owner, c.life
			w.leave(c)
			h.deliver(life, node.Pause{Session: c.id, Client: c.number})
		})
	}
	return true
}

// leave takes a client's connection away; it comes back.
func (w *world) leave(c *client) {
	c.old[connection{c.owner.index, c.life}] = true
	c.between, c.back, c.tries = true, false, 0
	w.after(w.soon(), func() { w.reconnect(c) })
}

func (w *world) soon() time.Duration {
	return 20*time.Millisecond + time.Duration(w.ownRNG.Int64N(int64(700*time.Millisecond)))
}

// orphan lets the roaming clients of a host that died come back elsewhere.
func (w *world) orphan(h *host) {
	for _, c := range w.judge.order {
		if c.roams && !c.between && !c.done && c.owner == h {
			w.leave(c)
		}
	}
}

// tire lets the clients of a frozen host lose patience. When it wakes up it sees that
// they are gone.
func (w *world) tire(h *host) {
	life, since := h.life, w.now
	for _, c := range w.judge.order {
		if !c.roams || c.owner != h {
			continue
		}
		w.after(w.soon()*3, func() {
			if h.life == life && h.frozen && h.thawed <= since && c.owner == h && !c.between && !c.done && !c.cancelled {
				w.leave(c)
				h.deliver(life, node.Pause{Session: c.id, Client: c.number})
			}
		})
	}
}

// reconnect asks some node for the session.
func (w *world) reconnect(c *client) {
	if !c.between || c.done {
		return
	}
	var at []*host
	for _, h := range w.hosts {
		if h.m != nil && !h.frozen {
			at = append(at, h)
		}
	}
	c.tries++
	c.asked++
	if c.tries > maxReturns {
		w.judge.gone(c)
		return
	}
	if len(at) > 0 {
		h := at[w.ownRNG.IntN(len(at))]
		w.say(h.id, "return", "%s, try %d", c.id, c.tries)
		h.deliver(h.life, node.TakeOver{Session: c.id, Number: c.asked, Accepted: true})
		if w.ownRNG.IntN(3) == 0 { // and through a second connection that it gives up
			o := at[w.ownRNG.IntN(len(at))]
			o.deliver(o.life, node.TakeOver{Session: c.id, Accepted: true})
		}
	}
	asked := c.asked
	w.after(6*time.Second, func() { // no answer: it froze or died
		if c.between && c.asked == asked {
			w.reconnect(c)
		}
	})
}

// takenOver goes on with what a node says.
func (w *world) takenOver(h *host, e node.TakenOver) {
	c := w.judge.clients[e.Session]
	if c == nil || !c.between || c.asked != e.Number {
		return
	}
	c.asked++
	switch {
	case e.Err != nil && e.Err.Code == "session_not_found":
		w.judge.gone(c)
	case e.Err != nil:
		if !slices.Contains([]string{"session_no_quorum", "session_busy", "draining", "overloaded"}, e.Err.Code) {
			w.judge.fail("%s: a takeover fails with %v", c.id, e.Err)
		}
		w.after(w.soon(), func() { w.reconnect(c) })
	default:
		o := h
		if e.Owner != "" {
			o = w.byID[e.Owner]
		} else {
			w.judge.stats.TakenOver++
		}
		w.after(0, func() {
			if o.m == nil || o.frozen {
				w.after(w.soon(), func() { w.reconnect(c) })
				return
			}
			c.owner, c.life, c.between, c.back, c.had = o, o.life, false, true, 0
			c.at, c.atLife = o, o.life
			c.next, c.running = nil, nil
			c.number++
			o.deliver(o.life, node.Resume{Session: c.id, Client: c.number})
		})
	}
}

// gone ends a session that nobody knows, or that nobody gives to its client.
func (j *judge) gone(c *client) {
	plain := !slices.ContainsFunc(j.w.sc.Kinds, func(k Kind) bool {
		return slices.Contains([]Kind{Freeze, Block, Isolate, FalseDeath, SlowLink, Drain, Reset}, k)
	})
	if c.got > 0 && plain && j.w.kills <= 1 && len(j.w.hosts) >= 4 && j.w.sc.Liar == 0 {
		j.fail("%s is lost after %d tokens, and only its owner died", c.id, c.got)
	}
	c.done, c.ended = true, "lost"
	j.stats.Lost++
}

// elsewhere judges what a former owner streams to a connection that is no more.
func (j *judge) elsewhere(h *host, e node.Emit) bool {
	c := j.clients[e.Session]
	if c == nil || !c.old[connection{h.index, h.life}] || c.owner == h && c.life == h.life && !c.between {
		return false
	}
	if e.Index >= len(c.want) || c.want[e.Index].Token != e.Token {
		j.wrong(h, c, "%s, a former owner, streams token %d of %s as %d", h.id, e.Index, e.Session, e.Token)
	}
	return true
}

// evidence notes what tells an owner that its epoch is over.
func (j *judge) evidence(h *host, ev node.Event) {
	r, ok := ev.(node.Received)
	if !ok {
		return
	}
	switch m := r.Message.(type) {
	case protocol.Logged:
		for _, e := range m.Entries {
			if e.Newer > 0 {
				j.over(h, e.Session, e.Newer)
			}
		}
	case protocol.Prepared:
		if m.Epoch > m.Fence.Epoch {
			j.over(h, m.Session, m.Epoch)
		}
	}
}

// owning names a session at one life of a host.
type owning struct {
	connection
	session kevlard.SessionID
}

func (j *judge) over(h *host, id kevlard.SessionID, epoch uint64) {
	o := owning{connection{h.index, h.life}, id}
	j.newest[o] = max(j.newest[o], epoch)
}

// owns judges that an epoch has one owner, and notes at which epoch a host is.
func (j *judge) owns(h *host, id kevlard.SessionID, epoch uint64, boot kevlard.BootID) {
	key := epochOf{id, epoch}
	if was, ok := j.owners[key]; ok && was != boot {
		j.fail("%s: epoch %d has two owners, %s and %s", id, epoch, was, boot)
	}
	j.owners[key] = boot
	o := owning{connection{h.index, h.life}, id}
	if epoch > j.epochs[o] {
		// What it knew before its witnesses promised it this one is past: a bid for a later
		// epoch that few of them promised was lost by that.
		j.epochs[o], j.newest[o] = epoch, 0
	}
}

type epochOf struct {
	session kevlard.SessionID
	epoch   uint64
}

// fenced judges that an owner shows nothing after it knows of a newer epoch.
func (j *judge) fenced(h *host, id kevlard.SessionID) {
	o := owning{connection{h.index, h.life}, id}
	if at := j.epochs[o]; at > 0 && j.newest[o] > at {
		j.fail("%s streams %s in epoch %d, and knows of %d", h.id, id, at, j.newest[o])
	}
}

// replayedAnew judges the log with which a new connection begins.
func (j *judge) replayedAnew(h *host, c *client, e node.Replay) {
	c.had = len(e.Tokens)
	for i, t := range e.Tokens {
		if want, ok := c.expected(i); !ok || want.Token != t || e.Logprobs != nil && !reflect.DeepEqual(*want.Logprobs, e.Logprobs[i]) {
			j.wrong(h, c, "%s: token %d of %d is replayed as %d, want %d", c.id, i, len(c.want), t, want.Token)
		}
	}
	c.got = max(c.got, c.had)
}

// promisedTwice turns a refusal for an epoch that was promised to another into the promise
// that was made.
func (w *world) promisedTwice(ev node.Event) node.Event {
	r, ok := ev.(node.Received)
	if !ok {
		return ev
	}
	p, ok := r.Message.(protocol.Promise)
	if !ok {
		return ev
	}
	if w.promises == nil {
		w.promises = map[kevlard.SessionID]*protocol.Record{}
	}
	if p.Record != nil {
		w.promises[p.Session] = p.Record
	} else if was := w.promises[p.Session]; was != nil && p.Newer == p.Epoch {
		p.Refusal, p.Newer, p.Record = "", 0, was
		r.Message = p
	}
	return r
}

// deafOwner takes the news of newer epochs out of what an owner hears.
func deafOwner(ev node.Event) node.Event {
	r, ok := ev.(node.Received)
	if !ok {
		return ev
	}
	switch m := r.Message.(type) {
	case protocol.Logged:
		m.Entries = slices.Clone(m.Entries)
		for i := range m.Entries {
			m.Entries[i].Newer = 0
		}
		r.Message = m
	case protocol.Prepared:
		m.Epoch = 0
		r.Message = m
	}
	return r
}
