package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// client is one session as its client sees it, with the answer it must get.
type client struct {
	id     kevlard.SessionID
	req    node.Request
	owner  *host
	life   uint64 // of the owner
	poison bool   // its prompt kills engines
	must   bool   // it has to end without an error

	want   []kevlard.Sampled // what a fault-free run streams
	reason string            // how that run ends

	submitted kevlard.Instant
	got       int
	cancelled bool
	gone      bool   // it went away, and
	back      bool   // it came back, which nobody has answered yet
	number    uint64 // of its connection
	at        *host
	atLife    uint64 // of the node that it is connected to
	replayed  int    // tokens that it got since it came back
	tries     int    // to come back, that failed
	far       bool   // it was connected to another node than the owner
	done      bool
	ended     string // reason, or "lost" with the owner
	err       *kevlard.Failure
	failovers []kevlard.Failover
	fence     kevlard.Fence // the newest that the owner prepared

	next, running map[kevlard.Layers]kevlard.NodeID // the route prepared last, and the one started last
	roaming

	known int // tokens, when it was prepared

	crowd  bool
	reused int // positions of its prompt that were found
}

// submits plans the run's sessions.
func (w *world) submits() {
	for i := range w.sc.Sessions {
		id := kevlard.SessionID(fmt.Sprintf("s%d", i))
		at := w.between(w.sc.Start+300*time.Millisecond, w.sc.Horizon)
		poison := w.sc.Poison > 0 && i < w.sc.Poison
		w.after(at, func() { w.submit(id, poison, false) })
	}
	for i := range w.sc.Crowd {
		id := kevlard.SessionID(fmt.Sprintf("c%02d", w.copyRNG.IntN(90)+100*i)) // the first is not the least
		w.after(crowdAt+time.Duration(w.copyRNG.Int64N(int64(crowdFor))), func() { w.submit(id, false, true) })
	}
}

// submit sends one request; one of a crowd has a client that stays.
func (w *world) submit(id kevlard.SessionID, poison, crowd bool) {
	var at []*host
	for _, h := range w.hosts {
		if h.m != nil && !h.frozen && (h.safe || !w.sc.SafeOwners) {
			at = append(at, h)
		}
	}
	if len(at) == 0 {
		return
	}
	owner := at[w.rng.IntN(len(at))]
	c := &client{id: id, owner: owner, life: owner.life, poison: poison, crowd: crowd, submitted: w.now}
	c.req = w.request(poison)
	if crowd {
		opening := make([]kevlard.Token, w.sc.Opening)
		for i := range opening {
			opening[i] = kevlard.Token((i*i + 5*i) % w.model.Vocab)
		}
		c.req.Prompt = append(opening, c.req.Prompt[:min(len(c.req.Prompt), 9)]...)
	}
	if !poison {
		c.want, c.reason = w.expect(c.req)
	}
	c.at, c.atLife = owner, owner.life
	c.must = crowd && w.sc.Faults == 0 || w.sc.Gentle && owner.safe && !poison
	if !crowd && !w.roam(c) {
		w.vanish(c)
	}
	w.judge.clients[id] = c
	w.judge.order = append(w.judge.order, c)
	w.say(owner.id, "submit", "%s %d+%d", id, len(c.req.Prompt), c.req.MaxTokens)
	owner.deliver(owner.life, node.Submit{Session: id, Request: c.req, Client: c.number})
	if w.sc.Crowd == 0 && w.chance(6) {
		w.after(w.between(0, 1500*time.Millisecond), func() {
			if c.done || c.gone || c.back || c.between || !c.roams && c.at != owner || c.owner.life != c.life || c.owner.frozen {
				return
			}
			c.cancelled = true
			c.owner.deliver(c.life, node.Cancel{Session: id, Client: c.number})
		})
	}
}

// request draws what a client asks for. Some prompts begin alike.
func (w *world) request(poison bool) node.Request {
	r := node.Request{Model: w.model.ID, MaxTokens: 1 + w.rng.IntN(w.sc.MaxTokens)}
	n := 1 + w.rng.IntN(40)
	if w.chance(3) {
		n = 1 + w.rng.IntN(400)
	}
	if w.chance(8) {
		n = 65 // a chunk and one token more
	}
	for i := range n {
		t := kevlard.Token(i)
		if i > 0 && !w.chance(4) {
			t = kevlard.Token(w.rng.IntN(w.model.Vocab))
		}
		r.Prompt = append(r.Prompt, t%kevlard.Token(w.model.Vocab))
	}
	w.share(&r)
	if poison {
		r.Prompt[w.rng.IntN(n)] = kevlard.Token(w.model.Vocab)
	}
	if w.chance(2) {
		r.Sampling = kevlard.Sampling{Temperature: 0.7, Seed: w.rng.Uint64()}
	}
	if w.chance(4) {
		r.EOG = []kevlard.Token{kevlard.Token(w.rng.IntN(w.model.Vocab)), 7}
		r.IgnoreEOG = w.chance(3)
		r.MinTokens = w.rng.IntN(5)
	}
	// Not drawn, so that old seeds still mean the same runs.
	if n%3 == 0 {
		r.Sampling.Logprobs, r.Sampling.TopLogprobs = true, n/3%(kevlard.MaxTopLogprobs+1)
	}
	return r
}

// share lets some prompts begin like others and share their KV.
func (w *world) share(r *node.Request) {
	if !w.sc.Shared || w.copyRNG.IntN(3) == 0 {
		return
	}
	r.Salt = []string{"tenant", "other"}[w.copyRNG.IntN(2)]
	for i := range min(len(r.Prompt), 1+w.copyRNG.IntN(200)) {
		r.Prompt[i] = kevlard.Token((i*i + 3) % w.model.Vocab)
	}
}

// expect computes the fault-free answer.
func (w *world) expect(r node.Request) ([]kevlard.Sampled, string) {
	want := w.toy().ReferenceSampled(r.Prompt, r.MaxTokens, r.Sampling)
	if !r.IgnoreEOG {
		for i, t := range want {
			if i >= r.MinTokens && slices.Contains(r.EOG, t.Token) {
				return want[:i], "stop"
			}
		}
	}
	return want, "length"
}
