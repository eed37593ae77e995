package sim

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// host is a machine with a daemon on it; the daemon may be dead.
type host struct {
	w      *world
	id     kevlard.NodeID
	index  int
	stages []node.Assigned
	auto   bool // it takes the stages of the plan
	cells  int  // KV positions of each engine
	safe   bool // no fault is aimed at it

	life   uint64 // grows with every boot and kill: what was meant for another is dropped
	boot   kevlard.BootID
	m      *node.Machine // nil: dead
	frozen bool
	kv     index.Config
	cut    bool // isolated from everybody
	inbox  []node.Event

	wakeAt  kevlard.Instant // of the wake that is queued
	stuck   kevlard.Instant
	spins   int
	effects []node.Effect
	engines map[kevlard.StageKey]*engine
	memory  *memory // of copies
	pieces  map[uint64]*piece
	pieceID uint64
	sending int      // stored pieces that are being read
	stopped []func() // what its threads go on with when it thaws
	record  record
	seen    map[kevlard.NodeID]*member

	diedAt kevlard.Instant
	thawed kevlard.Instant
}

// start boots a daemon.
func (h *host) start() {
	w := h.w
	h.life++
	h.boot = kevlard.BootID(fmt.Sprintf("%s.%06d", h.id, h.life))
	var secret [32]byte
	if w.sc.Audit {
		secret = sha256.Sum256([]byte(h.boot))
	}
	var timing node.Timing
	if w.sc.Liar != 0 { // found late enough that it has worked for others by then
		timing.Audit.First = 3 * time.Second
	}
	h.m = node.New(node.Config{Timing: timing, AuditSeed: secret, Self: h.id, Boot: h.boot, Stages: h.stages, Limits: w.sc.Limits, KV: h.kv, Standbys: w.sc.Standbys, Auto: h.auto, Goal: topology.Goal{Stages: len(w.sc.Ranges)}})
	h.frozen, h.inbox, h.wakeAt = false, nil, kevlard.Never
	h.engines = map[kevlard.StageKey]*engine{}
	h.memory, h.pieces, h.stopped = newMemory(h.kv.BlockTokens), map[uint64]*piece{}, nil
	h.sending = 0
	h.seen = map[kevlard.NodeID]*member{}
	h.record = record{boot: h.boot, auto: h.auto}
	h.thawed = w.now
	w.say(h.id, "boot", "%s", h.boot)
	h.join()
	h.step(node.Wake{})
	for _, o := range w.hosts {
		if o != h {
			p, _ := w.pairOf(h, o)
			life := h.life
			w.after(w.between(50*time.Millisecond, 300*time.Millisecond), func() {
				if h.life == life {
					w.connect(p)
				}
			})
		}
	}
}

// kill ends a daemon and its engines; peers see their connections reset.
func (h *host) kill() {
	if h.m == nil {
		return
	}
	w := h.w
	w.say(h.id, "kill", "%s", h.boot)
	h.m, h.frozen, h.inbox, h.engines, h.seen = nil, false, nil, nil, nil
	h.memory, h.pieces, h.stopped = nil, nil, nil
	h.life++
	h.diedAt = w.now
	for _, o := range w.hosts {
		if o != h {
			p, _ := w.pairOf(h, o)
			if h.cut { // nobody hears the reset
				continue
			}
			w.disconnect(p, "reset")
			w.breakLane(w.laneOf(o, h))
			if w.copyRNG.IntN(2) == 0 { // else its kernel still sends what it had taken
				w.breakLane(w.laneOf(h, o))
			}
		}
	}
	h.dies()
	w.kills++
	w.orphan(h)
	w.judge.killed(h)
}

// freeze stops a daemon as SIGSTOP does; its engines and its kernel go on.
func (h *host) freeze() {
	if h.m == nil || h.frozen {
		return
	}
	w := h.w
	w.say(h.id, "freeze", "")
	h.frozen = true
	life, since := h.life, w.now
	for _, o := range w.hosts {
		if o == h {
			continue
		}
		p, _ := w.pairOf(h, o)
		conn := p.life
		w.after(w.between(keepAliveMin, keepAliveMax), func() {
			if h.life == life && h.frozen && h.thawed <= since && p.life == conn {
				w.disconnect(p, "keepalive")
			}
		})
	}
	h.hangs()
	w.tire(h)
}

