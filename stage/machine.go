// Package stage is the stage's side of the protocol: it fences, reserves room,
// forms batches for one engine and sends what they yield to the next stage. It
// is pure: methods take the time and what happened, and append effects.
//
// # The engine's life
//
//	          Start                EngineReady
//	cold ─────────────▶ loading ─────────────────▶ ready ◀──┐ late result
//	 ▲ back-off            │                       │  │     │
//	 └─────────────────────┴──────── exit ─────────┘  └─▶ stalled ─▶ Kill
//
// A stage owns which KV cells belong to which session; the engine only sees
// cell numbers. Every session reserves all the cells it can ever need when it is
// prepared, so nothing is refused for room later.
//
// A stage that is given up (Release) goes to its end from any of these: no prepare is
// taken, what was computed is kept, the engine is killed.
//
// # Barriers
//
// A prepare for a session whose rows are in the running batch, or whose cells are
// being read for a standby or filled from a copy, waits until that has ended, and
// cells of a closed session are freed only then: nothing ever reads or writes
// reused memory.
//
// # Copies
//
// The rows of finished positions are streamed to the session's standby, if it has
// one. A stage that is prepared for a session of which this node has a copy fills
// the session's cells from it before it answers, so what it says it has is there.
package stage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// Config describes one stage.
type Config struct {
	Key    kevlard.StageKey
	Last   bool         // computes the head and samples
	Width  int          // bytes of one row of hidden state
	Copies *index.Index // the node's; nil: there are none
	Keep   bool         // what is computed here is kept for sessions that begin alike
	Timing Timing
	Limits Limits
}

// Machine is one stage on one node. Not safe for concurrent use.
type Machine struct {
	cfg Config

	state     topology.StageState
	engine    uint64 // number of the current or last engine
	progress  int
	waits     bool // the load does, for something that will end
	reason    string
	class     string
	cellBytes int             // of KV in all layers
	failures  int             // exits in a row without a calm run between
	begunAt   kevlard.Instant // when the engine was started
	readyAt   kevlard.Instant // when the engine became ready
	restartAt kevlard.Instant // Never unless cold

	cells *extents
	slots map[kevlard.SessionID]*slot
	warm  map[kevlard.SessionID]*slot // hot copies
	tombs tombstones
	fast  []work // decodes and replays
	slow  []work // prefill chunks
	batch *running
	pace  pace
	tempo tempo

	transfers map[uint64]*transfer // exports and loads that the shell works on
	transfer  uint64               // number of the last one
	due       kevlard.Instant      // when the engine counts as stalled by them
	streams   uint64               // number of the last stream to a standby

	fullTill kevlard.Instant // nothing is kept, and nobody waits for it: there was no room
	leaving  []*slot         // closed, while the last of their rows are read to be kept
	keeping  []keeping       // in the order in which they were read
	waiting  []*slot         // prepares that wait for other sessions, in their order
	prepares uint64          // number of the last one

	released  bool            // given up: nothing new is taken
	releaseBy kevlard.Instant // when the engine is killed whatever it does; Never once it was
	retired   bool            // its engine was told to go
	unloaded  int             // engines in a row that did not come to be ready

	counters Counters
}

// Counters only grow.
type Counters struct {
	Fenced  uint64 // items, prepares and results dropped as stale
	Refused uint64
	Batches uint64
	Rows    uint64

	Exported uint64 // positions sent to standbys
	Loaded   uint64 // positions filled from copies
}

