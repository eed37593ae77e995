// Package node composes the pure parts into one node: the sessions it owns, the
// stages it holds and what it knows of its peers. One typed event stream goes
// in, effects come out; the daemon's shell and the simulator run the same code.
package node

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/session/witness"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// Config describes this node.
type Config struct {
	Self   kevlard.NodeID
	Boot   kevlard.BootID
	Stages []Assigned // held from the start
	// Auto: the node takes the stages that the plan gives it, besides those.
	Auto   bool
	Goal   topology.Goal   // of the plan; the same on all nodes
	Settle topology.Settle // how long things must stay before the plan is followed
	Timing Timing
	Limits Limits
	KV     index.Config // what is kept for others
	// Standbys is how many copies of a session's KV are kept: 0 or 1.
	Standbys int
	// AuditSeed is a secret of this life, by which nobody can know what this node asks when
	// it audits others (package audit). All zero: it audits nobody.
	AuditSeed [32]byte
}

// Machine is one node. Not safe for concurrent use.
type Machine struct {
	cfg        Config
	view       topology.View
	ready      map[kevlard.Digest]*ready // of the view, by model, as far as it was asked for
	sessions   map[kevlard.SessionID]*session.Machine
	timers     timers
	waiting    map[kevlard.SessionID]bool    // sessions in Routing; true: not only because of whom they blame
	stages     []*stage.Machine              // sorted by key
	assigned   map[kevlard.StageKey]Assigned // of those
	former     stageCounters                 // of stages that are gone
	announced  map[kevlard.StageKey]bool     // of those, as what will be given up
	peers      map[kevlard.NodeID]*peer
	watched    []*peer          // of these, as of the last look at who is on a route
	names      []kevlard.NodeID // of the peers, sorted; empty: not known
	pingAt     kevlard.Instant
	renewAt    kevlard.Instant
	used       map[kevlard.NodeID]int // owned sessions that run through each node
	usedBefore map[kevlard.NodeID]int // what used was before it was last brought up to date
	rerouted   bool                   // used is out of date
	rewatch    bool                   // peers' watched flags are out of date
	drains     draining
	ailing     ailing
	poisoned   poisoned
	resting    resting // sessions without a client that can be resumed

	clients      map[kevlard.SessionID]uint64     // numbers of those of sessions owned here
	followers    map[kevlard.SessionID]*follower  // of sessions owned here
	following    map[kevlard.SessionID]*following // sessions owned elsewhere
	followNumber uint64                           // of the last one

	counters Counters
	copies   *index.Index            // of sessions that other nodes compute
	fetches  map[uint64]index.Pinned // copies that are being sent to those who take over
	fetched  uint64                  // number of the last one
	records  *witness.Store          // of sessions that other nodes own
	unlogged map[kevlard.SessionID]bool
	logAt    kevlard.Instant // when the witnesses of those are told
	bids     map[kevlard.SessionID]*bid
	keeps    map[uint64]keep                // pieces of this node's own on their way to the block memory
	seekings map[kevlard.SessionID]*seeking // who has a part of the prompts of sessions owned here
	router   scheduler.Router
	hops     []kevlard.Hop    // reused by each decision
	found    []scheduler.Held // the same

	slow     map[kevlard.StageKey]bool // stages here that were reported as slow
	reformer *topology.Reformer        // nil: the stages are those of the configuration
	reformAt kevlard.Instant           // when the plan is looked at
	reformed kevlard.Instant           // when it was
	late     time.Duration             // by which this node's timer fired, until due has acted on it

	audits *audit.Machine // of what others compute
	trust  audit.Trust    // what all say of each other
}

