package node

import (
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/session"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// received routes a control message to the stage or session it is for.
func (m *Machine) received(now kevlard.Instant, ev Received, out []Effect) []Effect {
	out = m.heard(now, ev.From, out)
	if m.audits.Concerns(answered(ev.Message)) {
		return m.fromAudit(m.audits.Received(now, ev.From, ev.Message, nil), out)
	}
	switch msg := ev.Message.(type) {
	case protocol.Ping:
		if p := m.peers[ev.From]; p != nil {
			m.loads(ev.From, p, msg.Sessions)
			p.free, p.told = msg.Free, true
		}
		return append(out, Send{ev.From, protocol.Pong{Seq: msg.Seq, Sessions: m.held(), Free: m.free()}})
	case protocol.Pong:
		m.pong(now, ev.From, msg)
		return out
	case protocol.Prepare:
		return m.prepare(now, ev.From, ev.Boot, msg, out)
	case protocol.Close:
		for i, s := range m.stages {
			if l := s.Key().Layers; l.Lo == msg.Lo && (l.Hi == msg.Hi || msg.Hi == 0) {
				out = m.fromStage(now, i, s.Close(now, ev.From, msg, nil), out)
			}
		}
		if !msg.Keep {
			m.copies.Close(ev.From, msg.Session, msg.Lo, msg.Fence)
		}
		return out
	case protocol.Probe:
		return append(out, Send{ev.From, m.probe(msg)})
	case protocol.Renew:
		for _, s := range m.stages {
			s.Renew(now, ev.From, msg.Sessions)
		}
		m.copies.Renew(now, ev.From, msg.Sessions)
		return out
	case protocol.Replicate:
		for i, s := range m.stages {
			if s.Key().Layers.Lo == msg.Lo {
				out = m.fromStage(now, i, s.Replicate(now, ev.From, msg, nil), out)
			}
		}
		return out
	case protocol.Offer:
		return append(out, Send{ev.From, m.offer(now, ev.From, msg)})
	case protocol.Stored:
		for i, s := range m.stages {
			if s.Key() == msg.Stage {
				out = m.fromStage(now, i, s.Stored(now, ev.From, msg, nil), out)
			}
		}
		return out
	case protocol.Fetch:
		return m.fetch(now, ev.From, msg, out)
	case protocol.Fetched:
		for i, s := range m.stages {
			if s.Key() == msg.Stage {
				out = m.fromStage(now, i, s.Fetched(now, ev.From, msg, nil), out)
			}
		}
		return out
	case protocol.Follow:
		return m.attend(now, ev.From, msg, out)
	case protocol.Followed:
		return m.followed(ev.From, msg, out)
	case protocol.Unfollow:
		return m.dismiss(now, ev.From, msg, out)
	case protocol.Seek:
		return append(out, Send{ev.From, m.holdings(msg)})
	case protocol.Sought:
		return m.sought(now, ev.From, msg, out)
	case protocol.StandbyLost:
		return m.withSession(now, msg.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.StandbyLost(now, ev.From, msg, e)
		})
	case protocol.Prepared:
		return m.withSession(now, msg.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Prepared(now, ev.From, msg, e)
		})
	case protocol.Step:
		return m.withSession(now, msg.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Step(now, ev.From, msg, e)
		})
	case protocol.Probed:
		return m.withSession(now, msg.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			s.Probed(ev.From, msg)
			return e
		})
	case protocol.Lost:
		return m.withSession(now, msg.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Lost(now, ev.From, msg, e)
		})
	case protocol.Refused:
		return m.refused(now, ev.From, msg, out)
	case protocol.Record, protocol.Log, protocol.Logged, protocol.Locate, protocol.Located, protocol.Vote, protocol.Promise, protocol.Forget, protocol.Keep:
		return m.aboutOwner(now, protocol.Life{Node: ev.From, Boot: ev.Boot}, msg, out)
	default:
		panic(fmt.Sprintf("node: message of unknown type %T", msg))
	}
}

