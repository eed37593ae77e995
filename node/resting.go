package node

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/session"
)

// resting holds the sessions that have no client and can be resumed: paused ones, and
// those that have ended, for clients that lost the last bytes. All rest equally long,
// so the oldest is the next to go. The zero value is empty.
type resting struct {
	by    map[kevlard.SessionID]*rested
	order []*rested // oldest first; those that were taken out are skipped
	bytes int
	// infos is what paused returns; nil: it is to be made again.
	infos []SessionInfo
}

type rested struct {
	s     *session.Machine
	until kevlard.Instant
	bytes int
	info  *SessionInfo // if it is paused
	taken bool
}

func (r *resting) get(id kevlard.SessionID) *session.Machine {
	if x := r.by[id]; x != nil {
		return x.s
	}
	return nil
}

func (r *resting) add(s *session.Machine, until kevlard.Instant) {
	if r.by == nil {
		r.by = map[kevlard.SessionID]*rested{}
	}
	x := &rested{s: s, until: until, bytes: s.Trim()}
	if s.State() == session.Paused {
		info := describe(s)
		x.info = &info
		r.infos = nil
	}
	r.by[s.ID()] = x
	r.order = append(r.order, x)
	r.bytes += x.bytes
}

// all lists the sessions, the oldest first.
func (r *resting) all() []*session.Machine {
	var out []*session.Machine
	for _, x := range r.order {
		if !x.taken {
			out = append(out, x.s)
		}
	}
	return out
}

// take removes a session; nil if it is not there.
func (r *resting) take(id kevlard.SessionID) *session.Machine {
	x := r.by[id]
	if x == nil {
		return nil
	}
	delete(r.by, id)
	r.bytes -= x.bytes
	x.taken = true
	s := x.s
	if x.info != nil {
		r.infos = nil
	}
	x.s, x.info = nil, nil
	for len(r.order) > 0 && r.order[0].taken {
		r.order = r.order[1:]
	}
	if len(r.order) > 2*len(r.by)+16 {
		r.order = slices.DeleteFunc(r.order, func(x *rested) bool { return x.taken })
	}
	return s
}

// next is when the oldest is forgotten.
func (r *resting) next() kevlard.Instant {
	if len(r.order) == 0 {
		return kevlard.Never
	}
	return r.order[0].until
}

// paused describes the sessions that could go on. The slice is shared, and not to be
// changed: snapshots are many, and changes few.
func (r *resting) paused() []SessionInfo {
	if r.infos != nil {
		return r.infos
	}
	r.infos = []SessionInfo{}
	for _, x := range r.order {
		if x.info != nil {
			r.infos = append(r.infos, *x.info)
		}
	}
	return r.infos
}

// rest keeps a session whose client's stream is over, if it can be resumed.
func (m *Machine) rest(now kevlard.Instant, s *session.Machine, out []Effect) []Effect {
	if m.cfg.Timing.Resume < 0 || !s.Resumable() {
		for _, e := range s.Forget(nil) {
			out = m.fromSession(s, e, out)
		}
		return out
	}
	m.resting.add(s, now.Add(m.cfg.Timing.Resume))
	return m.forgetRested(now, out)
}

// forgetRested ends the sessions that rested for long enough, or for whom there is no
// room.
func (m *Machine) forgetRested(now kevlard.Instant, out []Effect) []Effect {
	r := &m.resting
	for len(r.order) > 0 && (now >= r.next() || len(r.by) > m.cfg.Limits.Resting || r.bytes > m.cfg.Limits.RestingBytes) {
		s := r.take(r.order[0].s.ID())
		delete(m.unlogged, s.ID())
		for _, e := range s.Forget(nil) {
			out = m.fromSession(s, e, out)
		}
	}
	return out
}

// resume gives a resting session a client here.
func (m *Machine) resume(now kevlard.Instant, ev Resume, out []Effect) []Effect {
	s, why := m.attach(ev.Session)
	if why != nil {
		return append(out, Finish{Session: ev.Session, Reason: "error", Err: why})
	}
	m.clients[ev.Session] = ev.Client
	if n := s.Reused(); n > 0 {
		out = append(out, Reused{ev.Session, n})
	}
	tokens, logprobs := s.Log()
	return m.goOn(now, s, append(out, Replay{ev.Session, tokens, logprobs}))
}

// attach takes a session out of its rest, for a client that is there; goOn must follow.
func (m *Machine) attach(id kevlard.SessionID) (*session.Machine, *kevlard.Failure) {
	s := m.resting.get(id)
	var wrong *kevlard.Failure
	if s != nil && s.State() == session.Paused {
		wrong = m.tainted(s)
	}
	switch {
	case m.sessions[id] != nil || m.following[id] != nil:
		return nil, busy()
	case s == nil:
		return nil, notKnown()
	case wrong != nil:
		return nil, wrong
	case s.State() == session.Paused && len(m.sessions) >= m.cfg.Limits.Sessions:
		return nil, &kevlard.Failure{Code: "overloaded", Status: 429, Message: "this node owns as many sessions as it takes; try again later"}
	}
	return m.resting.take(id), nil
}

func notKnown() *kevlard.Failure {
	return &kevlard.Failure{Code: "session_not_found", Status: 404, Message: "the session is not known: it was never here, or its time to be resumed is over"}
}

func busy() *kevlard.Failure {
	return &kevlard.Failure{Code: "session_busy", Status: 409, Message: "the session is running, and its client is connected"}
}

// goOn lets a session run whose client is back, or tells the client how it ended.
func (m *Machine) goOn(now kevlard.Instant, s *session.Machine, out []Effect) []Effect {
	if s.State() == session.Done {
		delete(m.clients, s.ID())
		m.resting.add(s, now.Add(m.cfg.Timing.Resume))
		return m.forgetRested(now, m.fromSession(s, s.Ended(), out))
	}
	m.sessions[s.ID()] = s
	if f := m.followers[s.ID()]; f != nil {
		out = m.push(s.ID(), f, out)
	}
	return m.withSession(now, s.ID(), out, func(s *session.Machine, e []session.Effect) []session.Effect {
		return s.Resume(now, e)
	})
}

// find says what this node knows of a session.
func (m *Machine) find(ev Find) Found {
	f := Found{Number: ev.Number, Session: ev.Session}
	if r, ok := m.records.Get(ev.Session); ok {
		f.Recorded, f.Epoch, f.Envelope = true, r.Epoch, r.Envelope
	}
	s := m.sessions[ev.Session]
	f.Running = s != nil
	if s == nil {
		s = m.resting.get(ev.Session)
	}
	if s != nil && s.Resumable() {
		f.Owned, f.Epoch, f.Envelope = true, s.Fence().Epoch, s.Request().Envelope
	}
	return f
}