// slot is one session at this stage.
type slot struct {
	id        kevlard.SessionID
	fence     kevlard.Fence
	owner     kevlard.NodeID
	ownerBoot kevlard.BootID
	next      kevlard.NodeID
	sampling  kevlard.Sampling
	solo      bool
	recovery  bool
	credit    int
	started   bool
	decoding  bool // its prefill is done: each row is a token that somebody waits for

	cells   span
	tokens  []kevlard.Token // ids of the positions that arrived
	held    int             // positions [0,held) are in the cells
	queued  int             // rows waiting or running
	lease   kevlard.Instant
	parked  *parkedPrepare
	inBatch bool
	closed  bool // gone, but its cells are still being read or written
	ending  bool // closed by its owner: what was computed is kept before the cells go

	positions int             // the most it can ever hold
	known     []kevlard.Token // all that were known when it was prepared
	salt      string
	standby   index.Stream
	export    *transfer // of its cells to the standby
	load      *transfer // of a copy into its cells; its prepare is not answered yet
	fetch     *fetching // of a copy from another node; the same
	await     *awaiting // of what another session here computes; the same

	kept     kevlard.Pos // leading positions, in whole blocks, that this node keeps or was sent to keep
	keptName index.Name  // of the last of these blocks
	keptOpen kevlard.Pos // the same, with the part of an open block
	stored   kevlard.Pos // of these, those that were seen in the block memory
	wanted   kevlard.Pos // another session waits for so many

	order    uint64          // of its last prepare, among all
	awaited  kevlard.Pos     // what that was asked to wait for
	advanced kevlard.Instant // when held last grew
	gap      time.Duration   // the longest time that took since it started
}

// unanswered reports whether the session's last prepare is not answered yet.
func (s *slot) unanswered() bool {
	return s.parked != nil || s.load != nil || s.fetch != nil || s.await != nil
}

// busy reports whether the session's cells are being read or written.
func (s *slot) busy() bool { return s.inBatch || s.export != nil || s.load != nil }

type parkedPrepare struct {
	from kevlard.NodeID
	msg  protocol.Prepare
	link bool
}

type work struct {
	slot *slot
	item protocol.Item
}

// running is the batch that the engine works on.
type running struct {
	id       uint64
	work     []work
	rows     int
	started  kevlard.Instant
	limited  bool            // more was waiting than fitted its time
	patience time.Duration   // how long it may take
	overdue  kevlard.Instant // when to call it stalled
}

// New returns a stage whose engine is to be started at once.
func New(cfg Config) *Machine {
	cfg.Timing, cfg.Limits = cfg.Timing.withDefaults(), cfg.Limits.withDefaults()
	return &Machine{
		cfg: cfg, state: topology.Cold, cells: newExtents(0), restartAt: 0,
		slots: map[kevlard.SessionID]*slot{}, tombs: newTombstones(cfg.Limits.Tombstones), pace: newPace(),
		transfers: map[uint64]*transfer{}, due: kevlard.Never, warm: map[kevlard.SessionID]*slot{},
	}
}

// Key returns the stage's name.
func (m *Machine) Key() kevlard.StageKey { return m.cfg.Key }

// Advertise returns what the node's record says of the stage.
func (m *Machine) Advertise() topology.Stage {
	a := topology.Stage{Key: m.cfg.Key, State: m.state, Class: m.class, Progress: m.progress, Reason: m.reason, Cells: m.cells.total}
	if m.released {
		a.State = topology.Retiring
	}
	if m.state == topology.Ready {
		a.RowMicros = int(m.tempo.shown.Microseconds())
	}
	a.Waits = m.waits && a.State == topology.Loading
	return a
}

// CellBytes returns the bytes of one position's KV; 0 while no engine is ready.
func (m *Machine) CellBytes() int { return m.cellBytes }

// Counters returns a copy of the counters.
func (m *Machine) Counters() Counters { return m.counters }

// Busy returns how long the engines here have computed.
func (m *Machine) Busy() time.Duration { return m.tempo.busy }

// Sessions returns how many sessions hold room here.
func (m *Machine) Sessions() int { return len(m.slots) }

// FreeCells returns how many KV positions no session has been granted.
func (m *Machine) FreeCells() int { return m.roomy().available() }

// Room returns the most KV positions that one session could be granted now.
func (m *Machine) Room() int { return m.roomy().largest() }

// QueuedRows returns the rows that wait for a batch.
func (m *Machine) QueuedRows() int {
	n := 0
	for _, q := range [][]work{m.fast, m.slow} {
		for _, w := range q {
			n += len(w.item.Tokens)
		}
	}
	return n
}