func (m *Machine) prepare(now kevlard.Instant, from kevlard.NodeID, boot kevlard.BootID, p protocol.Prepare, out []Effect) []Effect {
	refuse := func(why protocol.Refusal, detail string) []Effect {
		return append(out, Send{from, protocol.Prepared{Session: p.Session, Fence: p.Fence, Lo: p.Stage.Layers.Lo, Refusal: why, Detail: detail}})
	}
	if boot != p.OwnerBoot {
		return refuse(protocol.RefusedStale, "prepared for another boot of its owner")
	}
	for i, s := range m.stages {
		if s.Key() == p.Stage {
			link := p.Last || m.reach(p.Next)
			return m.fromStage(now, i, s.Prepare(now, from, p, link, m.drains.on && m.spares(s), nil), out)
		}
	}
	return refuse(protocol.RefusedNoStage, fmt.Sprintf("no stage %v of model %s here", p.Stage.Layers, p.Stage.Model.Short()))
}

// refused goes to the session if it is owned here; a stage passes it on to the
// owner when its neighbour did not know whom to tell.
func (m *Machine) refused(now kevlard.Instant, from kevlard.NodeID, r protocol.Refused, out []Effect) []Effect {
	if m.sessions[r.Session] != nil {
		return m.withSession(now, r.Session, out, func(s *session.Machine, e []session.Effect) []session.Effect {
			return s.Refused(now, r, e)
		})
	}
	for _, s := range m.stages {
		if owner, ok := s.Owner(r.Session); ok && owner != from && owner != m.cfg.Self {
			return append(out, Send{owner, r})
		}
	}
	return out
}

func (m *Machine) probe(p protocol.Probe) protocol.Probed {
	for _, s := range m.stages {
		if s.Key().Layers.Lo == p.Lo && s.Key().Model == p.Model {
			if a := s.Probe(p); a.Known || a.Stalled {
				return a
			}
		}
	}
	return protocol.Probed{Session: p.Session, Fence: p.Fence, Lo: p.Lo, Round: p.Round}
}

func (m *Machine) item(now kevlard.Instant, from kevlard.NodeID, it protocol.Item, out []Effect) []Effect {
	at, owned := -1, false
	for i, s := range m.stages {
		if s.Key().Layers.Lo != it.Lo {
			continue
		}
		if s.Expects(it.Session, it.Fence) {
			at = i
			break
		}
		if !owned {
			at = i
			_, owned = s.Owner(it.Session)
		}
	}
	if at < 0 {
		return append(out, Send{from, protocol.Refused{Session: it.Session, Fence: it.Fence, Lo: it.Lo, Pos: it.Pos, Reason: protocol.RefusedNoStage}})
	}
	return m.fromStage(now, at, m.stages[at].Item(now, from, it, nil), out)
}

func (m *Machine) engine(now kevlard.Instant, ev Event, out []Effect) []Effect {
	for i, s := range m.stages {
		switch ev := ev.(type) {
		case EngineReady:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.EngineReady(now, ev.Run, ev.Class, ev.Cells, ev.CellBytes, nil), out)
				m.tellAll(now)
			}
		case EngineLoading:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.EngineLoading(ev.Run, ev.Progress, ev.Waits, nil), out)
			}
		case EngineExited:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.EngineExited(now, ev.Run, ev.Poisonous, ev.Reason, nil), out)
			}
		case Exported:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.Exported(now, ev.Run, ev.ID, ev.Failed, nil), out)
			}
		case Loaded:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.Loaded(now, ev.Run, ev.ID, ev.N, ev.Damaged, nil), out)
			}
		case RowsUnsent:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.StandbyGone(ev.To, ev.Session, "unreachable: "+ev.Cause, nil), out)
			}
		case BatchDone:
			if s.Key() == ev.Stage {
				out = m.fromStage(now, i, s.BatchDone(now, ev.Run, ev.Batch, ev.Rows, ev.Sampled, nil), out)
			}
		}
	}
	return out
}