// New returns a node whose engines are to be started at once.
func New(cfg Config) *Machine {
	cfg.Timing, cfg.Limits = cfg.Timing.withDefaults(), cfg.Limits.withDefaults()
	m := &Machine{
		cfg: cfg, ready: map[kevlard.Digest]*ready{}, sessions: map[kevlard.SessionID]*session.Machine{}, waiting: map[kevlard.SessionID]bool{},
		peers: map[kevlard.NodeID]*peer{}, used: map[kevlard.NodeID]int{}, usedBefore: map[kevlard.NodeID]int{}, poisoned: newPoisoned(cfg.Limits.Poisoned),
		counters: Counters{Failovers: map[string]uint64{}, Reforms: map[string]uint64{}}, copies: index.New(cfg.KV),
		fetches: map[uint64]index.Pinned{}, followers: map[kevlard.SessionID]*follower{}, following: map[kevlard.SessionID]*following{},
		clients: map[kevlard.SessionID]uint64{}, unlogged: map[kevlard.SessionID]bool{}, logAt: kevlard.Never, bids: map[kevlard.SessionID]*bid{},
		keeps: map[uint64]keep{}, seekings: map[kevlard.SessionID]*seeking{},
		assigned: map[kevlard.StageKey]Assigned{}, drains: draining{at: kevlard.Never},
		announced: map[kevlard.StageKey]bool{}, reformAt: kevlard.Never, reformed: -kevlard.Instant(reformEvery),
	}
	m.audits = audit.New(audit.Config{Self: cfg.Self, Boot: cfg.Boot, Seed: cfg.AuditSeed, Timing: cfg.Timing.Audit})
	if cfg.Auto {
		m.reformer = topology.NewReformer(cfg.Self, cfg.Goal, cfg.Settle)
	}
	if w := &m.cfg.Limits.Witness; w.Lease == 0 && w.Ended == 0 { // as long as clients may take to come back
		w.Ended = max(cfg.Timing.Resume, time.Second)
		w.Lease = w.Ended + 30*time.Second
	}
	m.records = witness.NewStore(m.life(), m.cfg.Limits.Witness)
	for _, a := range cfg.Stages {
		m.addStage(a)
	}
	return m
}

// Deadline reports when Step must be called with Wake if nothing else happens.
func (m *Machine) Deadline() kevlard.Instant {
	at := min(m.pingAt, m.renewAt, m.timers.next(), m.copies.Deadline(), m.resting.next(), m.records.Deadline(), m.logAt, m.reformAt, m.drains.at, m.audits.Deadline(), m.trust.Deadline())
	for _, b := range m.bids {
		at = min(at, b.at)
	}
	for _, s := range m.stages {
		at = min(at, s.Deadline())
	}
	for _, p := range m.watched {
		at = min(at, p.silentAt(m.cfg.Timing))
	}
	return at
}

// Step consumes ev and appends the resulting effects to out.
func (m *Machine) Step(now kevlard.Instant, ev Event, out []Effect) []Effect {
	begin := len(out)
	if due := m.Deadline(); due != kevlard.Never && now.Sub(due) > m.cfg.Timing.LateJudge && due != 0 {
		m.forgive(now, now.Sub(due))
		for i, s := range m.stages {
			out = m.fromStage(now, i, s.Expire(now, nil), out)
		}
		m.copies.Expire(now)
	}
	switch ev := ev.(type) {
	case Wake:
	case ViewChanged:
		out = m.viewChanged(now, ev.View, out)
	case PeerUp:
		out = m.peerUp(now, ev, out)
	case PeerDown:
		out = m.peerDown(now, ev.Node, ev.Cause, out)
	case SendFailed:
		out = m.sendFailed(now, ev, out)
	case Received:
		out = m.received(now, ev, out)
	case Arrived:
		out = m.heard(now, ev.From, out)
		for _, it := range ev.Frame.Items {
			if m.audits.Concerns(it.Session) && m.audits.Result(it) {
				out = m.fromAudit(m.audits.Arrived(now, ev.From, it, nil), out)
				continue
			}
			out = m.item(now, ev.From, it, out)
		}
	case EngineReady, EngineLoading, EngineExited, BatchDone, Exported, Loaded, RowsUnsent:
		out = m.engine(now, ev, out)
	case RowsArrived:
		out = m.rowsArrived(now, ev, out)
	case RowsStored:
		out = m.rowsStored(now, ev, out)
	case StoredSent:
		m.storedSent(ev)
	case StoredUnsent:
		out = m.storedUnsent(ev, out)
	case Submit:
		out = m.submit(now, ev, out)
	case Cancel:
		out = m.clientGone(now, ev.Session, ev.Client, true, out)
	case Follow:
		out = m.follow(now, ev, out)
	case Pause:
		out = m.clientGone(now, ev.Session, ev.Client, false, out)
	case Resume:
		out = m.resume(now, ev, out)
	case Find:
		out = append(out, m.find(ev))
	case TakeOver:
		out = m.takeOver(now, ev, out)
	case Adopt:
		out = m.asked(now, ev, out)
	case Release:
		out = m.release(now, ev, out)
	case Drain:
		out = m.ordered(now, ev.Undo, out)
	case Health:
		out = m.health(now, ev, out)
	default:
		panic(fmt.Sprintf("node: event of unknown type %T", ev))
	}
	out = m.retire(now, m.giveUp(now, m.reform(now, m.due(now, out))))
	// What is used again in this step is not among these. They go first, so that rows of
	// this step for which they made room find the memory.
	var freed []Effect
	for _, f := range m.copies.TakeFreed() {
		freed = append(freed, FreeSlots{f.Stage, f.Slots})
	}
	return slices.Insert(out, begin, freed...)
}

