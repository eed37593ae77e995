package sim

import (
	"fmt"
	"reflect"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// vanish lets some clients go and come back to the owner, at any time: while the session
// waits for a route, prepares, recovers or has ended.
func (w *world) vanish(c *client) {
	if c.poison || w.goneRNG.IntN(4) > 0 {
		return
	}
	c.req.Envelope = []byte{1}
	for range 1 + w.goneRNG.IntN(3) {
		gone := time.Duration(w.goneRNG.Int64N(int64(1500 * time.Millisecond)))
		back := gone + time.Duration(w.goneRNG.Int64N(int64(time.Second)))
		w.after(gone, func() {
			if w.sees(c) && !c.gone && !c.done {
				c.gone = true
				c.owner.deliver(c.life, node.Pause{Session: c.id})
			}
		})
		w.after(back, func() { w.comeBack(c) })
	}
}

// comeBack resumes a session whose client went away or lost the last bytes.
func (w *world) comeBack(c *client) {
	switch {
	case c.owner.life == c.life && c.owner.frozen:
		w.after(100*time.Millisecond, func() { w.comeBack(c) })
	case w.sees(c) && (c.gone || c.done && c.reason == c.ended):
		c.gone, c.back, c.running = false, true, nil
		c.owner.deliver(c.life, node.Resume{Session: c.id})
	}
}

// sees reports whether the owner would act on its client now.
func (w *world) sees(c *client) bool {
	return c.owner.life == c.life && c.owner.m != nil && !c.owner.frozen && !c.cancelled
}

// replayed judges the log of a resumed session: nothing is missing, nothing is new.
func (j *judge) replayed(h *host, e node.Replay) {
	c := j.clients[e.Session]
	if c == nil || c.owner != h || !c.back {
		j.fail("%s replays %s, which nobody resumed", h.id, e.Session)
		return
	}
	j.stats.Resumed++
	c.back, c.done = false, false
	if len(e.Tokens) != c.got {
		j.fail("%s: %d tokens are replayed of %d", c.id, len(e.Tokens), c.got)
		return
	}
	for i, t := range e.Tokens {
		got := kevlard.Sampled{Token: t}
		if e.Logprobs != nil {
			got.Logprobs = &e.Logprobs[i]
		}
		if !reflect.DeepEqual(got, c.want[i]) {
			j.fail("%s: token %d is replayed as %s, want %s", c.id, i, fmt.Sprint(got), fmt.Sprint(c.want[i]))
			return
		}
	}
}