// fromStage carries the effects of stage i over.
func (m *Machine) fromStage(now kevlard.Instant, i int, effects []stage.Effect, out []Effect) []Effect {
	key := m.stages[i].Key()
	changed := false
	for _, e := range effects {
		switch e := e.(type) {
		case stage.Reply:
			out = append(out, Send{e.To, e.Message})
		case stage.Forward:
			out = append(out, SendFrame{e.To, e.Frame})
		case stage.Run:
			out = append(out, RunBatch{key, e.Engine, e.Batch})
		case stage.Export:
			if e.To == "" {
				e.To = m.cfg.Self
			}
			out = append(out, Export{key, e.Engine, e.ID, e.Cell, e.To, e.Rows})
		case stage.Load:
			out = append(out, Load{key, e.Engine, e.ID, e.Session, e.Pos, e.Cell, e.From})
		case stage.Start:
			out = append(out, StartEngine{key, e.Engine, m.assigned[key].Device})
		case stage.Kill:
			out = append(out, KillEngine{key, e.Engine})
		case stage.Changed:
			changed = true
		case stage.Note:
			out = append(out, Report{Type: e.Type, Session: e.Session, Cause: e.Cause, Detail: e.Detail})
		default:
			panic(fmt.Sprintf("node: stage effect of unknown type %T", e))
		}
	}
	if changed {
		m.unsettled(now)
		out = append(m.compare(out), m.publish())
	}
	return out
}

// findRoute answers a session that wants a route.
func (m *Machine) findRoute(now kevlard.Instant, s *session.Machine, out []session.Effect) []session.Effect {
	if f := m.tainted(s); f != nil {
		return s.Fail(now, f, out)
	}
	if !m.knowing(s) { // it was paused, or taken over
		out = s.Resalt(now, m.salted(s.Salt()), out)
	}
	model, known := m.view.Model(s.Model())
	if !known {
		return s.NoRoute(now, nil, out)
	}
	if !s.Recovering() && m.recoveringWait(s.Model()) {
		return s.NoRoute(now, nil, out) // room goes to those who are under way first
	}
	f, wait, out := m.seek(now, s, out)
	if wait {
		return out
	}
	previous := s.Previous()
	room := func(n kevlard.NodeID) bool { return previous.Uses(n) || m.roomFor(n, s.Positions()) }
	ask := scheduler.Ask{
		Layers: model.Layers, Table: m.table(now, s.Model()), Class: s.Class(), Zone: m.zone(), Previous: previous,
		Usable: func(n kevlard.NodeID) bool { return m.usable(n) && room(n) && !s.Avoids(now, n) },
	}
	m.hops = s.Copies(m.hops[:0])
	ask.Copies = m.hops
	s.AvoidedEdges(now, func(from, to kevlard.NodeID) { ask.Avoid = append(ask.Avoid, scheduler.Edge{From: from, To: to}) })
	if len(previous) == 0 && f != nil {
		m.found = f.holders(m.found[:0])
		ask.Held, ask.Worth = m.found, min(seekWorth, len(s.Prompt())/2)
	}
	a := m.router.Route(ask)
	if a.Route == nil { // its own room at a node that drains is better than none
		ask.Usable = func(n kevlard.NodeID) bool {
			return (m.usable(n) && room(n) || previous.Uses(n) && m.serves(n)) && !s.Avoids(now, n)
		}
		a = m.router.Route(ask)
	}
	if a.Route == nil { // blame yields to need, reachability does not
		ask.Avoid = nil
		ask.Usable = func(n kevlard.NodeID) bool { return m.usable(n) && room(n) }
		m.waiting[s.ID()] = m.router.Route(ask).Route == nil
		ask.Usable = m.usable
		forced := m.router.Route(ask)
		if forced.Route == nil { // what only draining nodes have, they serve while they stay
			ask.Usable = m.serves
			forced = m.router.Route(ask)
			if forced.Route == nil {
				return s.NoRoute(now, forced.Missing, out)
			}
			ask.Usable = func(n kevlard.NodeID) bool { return m.serves(n) && !s.Avoids(now, n) }
			a = m.router.Route(ask)
		}
		if a.Route == nil && !s.Desperate(now) {
			return s.NoRoute(now, nil, out)
		}
		if a.Route == nil {
			a = forced
		}
	}
	a.Route = slices.Clone(a.Route) // it is the router's
	for _, h := range a.Route {     // until the next ping says better
		if p := m.peers[h.Node]; p != nil && !previous.Uses(h.Node) {
			p.free = max(0, p.free-s.Positions())
		}
	}
	return s.SetRoute(now, a.Route, a.Class, m.standbys(now, s, a.Route, a.Class), m.sources(s, f, a.Route, a.Class), out)
}

