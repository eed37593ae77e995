package sim

import (
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// record is what a node last published of itself.
type record struct {
	boot     kevlard.BootID
	stages   []topology.Stage
	draining bool
	avoid    bool
	auto     bool
	failed   []topology.Failed
}

// member is one node as another sees it. State and record travel apart, each
// with the version of the truth that it shows.
type member struct {
	state    topology.State
	stateAt  uint64
	record   record
	recordAt uint64
}

// join makes a new boot and the ring known to each other.
func (h *host) join() {
	w := h.w
	h.seen[h.id] = &member{state: topology.Alive, record: h.record}
	for _, o := range w.hosts {
		if o != h && o.m != nil {
			h.meets(o)
		}
	}
	h.returns()
}

// meets lets h learn of o.
func (h *host) meets(o *host) {
	h.hears(o, topology.Alive, newsMin, newsMax)
	h.pulls(o)
}

// tell spreads a state of h to everybody.
func (h *host) tell(s topology.State, lo, hi time.Duration) {
	for _, o := range h.w.hosts {
		if o != h {
			o.hears(h, s, lo, hi)
		}
	}
}

// hears makes h see a state of o after a while, unless newer news came first.
func (h *host) hears(o *host, s topology.State, lo, hi time.Duration) {
	w := h.w
	w.news++
	version, life, of := w.news, h.life, o.life
	w.after(w.between(lo, hi), func() {
		if h.life != life || h.m == nil || s != topology.Dead && (o.life != of || h.cut || o.cut) {
			return
		}
		if m := h.member(o.id); m.stateAt < version {
			m.state, m.stateAt = s, version
			h.look()
		}
	})
}

// pulls makes h see o's present record after a while.
func (h *host) pulls(o *host) {
	w := h.w
	w.news++
	version, life, r, of := w.news, h.life, o.record, o.life
	w.after(w.between(newsMin, newsMax), func() {
		if h.life != life || h.m == nil || h.cut || o.cut || o.life != of {
			return
		}
		if m := h.member(o.id); m.recordAt < version {
			m.record, m.recordAt = r, version
			h.look()
		}
	})
}

func (h *host) member(id kevlard.NodeID) *member {
	m := h.seen[id]
	if m == nil {
		m = &member{state: topology.Alive}
		h.seen[id] = m
	}
	return m
}

// publish replaces h's record.
func (h *host) publish(p node.Publish) {
	h.record = record{boot: h.boot, stages: p.Stages, draining: p.Draining, avoid: p.Avoid, auto: h.auto, failed: p.Failed}
	h.seen[h.id].record = h.record
	life := h.life
	h.w.after(0, func() {
		if h.life == life {
			h.look()
		}
	})
	for _, o := range h.w.hosts {
		if o != h && o.m != nil {
			o.pulls(h)
		}
	}
}

// look gives h's machine its present view.
func (h *host) look() {
	v := topology.View{Nodes: make([]topology.Node, 0, len(h.seen))}
	for _, id := range h.w.names {
		m := h.seen[id]
		if m == nil {
			continue
		}
		n := topology.Node{ID: id, Boot: m.record.boot, Role: "host", State: m.state, Avoid: m.record.avoid, Stages: m.record.stages}
		if m.record.draining && m.state == topology.Alive {
			n.State = topology.Draining
		}
		if len(m.record.stages) > 0 {
			n.Models = h.w.models
		}
		if m.record.auto {
			n.Models, n.Capacity = []topology.Model{h.w.planned()}, h.w.capacity()
			n.Failed = m.record.failed
		}
		v.Nodes = append(v.Nodes, n)
	}
	h.deliver(h.life, node.ViewChanged{View: v})
}

// dies lets every live node hear of a death that lasts long enough.
func (h *host) dies() {
	life := h.life
	h.deathSeen(func() bool { return h.life == life })
}

// hangs is dies for a freeze: the ring cannot tell the two apart.
func (h *host) hangs() {
	life, since := h.life, h.w.now
	h.deathSeen(func() bool { return h.life == life && h.frozen && h.thawed <= since })
}

func (h *host) deathSeen(still func() bool) {
	w := h.w
	for _, o := range w.hosts {
		if o == h || o.m == nil {
			continue
		}
		life := o.life
		w.after(w.between(deathMin, deathMax), func() {
			if o.life == life && o.m != nil && still() {
				o.hears(h, topology.Dead, 0, 0)
			}
		})
	}
}

// returns lets everybody see that h lives.
func (h *host) returns() {
	h.tell(topology.Alive, newsMin, 2*newsMax)
	for _, o := range h.w.hosts {
		if o != h && o.m != nil {
			o.pulls(h)
		}
	}
}

// isolate cuts h off from everybody, in the ring too.
func (h *host) isolate() {
	if h.cut {
		return
	}
	w := h.w
	w.say(h.id, "isolate", "")
	h.cut = true
	since := w.now
	for _, o := range w.hosts {
		if o == h {
			continue
		}
		p, _ := w.pairOf(h, o)
		w.block(p, 0)
		w.block(p, 1)
		for _, x := range [][2]*host{{h, o}, {o, h}} {
			life := x[0].life
			w.after(w.between(deathMin, deathMax), func() {
				if h.cut && x[0].life == life && x[0].m != nil && w.now.Sub(since) >= deathMin {
					x[0].hears(x[1], topology.Dead, 0, 0)
				}
			})
		}
	}
}

// rejoin ends an isolation.
func (h *host) rejoin() {
	if !h.cut {
		return
	}
	w := h.w
	w.say(h.id, "rejoin", "")
	h.cut = false
	for _, o := range w.hosts {
		if o == h {
			continue
		}
		p, _ := w.pairOf(h, o)
		w.unblock(p, 0)
		w.unblock(p, 1)
		if p.up && (h.m == nil || o.m == nil || p.lives != [2]uint64{p.ends[0].life, p.ends[1].life}) {
			w.disconnect(p, "reset") // a packet reaches a host that knows no such connection
		}
	}
	if h.m == nil {
		return
	}
	for _, o := range w.hosts {
		if o != h && o.m != nil {
			h.meets(o)
		}
	}
	h.returns()
}