// Deadline returns when Wake must be called.
func (m *Machine) Deadline() kevlard.Instant {
	at := m.restartAt
	if m.state != topology.Cold || m.released {
		at = kevlard.Never
	}
	if m.batch != nil {
		at = min(at, m.batch.overdue)
	}
	at = min(at, m.due)
	if m.released && m.state != topology.Cold {
		at = min(at, m.releaseBy)
	}
	policy := m.policy()
	for _, s := range m.slots {
		at = min(at, s.lease)
		if s.fetch != nil {
			at = min(at, s.fetch.until)
		}
		if s.await != nil {
			at = min(at, s.await.until, s.await.word)
		}
		if s.mayReplicate() {
			at = min(at, s.standby.Deadline(policy))
		}
	}
	return at
}

// Wake acts on what is due. late is by how much the caller's own timer fired
// late, 0 if it did not: nobody else can be blamed for that time.
func (m *Machine) Wake(now kevlard.Instant, late time.Duration, out []Effect) []Effect {
	if late > 0 {
		m.grace(now, late)
	}
	if m.state == topology.Cold && now >= m.restartAt && !m.released {
		m.engine++
		m.state, m.progress, m.waits, m.begunAt, m.restartAt = topology.Loading, 0, false, now, kevlard.Never
		out = append(out, Start{m.engine}, Changed{})
	}
	if m.batch != nil && now >= m.batch.overdue {
		out = m.overdue(now, out)
	}
	out = m.overdueTransfers(now, out)
	out = m.Expire(now, out)
	for _, s := range m.sorted() {
		out = m.overdueFetch(now, s, out)
		out = m.overdueAwait(now, s, out)
	}
	return m.replicateDue(now, out)
}

// Expire drops the sessions whose leases have ended, with what waits for them: a
// stage that was itself away for so long must not act on what it was told before,
// because the owner has gone elsewhere. So a late judge forgives others, never
// itself; the node calls this before it looks at anything else that came
// meanwhile.
func (m *Machine) Expire(now kevlard.Instant, out []Effect) []Effect {
	for _, s := range m.sorted() {
		if now < s.lease {
			continue
		}
		fenced := m.unqueue(s)
		m.counters.Fenced += uint64(fenced)
		out = append(out, Note{Type: "lease-expired", Session: s.id, Cause: "lease", Detail: fmt.Sprintf("%d items fenced", fenced)})
		out = append(out, Reply{s.owner, m.lost(s, "lease", false)})
		out = m.drop(now, s, out)
	}
	return m.awake(now, out)
}

// grace moves the deadline that runs against the engine by as much as this node
// was late, and leaves it a moment to read what came meanwhile.
func (m *Machine) grace(now kevlard.Instant, late time.Duration) {
	if m.batch != nil && m.state != topology.Stalled {
		m.batch.overdue = max(m.batch.overdue.Add(late), now.Add(kevlard.LateGrace))
	}
	if len(m.transfers) > 0 {
		m.due = max(m.due.Add(late), now.Add(kevlard.LateGrace))
	}
	for _, s := range m.slots {
		s.standby.Forgive(late)
		if s.fetch != nil {
			s.fetch.until = max(s.fetch.until.Add(late), now.Add(kevlard.LateGrace))
		}
		if a := s.await; a != nil {
			a.since, a.moved = a.since.Add(late), a.moved.Add(late)
			a.until = max(a.until.Add(late), now.Add(kevlard.LateGrace))
		}
	}
}

// OwnerGone drops the sessions of an owner's lives before boot, and those of
// boot itself if that is dead. What is known of an owner can be older than the
// life that prepared a session here, so later lives are left alone; boot IDs of
// one node sort by time.
func (m *Machine) OwnerGone(now kevlard.Instant, owner kevlard.NodeID, boot kevlard.BootID, dead bool, out []Effect) []Effect {
	for _, s := range m.sorted() {
		if s.owner == owner && (s.ownerBoot < boot || dead && s.ownerBoot == boot) {
			out = append(out, Note{Type: "owner-gone", Session: s.id, Cause: "dead"})
			out = m.drop(now, s, out)
		}
	}
	return m.awake(now, out)
}

// NextGone tells the owners whose sessions go on to a node that the link to it
// broke. It is a hint: the owner probes before it blames the edge.
func (m *Machine) NextGone(next kevlard.NodeID, out []Effect) []Effect {
	for _, s := range m.sorted() {
		if s.next == next {
			out = append(out, Reply{s.owner, protocol.Refused{Session: s.id, Fence: s.fence, Lo: m.cfg.Key.Layers.Hi, Pos: s.held, Reason: protocol.RefusedLink}})
		}
	}
	return out
}