// thaw lets a frozen daemon go on: it sees all that came, in order.
func (h *host) thaw() {
	if h.m == nil || !h.frozen {
		return
	}
	w := h.w
	w.say(h.id, "thaw", "%d waiting", len(h.inbox))
	h.frozen, h.thawed = false, w.now
	inbox := h.inbox
	h.inbox = nil
	if w.chance(2) { // its loop may see the timer before the sockets
		h.step(node.Wake{})
	}
	for _, ev := range inbox {
		h.step(ev)
	}
	stopped := h.stopped
	h.stopped = nil
	for _, do := range stopped {
		do()
	}
	h.step(node.Wake{})
	h.returns()
}

// deliver hands an event to the life that it is meant for.
func (h *host) deliver(life uint64, ev node.Event) {
	switch {
	case h.life != life || h.m == nil:
	case h.frozen:
		h.inbox = append(h.inbox, ev)
	default:
		h.step(ev)
	}
}

// step runs the machine on one event and carries out what it asks.
func (h *host) step(ev node.Event) {
	w := h.w
	if h.stuck != w.now {
		h.stuck, h.spins = w.now, 0
	}
	if h.spins++; h.spins > maxSpin {
		w.judge.fail("%s steps %d times at one instant", h.id, h.spins)
		h.kill()
		return
	}
	planted := w.plantIn(h, ev)
	w.noteEvent(h, planted)
	before := w.judge.before(h, ev)
	h.effects = h.m.Step(w.now, planted, h.effects[:0])
	w.judge.after(h, ev, h.effects, before)
	for _, e := range h.effects {
		h.apply(e)
	}
	h.arm()
}

// arm queues the wake that the machine's deadline asks for.
func (h *host) arm() {
	at := h.m.Deadline()
	if at == kevlard.Never || at >= h.wakeAt {
		return
	}
	at = max(at, h.w.now)
	h.wakeAt = at
	life := h.life
	h.w.at(at, func() {
		if h.life != life || h.wakeAt != at {
			return
		}
		h.wakeAt = kevlard.Never
		switch {
		case h.frozen:
		case h.m.Deadline() <= h.w.now:
			h.step(node.Wake{})
		default:
			h.arm()
		}
	})
}

// apply carries out one effect. Nothing here steps a machine at once.
func (h *host) apply(e node.Effect) {
	w := h.w
	w.noteEffect(h, e)
	switch e := e.(type) {
	case node.Send:
		ev := node.Received{From: h.id, Boot: h.boot, Message: w.wire(e.Message)}
		h.post(e.To, control, ev)
	case node.SendAll:
		for _, to := range e.To {
			h.post(to, control, node.Received{From: h.id, Boot: h.boot, Message: w.wire(e.Message)})
		}
	case node.SendFrame:
		h.post(e.To, data, node.Arrived{From: h.id, Boot: h.boot, Frame: w.wireFrame(e.Frame)})
	case node.StartEngine:
		h.startEngine(e)
	case node.KillEngine:
		if en := h.engines[e.Stage]; en != nil && en.run == e.Run {
			w.after(w.between(time.Millisecond, 5*time.Millisecond), func() { en.exit(false, "signal: killed") })
		}
	case node.RunBatch:
		h.runBatch(e)
	case node.Publish:
		h.publish(e)
	case node.Export:
		h.export(e)
	case node.Load:
		h.load(e)
	case node.SendStored:
		h.sendStored(e)
	case node.StoreRows:
		h.storeRows(e)
	case node.FreeSlots:
		h.memory.free(e.Stage, e.Slots)
	case node.DropRows:
		h.dropRows(e)
	case node.TakenOver:
		w.takenOver(h, e)
	case node.Reused:
		w.judge.reused(e)
	case node.Emit, node.Finish, node.Report, node.Replay, node.Found:
	default:
		w.judge.fail("effect of unknown type %T", e)
	}
}

func (h *host) post(to kevlard.NodeID, c class, ev node.Event) {
	if to == h.id {
		life := h.life
		h.w.after(0, func() { h.deliver(life, ev) })
		return
	}
	o := h.w.byID[to]
	if o == nil {
		h.w.judge.fail("%s sends to %q, which does not exist", h.id, to)
		return
	}
	h.w.send(h, o, c, ev)
}

// fences lists the fences of what an event carries, for the judges.
func fenceOf(m protocol.Message) (kevlard.SessionID, kevlard.Fence, bool) {
	switch m := m.(type) {
	case protocol.Step:
		return m.Session, m.Fence, true
	case protocol.Prepared:
		return m.Session, m.Fence, true
	}
	return "", kevlard.Fence{}, false
}
