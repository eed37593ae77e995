package sim

import (
	"reflect"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// vanish lets some clients go and come back, to the owner or to another node, at any
// time: while the session waits for a route, prepares, recovers or has ended.
func (w *world) vanish(c *client) {
	c.at, c.atLife = c.owner, c.life
	if c.poison || w.goneRNG.IntN(4) > 0 {
		return
	}
	c.req.Envelope = []byte{1}
	for range 1 + w.goneRNG.IntN(3) {
		gone := time.Duration(w.goneRNG.Int64N(int64(1500 * time.Millisecond)))
		back := gone + time.Duration(w.goneRNG.Int64N(int64(time.Second)))
		w.after(gone, func() {
			if !c.gone && !c.done && !c.cancelled && c.at.life == c.atLife && c.at.m != nil && !c.at.frozen {
				c.gone = true
				c.at.deliver(c.atLife, node.Pause{Session: c.id, Client: c.number})
			}
		})
		w.after(back, func() { w.comeBack(c) })
	}
}

// comeBack resumes a session whose client went away or lost the last bytes.
func (w *world) comeBack(c *client) {
	ended := c.done && c.reason == c.ended
	switch {
	case c.cancelled || !c.gone && !ended || c.owner.life != c.life || c.owner.m == nil:
		return
	case c.owner.frozen:
		w.after(100*time.Millisecond, func() { w.comeBack(c) })
		return
	}
	at := c.owner
	if others := w.others(c); len(others) > 0 && w.goneRNG.IntN(2) == 0 {
		at = others[w.goneRNG.IntN(len(others))]
	}
	if was, life, number := c.at, c.atLife, c.number; was.m != nil && was.life == life && !was.frozen {
		w.after(5*time.Millisecond, func() { // what is said of its last connection comes late
			if was.m != nil && was.life == life {
				was.deliver(life, node.Pause{Session: c.id, Client: number})
			}
		})
	}
	c.number++
	c.gone, c.back, c.done, c.running, c.replayed = false, true, false, nil, 0
	c.at, c.atLife = at, at.life
	if at == c.owner {
		at.deliver(at.life, node.Resume{Session: c.id, Client: c.number})
	} else {
		c.far = true
		at.deliver(at.life, node.Follow{Session: c.id, Owner: c.owner.id, Client: c.number})
	}
}

// others are the nodes besides the owner that a client could come back to.
func (w *world) others(c *client) []*host {
	return slices.DeleteFunc(slices.Clone(w.hosts), func(h *host) bool { return h == c.owner || h.m == nil || h.frozen })
}

// replayed judges tokens that a client gets again or from another node: none is wrong,
// and the owner's log is whole.
func (j *judge) replayed(h *host, e node.Replay) {
	c := j.clients[e.Session]
	switch {
	case c != nil && c.ended == "lost":
		return // the owner died while this was on its way
	case c == nil || c.at != h || c.atLife != h.life || h == c.owner && !c.back:
		j.fail("%s replays %s, which nobody resumed there", h.id, e.Session)
		return
	case c.roams:
		j.stats.Resumed++
		c.back = false
		j.replayedAnew(h, c, e)
		return
	case h == c.owner && (len(e.Tokens) < c.got || len(e.Tokens) > c.got && !c.far): // what was on its way to another node is more
		j.fail("%s: %d tokens are replayed of %d", c.id, len(e.Tokens), c.got)
		return
	}
	if c.back {
		j.stats.Resumed++
		if h != c.owner {
			j.stats.Followed++
		}
	}
	c.back = false
	for i, t := range e.Tokens {
		got := kevlard.Sampled{Token: t}
		if e.Logprobs != nil {
			got.Logprobs = &e.Logprobs[i]
		}
		if want, ok := c.expected(c.replayed); !ok || !reflect.DeepEqual(got, want) {
			j.wrong(h, c, "%s: token %d is replayed as %v, which is not that of the fault-free run", c.id, c.replayed, got)
		}
		c.replayed++
	}
	c.got = max(c.got, c.replayed)
}

// refused reports whether a client that came back is to try again: its session could
// not be had there now.
func (j *judge) refused(h *host, c *client, e node.Finish) bool {
	if e.Reason == "error" && e.Err != nil && slices.Contains([]string{"session_busy", "session_not_found", node.CodeOwnerLost}, e.Err.Code) && c.req.Envelope != nil {
		if j.w.sc.Liar != 0 && e.Err.Code == "session_not_found" { // its answer was complete, and is not shown again
			c.done, c.ended = true, "lost"
			j.stats.Lost++
			return true
		}
		if c.tries++; c.tries > maxTries {
			j.fail("%s: %v, after %d tries", c.id, e.Err, c.tries)
			return false
		}
		c.gone, c.back = true, false
		j.w.after(200*time.Millisecond, func() { j.w.comeBack(c) })
		return true
	}
	return false
}

// stranded brings back the clients that were connected to a dead node and are not lost.
func (j *judge) stranded(h *host) {
	for _, c := range j.order {
		if c.at == h && c.owner != h && !c.done && !c.gone {
			c.gone, c.back = true, false
			j.w.after(200*time.Millisecond, func() { j.w.comeBack(c) })
		}
	}
}