// Expects reports whether work of a session at a fence can be for this stage, and not for
// another one that begins at the same layer: the session was prepared here at that fence.
func (m *Machine) Expects(id kevlard.SessionID, fence kevlard.Fence) bool {
	s := m.slots[id]
	return s != nil && (s.fence == fence || s.parked != nil && s.parked.msg.Fence == fence)
}

// Owner returns who owns a session that has room here.
func (m *Machine) Owner(id kevlard.SessionID) (kevlard.NodeID, bool) {
	s, ok := m.slots[id]
	if !ok {
		return "", false
	}
	return s.owner, true
}

// Renew extends the leases of sessions.
func (m *Machine) Renew(now kevlard.Instant, from kevlard.NodeID, ids []kevlard.SessionID) {
	for _, id := range ids {
		if s := m.slots[id]; s != nil && s.owner == from {
			s.lease = now.Add(m.cfg.Timing.Lease)
		}
	}
}

// Probe answers how far the stage is with a session.
func (m *Machine) Probe(p protocol.Probe) protocol.Probed {
	a := protocol.Probed{Session: p.Session, Fence: p.Fence, Lo: p.Lo, Round: p.Round, Stalled: m.state == topology.Stalled}
	if s := m.slots[p.Session]; s != nil && s.fence == p.Fence && !s.unanswered() {
		a.Known = true
		if s.started { // what is held from older terms is not progress of this one
			a.Received, a.Done = len(s.tokens), s.held
		}
	}
	return a
}

// Close ends a session here. Only its owner can.
func (m *Machine) Close(now kevlard.Instant, from kevlard.NodeID, c protocol.Close, out []Effect) []Effect {
	s := m.slots[c.Session]
	if s != nil && (c.Fence.Compare(s.fence) < 0 || s.owner != from) {
		m.counters.Fenced++
		return out
	}
	m.tombs.add(c.Session, c.Fence)
	if s != nil {
		s.ending = true
		out = m.drop(now, s, out)
	}
	return m.schedule(now, m.awake(now, out))
}

// drop forgets a session; its cells follow when nothing reads or writes them any more.
func (m *Machine) drop(now kevlard.Instant, s *slot, out []Effect) []Effect {
	delete(m.slots, s.id)
	m.unqueue(s)
	m.unwait(s)
	s.closed, s.fetch = true, nil
	m.tombs.add(s.id, s.fence)
	return m.settle(now, s, out)
}

// settle frees the cells of a closed session when nothing reads or writes them, and
// nothing more of them is to be kept.
func (m *Machine) settle(now kevlard.Instant, s *slot, out []Effect) []Effect {
	if !s.closed || s.busy() {
		return out
	}
	if s.ending {
		if out = m.keep(now, s, out); s.export != nil {
			m.leave(s)
			return out
		}
		s.ending = false
		m.touch(s)
	}
	m.left(s)
	m.cells.release(s.cells)
	s.cells = span{}
	return out
}

// unqueue removes what a session has waiting and returns how many items that was.
func (m *Machine) unqueue(s *slot) int {
	n := len(m.fast) + len(m.slow)
	mine := func(w work) bool { return w.slot == s }
	m.fast = slices.DeleteFunc(m.fast, mine)
	m.slow = slices.DeleteFunc(m.slow, mine)
	s.queued = 0
	return n - len(m.fast) - len(m.slow)
}

// lost speaks to the owner at the newest term it has sent, or it would not listen.
func (m *Machine) lost(s *slot, cause string, suspect bool) protocol.Lost {
	fence := s.fence
	if s.parked != nil {
		fence = s.parked.msg.Fence
	}
	return protocol.Lost{Session: s.id, Fence: fence, Lo: m.cfg.Key.Layers.Lo, Cause: cause, Suspect: suspect}
}

// sorted returns the slots in the order of their ids: effects must not depend on
// map order.
func (m *Machine) sorted() []*slot {
	return slices.SortedFunc(maps.Values(m.slots), func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
}

// describe names the engine's trouble for the record.
func describe(what, detail string, again time.Duration) string {
	return fmt.Sprintf("%s: %s; next try in %v", what, detail, again)
}