// forgive moves the deadlines that run against others by as much as this node
// was itself away: what they sent may still be in its sockets.
func (m *Machine) forgive(now kevlard.Instant, late time.Duration) {
	m.late = late
	m.counters.LateJudge++
	m.trust.Forgive(now, late)
	m.audits.Forgive(late)
	for _, p := range m.peers {
		p.heardAt = min(now, max(p.heardAt.Add(late), now.Add(kevlard.LateGrace-p.silence(m.cfg.Timing))))
		p.unmeasure()
	}
	for _, id := range m.sortedSessions() {
		s := m.sessions[id]
		s.Forgive(now, late)
		m.timers.set(id, s.Deadline())
	}
}

// due acts on every deadline that has passed.
func (m *Machine) due(now kevlard.Instant, out []Effect) []Effect {
	for i, s := range m.stages {
		if m.late > 0 || now >= s.Deadline() {
			out = m.fromStage(now, i, s.Wake(now, m.late, nil), out)
		}
	}
	m.late = 0
	m.copies.Expire(now)
	m.records.Expire(now)
	out = m.forgetRested(now, out)
	m.cool()
	out = m.links(now, out)
	out = m.bidsDue(now, out)
	if now >= m.trust.Deadline() {
		out = m.weigh(now, out)
	}
	if now >= m.audits.Deadline() {
		out = m.fromAudit(m.audits.Wake(now, m.mayAudit, nil), out)
	}
	for {
		id, ok := m.timers.pop(now)
		if !ok {
			return m.tellWitnesses(now, out)
		}
		out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect { return s.Wake(now, e) })
	}
}

func (m *Machine) submit(now kevlard.Instant, ev Submit, out []Effect) []Effect {
	refuse := func(code string, status int, why string) []Effect {
		return append(out, Finish{Session: ev.Session, Reason: "error", Err: &kevlard.Failure{Code: code, Status: status, Message: why}})
	}
	switch {
	case m.drains.on:
		return refuse("draining", 503, "this node is draining and takes no new sessions; ask another node")
	case len(m.sessions) >= m.cfg.Limits.Sessions:
		return refuse("overloaded", 429, fmt.Sprintf("this node owns %d sessions, the most it takes; try again later", len(m.sessions)))
	case m.sessions[ev.Session] != nil || m.resting.get(ev.Session) != nil:
		return refuse("session_busy", 409, "the session is running")
	case m.poisoned.has(promptKey(ev.Request)):
		return refuse("poisoned", 500, "this request crashed engines before; it is not tried again")
	}
	ev.Request.Salt = m.salted(ev.Request.Salt)
	m.sessions[ev.Session] = session.New(ev.Session, m.cfg.Boot, ev.Request, m.cfg.Timing.Session, now)
	m.clients[ev.Session] = ev.Client
	m.counters.PromptTokens += uint64(len(ev.Request.Prompt))
	return m.withSession(now, ev.Session, out, func(_ *session.Machine, e []session.Effect) []session.Effect { return e })
}

// withSession runs f on a session, gives it a route if it now wants one, carries
// its effects over and keeps its timer.
func (m *Machine) withSession(now kevlard.Instant, id kevlard.SessionID, out []Effect, f func(*session.Machine, []session.Effect) []session.Effect) []Effect {
	s := m.sessions[id]
	if s == nil {
		return out
	}
	fenced, fence := s.Fenced(), s.Fence()
	effects := f(s, nil)
	if s.WantsWitnesses() && m.cfg.Timing.Resume >= 0 {
		s.SetWitnesses(m.life(), m.chooseWitnesses(s, nil))
	}
	for s.WantsRoute(now) {
		effects = m.findRoute(now, s, effects)
	}
	effects = m.findStandbys(now, s, effects)
	m.counters.Fenced += s.Fenced() - fenced
	if s.Fence() != fence || s.Route() == nil || s.State() == session.Done { // paused: it has no route
		m.rerouted = true
	}
	for _, e := range effects {
		out = m.fromSession(s, e, out)
	}
	if s.State() == session.Done || s.State() == session.Paused {
		delete(m.sessions, id)
		delete(m.clients, id)
		delete(m.waiting, id)
		delete(m.unlogged, id)
		delete(m.seekings, id)
		m.timers.set(id, kevlard.Never)
		return m.rest(now, s, out)
	}
	if s.State() == session.Routing {
		if _, known := m.waiting[id]; !known {
			m.waiting[id] = true
		}
	} else {
		delete(m.waiting, id)
	}
	m.timers.set(id, s.Deadline())
	m.schedule(now, s)
	return out
}