// candidates lists the ready stages of a model. It is the view's, and not to be changed.
func (m *Machine) candidates(model kevlard.Digest) []topology.Candidate {
	return m.readyOf(model).candidates
}

// table returns the same in the order of their load, with how far their zones are.
func (m *Machine) table(now kevlard.Instant, model kevlard.Digest) *scheduler.Table {
	r := m.readyOf(model)
	m.inUse()
	if r.table == nil {
		r.table = scheduler.NewTable(r.candidates, m.load)
	}
	r.table.Set(m.cfg.Self, m.held())
	if len(r.table.Zones()) > 1 && now >= r.zonesAt {
		r.zonesAt = now.Add(zonesEvery)
		m.measureZones(r.table)
	}
	return r.table
}

// ready is the ready stages of one model in the present view.
type ready struct {
	candidates []topology.Candidate
	table      *scheduler.Table // nil: not asked for
	zonesAt    kevlard.Instant  // when the distances of its zones are measured anew
}

func (m *Machine) readyOf(model kevlard.Digest) *ready {
	r := m.ready[model]
	if r == nil {
		r = &ready{candidates: withDraining(m.view).Candidates(model)}
		m.ready[model] = r
	}
	return r
}

// loads notes what a node said that it holds.
func (m *Machine) loads(n kevlard.NodeID, p *peer, sessions int) {
	if p.load != sessions {
		p.load = sessions
		m.reload(n)
	}
}

// reload puts a node where its load belongs.
func (m *Machine) reload(n kevlard.NodeID) {
	for _, r := range m.ready {
		if r.table != nil {
			r.table.Set(n, m.load(n))
		}
	}
}

// recoveringWait reports whether a session that is under way waits for a route that
// others could take from it.
func (m *Machine) recoveringWait(model kevlard.Digest) bool {
	for id, short := range m.waiting {
		if s := m.sessions[id]; short && s != nil && s.Recovering() && s.Model() == model {
			return true
		}
	}
	return false
}

// usable reports whether a node can be a hop now.
func (m *Machine) usable(id kevlard.NodeID) bool {
	n, ok := m.view.Node(id)
	if !ok || n.State == topology.Dead || n.State == topology.Left || n.State == topology.Draining || n.Avoid || !m.reach(id) || !m.believed(id) {
		return false
	}
	if id == m.cfg.Self {
		return !m.drains.on && !m.ailing.avoided()
	}
	return n.Boot == m.peers[id].boot // the record is of the boot that is connected
}

// load is how many sessions a node holds: what it said last, or what is known to
// have been sent there, whichever is more.
func (m *Machine) load(n kevlard.NodeID) int {
	if n == m.cfg.Self {
		return m.held()
	}
	own := m.inUse()[n]
	if p := m.peers[n]; p != nil {
		return max(own, p.load)
	}
	return own
}
