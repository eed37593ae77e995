package node

import (
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/topology"
)

// Counters only grow.
type Counters struct {
	Fenced          uint64            // stale items, answers and results dropped, here as owner and as stage
	Refused         uint64            // prepares and items refused
	Batches, Rows   uint64            // computed by the stages here
	Failovers       map[string]uint64 // by cause, of sessions owned here
	Reforms         map[string]uint64 // stages adopted, released and given back here, by reason
	PromptTokens    uint64
	GeneratedTokens uint64
	PrefixReused    uint64 // positions of prompts that were found instead of computed
	LateJudge       uint64 // times this node doubted its own timers
	SelfDoubt       uint64 // times over half of its peers looked silent
	TakeOvers       uint64 // sessions taken over by this node
}

// SessionInfo describes a session owned here.
type SessionInfo struct {
	ID        kevlard.SessionID
	Model     kevlard.Digest
	Fence     kevlard.Fence
	Tokens    int
	State     string // queued, prefill, decode, recovering, paused
	Route     kevlard.Route
	Failovers int
	LastGap   time.Duration
	// For each hop of the route: its standby ("" is none) and the leading positions
	// that it has acknowledged.
	Standbys   []kevlard.NodeID
	Replicated []int
	// Witnesses can vote on a takeover; with none the session cannot be taken over.
	Witnesses []kevlard.NodeID
}

// StageInfo describes a stage held here.
type StageInfo struct {
	topology.Stage
	Sessions   int
	FreeCells  int
	QueuedRows int
	Busy       time.Duration // that its engines have computed
}

// PeerInfo describes a link of this node.
type PeerInfo struct {
	Node   kevlard.NodeID
	Up     bool
	Silent bool
	RTT    time.Duration
	Load   int
}

// Snapshot is a copy of what the node knows, safe to read anywhere.
type Snapshot struct {
	View     topology.View
	Draining bool
	Orders   uint64 // to drain, or to undo it, that were taken
	Avoided  bool   // others keep work away
	Reason   string // of that, or of the drain, if this node's devices are it
	// HandsOver says that others are about to take over what only this draining node has.
	HandsOver bool
	Failed    []topology.Failed    // loads that are not tried again for now
	Cramped   []topology.ModelPlan // of models that find no memory, as this node plans
	Sessions  []SessionInfo        // with a client, by id
	Paused    []SessionInfo        // without, the longest first; they must not be changed
	Stages    []StageInfo          // by key
	Peers     []PeerInfo           // by name
	Counters  Counters
	KV        KVInfo
	Audits    audit.Counters
	// Distrusted is what holders of the same layers dispute, by node and stage: no route uses
	// these nodes.
	Distrusted []audit.Tally
}

// KVInfo describes the copies kept here and the transfers under way.
type KVInfo struct {
	index.Usage
	index.Counters
	Transfers int    // exports and loads that the shell works on
	Exported  uint64 // positions sent to standbys
	Loaded    uint64 // positions filled from copies
}

// Generated returns how many tokens the sessions owned here have generated in all.
func (m *Machine) Generated() uint64 { return m.counters.GeneratedTokens }

// Snapshot copies the node's state.
func (m *Machine) Snapshot(now kevlard.Instant) Snapshot {
	s := Snapshot{View: m.view, Draining: m.drains.on, Orders: m.drains.orders, Avoided: m.ailing.avoided(), Reason: m.ailing.why(), HandsOver: m.handsOver(now), Counters: m.counters}
	s.Counters.Failovers, s.Counters.Reforms = maps.Clone(m.counters.Failovers), maps.Clone(m.counters.Reforms)
	s.KV.Usage, s.KV.Counters = m.copies.Usage(), m.copies.Counters()
	for _, id := range m.sortedSessions() {
		s.Sessions = append(s.Sessions, describe(m.sessions[id]))
	}
	s.Paused = m.resting.paused()
	s.Audits, s.Distrusted = m.audits.Counters(), m.trust.Bad()
	if m.reformer != nil {
		s.Failed, s.Cramped = m.reformer.Failed(), m.reformer.Cramped()
	}
	c := m.former
	advertised := m.advertise()
	for i, st := range m.stages {
		c.add(st.Counters())
		s.KV.Transfers += st.Transfers()
		s.Stages = append(s.Stages, StageInfo{advertised[i], st.Sessions(), st.FreeCells(), st.QueuedRows(), st.Busy()})
	}
	s.Counters.Fenced += c.Fenced
	s.Counters.Refused += c.Refused
	s.Counters.Batches += c.Batches
	s.Counters.Rows += c.Rows
	s.KV.Exported += c.Exported
	s.KV.Loaded += c.Loaded
	for _, n := range m.peerNames() {
		p := m.peers[n]
		s.Peers = append(s.Peers, PeerInfo{n, p.up, p.silent, p.rtt, p.load})
	}
	return s
}

func describe(s *session.Machine) SessionInfo {
	info := SessionInfo{
		ID: s.ID(), Model: s.Model(), Fence: s.Fence(), Tokens: s.Len(), State: string(s.State()),
		Route: slices.Clone(s.Previous()), Failovers: len(s.Failovers()),
		Standbys: slices.Clone(s.Standbys()), Replicated: slices.Clone(s.Marks()),
	}
	for _, l := range s.Witnesses() {
		info.Witnesses = append(info.Witnesses, l.Node)
	}
	if f := s.Failovers(); len(f) > 0 {
		info.LastGap = f[len(f)-1].Gap()
	}
	switch {
	case s.Recovering():
		info.State = "recovering"
	case s.State() == session.Preparing:
		info.State = "queued"
	case s.State() == session.Settling:
		info.State = string(session.Decode)
	}
	return info
}

// Servable reports whether a model has a complete route over nodes that this one
// can use now, and the layers that are missing if not.
func (m *Machine) Servable(model topology.Model) (bool, []kevlard.Layers) {
	var ranges []kevlard.Layers
	for _, c := range m.candidates(model.ID) {
		if m.serves(c.Node) {
			ranges = append(ranges, c.Layers)
		}
	}
	missing := topology.Uncovered(ranges, model.Layers)
	return len(missing) == 0, missing
}