func (m *Machine) fromSession(s *session.Machine, e session.Effect, out []Effect) []Effect {
	switch e := e.(type) {
	case session.Send:
		return append(out, Send{e.To, e.Message})
	case session.SendAll:
		return append(out, SendAll{e.To, e.Message})
	case session.SendFrame:
		return append(out, SendFrame{e.To, e.Frame})
	case session.Emit:
		if !e.Again {
			m.counters.GeneratedTokens++
		}
		if out, away := m.toFollower(s, e, out); away {
			return out
		}
		return append(out, Emit{s.ID(), e.Index, e.Token, e.Logprobs})
	case session.Reused:
		m.counters.PrefixReused += uint64(e.Positions)
		return append(out, Reused{s.ID(), e.Positions})
	case session.Finish:
		e.Err = m.explain(e.Err)
		if e.Err != nil && e.Err.Code == "poisoned" {
			m.poisoned.add(promptKey(session.Request{Model: s.Model(), Prompt: s.Prompt()}))
		}
		if out, away := m.toFollower(s, e, out); away {
			return out
		}
		return append(out, Finish{s.ID(), e.Reason, e.Err, s.Failovers()})
	case session.Note:
		if e.Type == "failover" {
			m.counters.Failovers[e.Cause]++
		}
		return append(out, Report{Type: e.Type, Session: s.ID(), Node: e.Node, Cause: e.Cause, Detail: e.Detail, Took: e.Took, Failover: e.Failover})
	default:
		panic(fmt.Sprintf("node: session effect of unknown type %T", e))
	}
}

// clientGone acts on a client here that is gone, or (ended) has what it wanted. A word
// that is late, of one whose session has another client by now, changes nothing.
func (m *Machine) clientGone(now kevlard.Instant, id kevlard.SessionID, client uint64, ended bool, out []Effect) []Effect {
	if f := m.following[id]; f != nil && f.client == client {
		return m.unfollow(id, f, ended, out)
	}
	if m.followers[id] != nil || m.clients[id] != client {
		return out
	}
	return m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
		if ended {
			return s.Cancel(now, e)
		}
		return s.Pause(now, e)
	})
}

// hurry makes every session that waits for a route try again.
func (m *Machine) hurry(now kevlard.Instant, out []Effect) []Effect {
	for _, id := range slices.Sorted(maps.Keys(m.waiting)) {
		out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			s.Hurry(now)
			return e
		})
	}
	return out
}

func (m *Machine) sortedSessions() []kevlard.SessionID {
	return slices.SortedFunc(maps.Keys(m.sessions), cmp.Compare[kevlard.SessionID])
}

// publish describes this node for its record.
func (m *Machine) publish() Effect {
	p := Publish{Draining: m.drains.on, Avoid: m.ailing.avoided(), Reason: m.ailing.why(), Stages: m.advertise()}
	if m.reformer != nil {
		p.Failed = m.reformer.Failed()
	}
	return p
}

// poisoned remembers requests that crashed engines; the oldest is forgotten
// first.
type poisoned struct {
	keys []kevlard.Digest
	most int
}

func newPoisoned(most int) poisoned { return poisoned{most: most} }

func (p *poisoned) has(k kevlard.Digest) bool { return slices.Contains(p.keys, k) }

func (p *poisoned) add(k kevlard.Digest) {
	if p.has(k) {
		return
	}
	if len(p.keys) >= p.most {
		p.keys = slices.Delete(p.keys, 0, 1)
	}
	p.keys = append(p.keys, k)
}

// promptKey names a request by what the engine sees of it first.
func promptKey(r session.Request) kevlard.Digest {
	h := sha256.New()
	h.Write(r.Model[:])
	for _, t := range r.Prompt {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], uint32(t))
		h.Write(b[:])
	}
	return kevlard.Digest(h.Sum(nil))
}
