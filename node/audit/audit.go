package audit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// Config describes who audits.
type Config struct {
	Self kevlard.NodeID
	Boot kevlard.BootID
	// Seed is the secret that inputs are made of. All zero: no audits are made.
	Seed   [32]byte
	Timing Timing
}

// Holding is a ready stage of this node.
type Holding struct {
	Key   kevlard.StageKey
	Class string // numerics class
	Width int    // bytes of one row of hidden state, float32 values
	Vocab int    // tokens are below it
	Last  bool   // it samples
}

// Verdict is what is known of a claim.
type Verdict int

// The verdicts.
const (
	Unknown Verdict = iota
	Agrees
	Disputes
)

// Effect is what an audit asks of the node around it.
type Effect interface{ effect() }

// Send sends a control message. To may be this node.
type Send struct {
	To      kevlard.NodeID
	Message protocol.Message
}

// SendFrame sends work to a stage. To may be this node.
type SendFrame struct {
	To    kevlard.NodeID
	Frame protocol.Frame
}

// Judged says that a verdict has changed: the node's record must say so.
type Judged struct {
	Node    kevlard.NodeID
	Key     kevlard.StageKey
	Verdict Verdict // Unknown: what was found is of another life, or of a stage that is gone
	Why     string  // of a dispute: what differs
}

func (Send) effect()      {}
func (SendFrame) effect() {}
func (Judged) effect()    {}

// Counters only grow.
type Counters struct {
	Agreed   uint64
	Differed uint64
	Silent   uint64 // no answer, no verdict
}

// claim is a stage of a peer.
type claim struct {
	node kevlard.NodeID
	key  kevlard.StageKey
}

func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.node, o.node), c.key.Compare(o.key))
}

// state is what is known of a claim.
type state struct {
	boot    kevlard.BootID
	class   string
	live    bool            // it is ready, and so is this node's own
	at      kevlard.Instant // of the next audit, while live
	wait    time.Duration   // that the last one without a verdict cost; 0: it had one
	differs bool            // an audit differed, and is looked into
	doubted bool            // nobody believes the node, and this one has no word on it yet
	looks   int             // audits that must agree, one after the other, to end any of these or a dispute
	verdict Verdict
}

// dispute is one node's word on another, by the lives of both.
type dispute struct {
	by, about         kevlard.NodeID
	byBoot, aboutBoot kevlard.BootID
	key               kevlard.StageKey
}

// Machine audits the peers of one node. Not safe for concurrent use.
type Machine struct {
	cfg      Config
	own      []Holding
	claims   map[claim]*state
	heard    map[dispute]bool // those in the present view
	disputed map[kevlard.NodeID]bool
	run      *run            // nil: none
	due      kevlard.Instant // of the first audit: it is asked for at each step of the node
	drawn    uint64          // random numbers
	counters Counters
}

// New returns a machine that knows of nobody.
func New(cfg Config) *Machine {
	cfg.Timing = cfg.Timing.withDefaults()
	return &Machine{cfg: cfg, claims: map[claim]*state{}, heard: map[dispute]bool{}, disputed: map[kevlard.NodeID]bool{}, due: kevlard.Never}
}

func (m *Machine) off() bool { return m.cfg.Seed == [32]byte{} || m.cfg.Timing.Every < 0 }

// Counters returns a copy of the counters.
func (m *Machine) Counters() Counters { return m.counters }

// Deadline returns when Wake must be called.
func (m *Machine) Deadline() kevlard.Instant {
	if m.run != nil {
		return m.run.until
	}
	return m.due
}

// plan finds when the first audit is due.
func (m *Machine) plan() {
	m.due = kevlard.Never
	for _, s := range m.claims {
		if s.live {
			m.due = min(m.due, s.at)
		}
	}
}

// Disputes reports whether this node has found that a peer computes otherwise than it does.
func (m *Machine) Disputes(n kevlard.NodeID) bool { return m.disputed[n] }

// count brings disputed up to date.
func (m *Machine) count() {
	clear(m.disputed)
	for c, s := range m.claims {
		if s.verdict == Disputes {
			m.disputed[c.node] = true
		}
	}
}

// Words lists the holders of a stage of this node that it agrees with, and that it
// disputes, by name.
func (m *Machine) Words(key kevlard.StageKey) (agrees, disputes []kevlard.NodeID) {
	for c, s := range m.claims {
		switch {
		case c.key != key:
		case s.verdict == Agrees:
			agrees = append(agrees, c.node)
		case s.verdict == Disputes:
			disputes = append(disputes, c.node)
		}
	}
	slices.Sort(agrees)
	slices.Sort(disputes)
	return agrees, disputes
}

// See takes a view of the ring and the stages of this node that are ready. distrusts
// reports whether a node is not believed (Trust.Distrusts).
func (m *Machine) See(now kevlard.Instant, v topology.View, own []Holding, distrusts func(kevlard.NodeID) bool, out []Effect) []Effect {
	if m.off() {
		return out
	}
	m.own = own
	for _, s := range m.claims {
		s.live = false
	}
	said := map[claim]Verdict{}
	for c, s := range m.claims {
		said[c] = s.verdict
	}
	heard := map[dispute]bool{}
	for _, h := range own {
		m.seeHolders(now, v, h, heard)
	}
	m.heard = heard
	for _, c := range slices.SortedFunc(maps.Keys(m.claims), claim.compare) {
		_, known := v.Node(c.node)
		s := m.claims[c]
		if !s.live && (s.verdict != Disputes || !known) {
			delete(m.claims, c)
			s.verdict = Unknown
		}
		if s.verdict == Unknown && said[c] != Unknown {
			out = append(out, Judged{Node: c.node, Key: c.key})
		}
		if doubted := distrusts(c.node) && s.verdict == Unknown; doubted != s.doubted {
			s.doubted, s.looks = doubted, looks
		}
	}
	m.count()
	m.plan()
	if r := m.run; r != nil {
		if s := m.claims[r.claim]; s == nil || !s.live || s.boot != r.boot || s.class != r.hold.Class {
			out = m.end(r, out)
		}
	}
	return out
}

