package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// faults plans what goes wrong.
func (w *world) faults() {
	if w.sc.InTurn > 0 {
		w.inTurn()
		return
	}
	for range w.sc.Faults {
		k := w.sc.Kinds[w.rng.IntN(len(w.sc.Kinds))]
		w.after(w.between(w.sc.Start+100*time.Millisecond, w.sc.Horizon), func() { w.strike(k) })
	}
}

// victim draws a host that may be hit; nil if there is none.
func (w *world) victim() *host {
	var may []*host
	for _, h := range w.hosts {
		if !h.safe && h.m != nil {
			may = append(may, h)
		}
	}
	if len(may) == 0 {
		return nil
	}
	return may[w.rng.IntN(len(may))]
}

// long draws how long a fault lasts: mostly short, sometimes beyond every
// deadline.
func (w *world) long() time.Duration {
	if w.chance(4) {
		return w.between(time.Second, 14*time.Second)
	}
	return w.between(10*time.Millisecond, 2*time.Second)
}

func (w *world) strike(k Kind) {
	h := w.victim()
	if h == nil {
		return
	}
	w.say(h.id, "fault", "%s", k)
	w.fold(uint64(k), uint64(h.index))
	switch k {
	case Kill:
		h.kill()
		w.after(w.long(), func() {
			if h.m == nil {
				h.start()
			}
		})
	case Freeze:
		life := h.life
		h.freeze()
		w.after(w.long(), func() {
			if h.life == life {
				h.thaw()
			}
		})
	case Isolate:
		h.isolate()
		w.after(w.long(), h.rejoin)
	case FalseDeath:
		w.falseDeath(h)
	case Drain:
		life := h.life
		begin, end := node.Event(node.Drain{}), node.Event(node.Drain{Undo: true})
		if kind := h.life % 3; kind > 0 { // its devices are it, and get well again
			begin, end = node.Health{Avoid: true, Drain: kind == 1, Key: "gpu", Reason: "a GPU is hot"}, node.Health{}
		}
		h.deliver(life, begin)
		w.after(w.long(), func() { h.deliver(life, end) })
	case Reset, Block, SlowLink:
		w.strikeLink(k, h)
	case BulkReset, BulkHole, SlowBulk, Corrupt:
		w.strikeLane(k)
	case Rot:
		w.strikeMemory()
	default:
		w.strikeEngine(k, h)
	}
}

// strikeLink hits a link of h. Links between safe hosts may only be reset, for
// they come back at once.
func (w *world) strikeLink(k Kind, h *host) {
	o := w.hosts[w.rng.IntN(len(w.hosts))]
	if k == Reset {
		h = w.hosts[w.rng.IntN(len(w.hosts))]
	}
	if o == h {
		return
	}
	p, s := w.pairOf(h, o)
	switch k {
	case Reset:
		w.disconnect(p, "reset")
	case Block:
		both, d := w.chance(2), w.rng.IntN(2)
		w.say(h.id, "block", "%s both=%v side=%d", o.id, both, d)
		w.block(p, d)
		if both {
			w.block(p, 1-d)
		}
		w.after(w.long(), func() {
			w.unblock(p, d)
			if both {
				w.unblock(p, 1-d)
			}
		})
	case SlowLink:
		more := w.between(20*time.Millisecond, 400*time.Millisecond)
		p.sides[s].minimum += more
		p.sides[1-s].mean += more / 4
		w.after(w.long(), func() {
			p.sides[s].minimum -= more
			p.sides[1-s].mean -= more / 4
		})
	}
}

// strikeLane hits a connection that carries KV, if there is one.
func (w *world) strikeLane(k Kind) {
	var used []*lane
	for _, a := range w.hosts {
		for _, b := range w.hosts {
			if a != b && w.laneOf(a, b).used {
				used = append(used, w.laneOf(a, b))
			}
		}
	}
	if len(used) == 0 {
		return
	}
	l := used[w.copyRNG.IntN(len(used))]
	w.say(l.from.id, "lane", "%s to %s", k, l.to.id)
	switch k {
	case BulkReset:
		w.breakLane(l)
	case BulkHole:
		w.hole(l)
		w.after(w.long(), func() {
			l.holes--
			w.open(l)
		})
	case SlowBulk:
		l.slow, l.slowUntil = 10+w.copyRNG.IntN(1000), w.now.Add(w.long())
	case Corrupt:
		l.corrupt++
		w.after(w.long(), func() { l.corrupt-- })
	}
}

// strikeMemory damages stored KV of some host, a position here and there.
func (w *world) strikeMemory() {
	for range 4 {
		h := w.hosts[w.copyRNG.IntN(len(w.hosts))]
		if h.m == nil {
			continue
		}
		for _, key := range h.held() {
			slots := slices.Sorted(maps.Keys(h.memory.slots[key]))
			if len(slots) == 0 {
				continue
			}
			s := h.memory.at(key, slots[w.copyRNG.IntN(len(slots))], w.copyRNG.IntN(h.kv.BlockTokens))
			if s.values != nil {
				h.memory.rot(key, s, w.copyRNG.IntN(8*len(s.values)))
			}
		}
	}
}

// strikeEngine hits an engine of h.
func (w *world) strikeEngine(k Kind, h *host) {
	held := h.held()
	if len(held) == 0 {
		return
	}
	en := h.engines[held[w.rng.IntN(len(held))]]
	if en == nil || en.gone {
		return
	}
	switch k {
	case EngineKill:
		en.exit(false, "signal: killed")
	case EngineAbort:
		en.exit(true, "signal: aborted")
	case EngineFreeze:
		en.freeze()
		w.after(w.long(), en.thaw)
	case SlowEngine:
		factor := 2 + w.rng.IntN(40)
		en.slow *= factor
		w.after(w.long(), func() { en.slow /= factor })
	}
}

// falseDeath lets some nodes believe for a moment that h is dead.
func (w *world) falseDeath(h *host) {
	for _, o := range w.hosts {
		if o == h || o.m == nil || w.chance(2) {
			continue
		}
		state := topology.Dead
		if w.chance(2) {
			state = topology.Suspect
		}
		o.hears(h, state, 0, newsMax)
		life, of := o.life, h.life
		w.after(w.between(newsMax, 1500*time.Millisecond), func() {
			if o.life == life && h.life == of && h.m != nil && !h.frozen && !h.cut {
				o.hears(h, topology.Alive, 0, newsMax)
			}
		})
	}
}

// heal ends every fault that is left at the horizon and starts what is down.
func (w *world) heal() {
	w.say("", "heal", "")
	for _, h := range w.hosts {
		h.rejoin()
		h.thaw()
		if h.m == nil {
			h.start()
		}
		h.deliver(h.life, node.Drain{Undo: true})
	}
	for i := range w.hosts {
		for j := i + 1; j < len(w.hosts); j++ {
			p := w.pairs[[2]int{i, j}]
			w.connect(p)
			w.healLane(p.lanes[0])
			w.healLane(p.lanes[1])
		}
	}
}