// seeHolders notes the peers that hold what h does.
func (m *Machine) seeHolders(now kevlard.Instant, v topology.View, h Holding, heard map[dispute]bool) {
	var holders []topology.Node
	follows := 0 // of the holders, the first whose name comes after this node's
	contested := map[kevlard.NodeID]bool{}
	for _, n := range v.Nodes {
		for _, s := range n.Stages {
			if s.Key != h.Key {
				continue
			}
			for _, about := range s.Disputes {
				o, _ := v.Node(about)
				d := dispute{n.ID, about, n.Boot, o.Boot, h.Key}
				if !m.heard[d] && !heard[d] {
					contested[n.ID], contested[about] = true, true
				}
				heard[d] = true
			}
			if n.ID == m.cfg.Self || s.State != topology.Ready || s.Class != h.Class || n.State != topology.Alive && n.State != topology.Suspect {
				continue
			}
			holders = append(holders, n)
			if n.ID < m.cfg.Self {
				follows = len(holders)
			}
		}
	}
	for i, n := range holders {
		c := claim{n.ID, h.Key}
		s := m.claims[c]
		near := (i-follows+len(holders))%len(holders) < neighbours
		if s == nil {
			if !near && !contested[n.ID] || len(m.claims) >= maxClaims {
				continue
			}
			s = &state{at: kevlard.Never}
			m.claims[c] = s
		}
		s.live = true
		if s.boot != n.Boot || s.class != h.Class { // another life: a dispute stands until it is refuted
			s.boot, s.class, s.differs, s.looks = n.Boot, h.Class, false, looks
			if s.verdict == Agrees {
				s.verdict = Unknown
			}
			s.at, s.wait = now.Add(m.jitter(m.cfg.Timing.First)), 0
		}
		if contested[n.ID] {
			s.at, s.wait = min(s.at, now.Add(m.jitter(m.cfg.Timing.First))), 0
		}
	}
}

// Wake ends an audit that took too long, and begins the next one that is due. may reports
// whether a peer, and this node, can be asked for so many positions now.
func (m *Machine) Wake(now kevlard.Instant, may func(kevlard.NodeID, int) bool, out []Effect) []Effect {
	if r := m.run; r != nil && now >= r.until {
		out = m.silent(now, r, out)
	}
	for m.run == nil && now >= m.Deadline() {
		c, s := m.next()
		h, n := m.holding(c.key), 0
		if h.Width > 0 {
			n = max(2, min(positions, maxBytes/h.Width))
		}
		if n == 0 || n*h.Width > maxBytes || h.Vocab < 1 || !may(c.node, n) {
			s.at = now.Add(m.cfg.Timing.Retry + m.jitter(m.cfg.Timing.Retry))
			m.plan()
			continue
		}
		out = m.begin(now, c, s, h, n, out)
	}
	return out
}

// Forgive is that of Trust, for the audit that runs.
func (m *Machine) Forgive(late time.Duration) {
	if m.run != nil {
		m.run.until = m.run.until.Add(late)
	}
}

// next is the claim that is due first.
func (m *Machine) next() (claim, *state) {
	var first claim
	var at *state
	for c, s := range m.claims {
		if s.live && (at == nil || s.at < at.at || s.at == at.at && c.compare(first) < 0) {
			first, at = c, s
		}
	}
	return first, at
}

func (m *Machine) holding(k kevlard.StageKey) Holding {
	for _, h := range m.own {
		if h.Key == k {
			return h
		}
	}
	return Holding{}
}

// silent ends an audit without a verdict.
func (m *Machine) silent(now kevlard.Instant, r *run, out []Effect) []Effect {
	m.counters.Silent++
	if s := m.claims[r.claim]; s != nil {
		s.wait = min(max(2*s.wait, m.cfg.Timing.Retry), m.cfg.Timing.Every)
		s.at = now.Add(s.wait + m.jitter(s.wait))
		m.plan()
	}
	return m.end(r, out)
}

// judged takes the outcome of an audit.
func (m *Machine) judged(now kevlard.Instant, r *run, differ string, out []Effect) []Effect {
	out = m.end(r, out)
	s := m.claims[r.claim]
	if s == nil {
		return out
	}
	defer m.plan()
	s.wait, s.at = 0, now.Add(m.cfg.Timing.Every/2+m.jitter(m.cfg.Timing.Every))
	found := s.verdict
	switch {
	case differ == "":
		m.counters.Agreed++
		if s.differs || s.doubted || s.verdict == Disputes {
			if s.looks--; s.looks > 0 {
				s.at = now
				return out
			}
		}
		found, s.differs, s.doubted = Agrees, false, false
	case s.differs || s.verdict == Disputes:
		m.counters.Differed++
		found, s.differs, s.looks = Disputes, false, looks
	default:
		m.counters.Differed++
		s.at, s.differs, s.looks = now, true, looks
	}
	if s.verdict == found {
		return out
	}
	s.verdict = found
	m.count()
	return append(out, Judged{r.claim.node, r.claim.key, found, differ})
}
