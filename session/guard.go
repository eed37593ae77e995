package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session/witness"
)

// guarding is what an owner does so that its session can be taken over.
type guarding struct {
	witness.Guard
	self    protocol.Life
	class   string                // in the record
	sent    map[protocol.Life]int // generated tokens that were sent to each witness
	told    bool                  // the record was sent
	due     kevlard.Instant       // when to tell again those who have not answered
	openBy  kevlard.Instant       // when to show tokens although too few witnesses have the record
	forced  bool                  // that was done
	unfit   []protocol.Life       // refused to be a witness
	waiting kevlard.Instant       // since when a token is not committed; 0: none is
}

// WantsWitnesses reports whether witnesses should be named now.
func (m *Machine) WantsWitnesses() bool { return m.Resumable() && !m.chosen && m.guard == nil }

// SetWitnesses names the witnesses, before the first route is set. None means that the
// session cannot be taken over: the ring is too small.
func (m *Machine) SetWitnesses(self protocol.Life, now []protocol.Life) {
	m.chosen = true
	if len(now) > 0 {
		m.guard = newGuarding(1, self, protocol.Witnesses{Version: 1, Now: now})
	}
}

func newGuarding(epoch uint64, self protocol.Life, w protocol.Witnesses) *guarding {
	return &guarding{Guard: witness.NewGuard(epoch, w), self: self, sent: map[protocol.Life]int{}, due: kevlard.Never, openBy: kevlard.Never}
}

// TakenOver returns a session that goes on from a record of another owner, which self
// has won. It is paused, and its witnesses are told.
func TakenOver(r protocol.Record, self protocol.Life, before protocol.Life, timing Timing, now kevlard.Instant) (*Machine, []Effect) {
	req := Request{
		Model: r.Model, Prompt: r.Prompt, MaxTokens: r.MaxTokens, Sampling: r.Sampling, EOG: r.EOG, IgnoreEOG: r.IgnoreEOG,
		MinTokens: r.MinTokens, Salt: r.Salt, Envelope: r.Envelope,
	}
	m := New(r.Session, self.Boot, req, timing, now)
	m.state, m.deadline, m.fence = Paused, kevlard.Never, kevlard.Fence{Epoch: r.Epoch}
	m.class, m.hint, m.before, m.chosen = r.Class, r.Route, before, true
	m.inherit(r)
	m.guard = newGuarding(r.Epoch, self, r.Witnesses)
	m.guard.class = r.Class
	for _, h := range r.Route {
		m.runs(h.Node)
	}
	return m, m.tellAll(now, nil)
}

// inherit takes what the last owner has generated.
func (m *Machine) inherit(r protocol.Record) {
	tokens := r.Tokens
	var logprobs []kevlard.Logprobs
	if m.req.Sampling.Logprobs { // what did not fit the record has none
		logprobs = append(make([]kevlard.Logprobs, len(tokens)-len(r.Logprobs)), r.Logprobs...)
	}
	if n := len(tokens) - 1; n >= 0 && m.ends(tokens[n], n) {
		m.end, m.ending = &kevlard.Sampled{Token: tokens[n]}, &Finish{Reason: "stop"}
		if logprobs != nil {
			m.end.Logprobs, logprobs = &logprobs[n], logprobs[:n]
		}
		tokens = tokens[:n]
	}
	m.tokens, m.logprobs, m.inherited = append(m.tokens, tokens...), logprobs, len(tokens)
	if m.begun = len(r.Tokens) > 0; m.begun {
		m.reused = r.Reused
	}
	if len(tokens) >= m.req.MaxTokens {
		m.ending = &Finish{Reason: "length"}
	}
}

// history is what the witnesses are to have of what was generated: also the token that
// ended the answer. It must not be changed.
func (m *Machine) history() []kevlard.Token {
	tokens := m.tokens[len(m.req.Prompt):len(m.tokens):len(m.tokens)]
	if m.end != nil {
		tokens = append(tokens, m.end.Token)
	}
	return tokens
}

// historyLogprobs has one for each token of history if the request asked for them.
func (m *Machine) historyLogprobs() []kevlard.Logprobs {
	logprobs := m.logprobs[:len(m.logprobs):len(m.logprobs)]
	if m.end != nil && m.end.Logprobs != nil {
		logprobs = append(logprobs, *m.end.Logprobs)
	}
	return logprobs
}

// Before returns the owner that the session was taken over from; zero if it was not.
func (m *Machine) Before() protocol.Life { return m.before }

// Superseded reports whether another node owns the session in a newer epoch.
func (m *Machine) Superseded() bool { return m.superseded > 0 }

// Witnesses lists the session's present witnesses.
func (m *Machine) Witnesses() []protocol.Life {
	if m.guard == nil {
		return nil
	}
	return witness.All(m.guard.Guard.Witnesses())
}

// record describes the session for its witnesses.
func (m *Machine) record() protocol.Record {
	return protocol.Record{
		Session: m.id, Epoch: m.fence.Epoch, Owner: m.guard.self, Witnesses: m.guard.Guard.Witnesses(),
		Model: m.req.Model, Prompt: m.req.Prompt, MaxTokens: m.req.MaxTokens, Sampling: m.req.Sampling, EOG: m.req.EOG,
		IgnoreEOG: m.req.IgnoreEOG, MinTokens: m.req.MinTokens, Salt: m.req.Salt, Envelope: m.req.Envelope,
		Class: m.guard.class, Route: slices.Clone(m.Previous()),
		Tokens: m.history(), Logprobs: witness.Fitting(m.historyLogprobs()), Reused: m.reused,
	}
}

// guardRoute tells the witnesses of the session when its first route is set: the
// record is on its way while the stages prepare. A route of another class before
// anything was generated makes a new record.
func (m *Machine) guardRoute(now kevlard.Instant, out []Effect) []Effect {
	g := m.guard
	switch {
	case g == nil || g.told && (g.class == m.class || m.Generated() > 0):
		return out
	case g.told:
		g.Amend()
	}
	g.class = m.class
	return m.tellAll(now, out)
}

// tellAll sends the record to all witnesses.
func (m *Machine) tellAll(now kevlard.Instant, out []Effect) []Effect {
	for _, l := range m.Witnesses() {
		out = m.tell(l, out)
	}
	g := m.guard
	if !g.told || !g.Open() {
		g.openBy = now.Add(m.timing.Witness)
	}
	g.told, g.due = true, now.Add(m.timing.Again)
	return out
}

// tell sends the record to one witness.
func (m *Machine) tell(l protocol.Life, out []Effect) []Effect {
	m.guard.sent[l] = len(m.history())
	return append(out, Send{l.Node, m.record()})
}

// Unlogged reports whether witnesses lack tokens, and whether they should be told at
// once, because somebody waits for that.
func (m *Machine) Unlogged() (some, urgent bool) {
	if m.guard == nil || !m.guard.told {
		return false, false
	}
	n := len(m.history())
	for _, l := range m.Witnesses() {
		if sent := m.guard.sent[l]; sent < n {
			some = true
			// What is under way takes what has come meanwhile with it, when it is answered.
			_, acked := m.guard.Acked(l)
			urgent = urgent || m.bestEffort() && acked == sent
		}
	}
	return some, urgent
}

// Unsaid returns what one witness is to be told now. If it lacks the record, the
// session tells it that itself.
func (m *Machine) Unsaid(now kevlard.Instant, l protocol.Life) (protocol.LogEntry, bool) {
	g := m.guard
	tokens := m.history()
	from, end := g.sent[l], len(tokens)
	if from >= end {
		return protocol.LogEntry{}, false
	}
	g.sent[l] = end
	g.due = min(g.due, now.Add(m.timing.Again))
	e := protocol.LogEntry{Session: m.id, Epoch: m.fence.Epoch, From: from, Tokens: tokens[from:end:end], Reused: m.reused}
	if m.req.Sampling.Logprobs {
		e.Logprobs = m.historyLogprobs()[from:end:end]
	}
	return e, true
}

// flush tells the witnesses what they lack: the session rests or ends.
func (m *Machine) flush(now kevlard.Instant, out []Effect) []Effect {
	if m.guard == nil || !m.guard.told {
		return out
	}
	for _, l := range m.Witnesses() {
		if e, ok := m.Unsaid(now, l); ok {
			out = append(out, Send{l.Node, protocol.Log{Entries: []protocol.LogEntry{e}}})
		}
	}
	return out
}

// Logged takes a witness's acknowledgement.
func (m *Machine) Logged(now kevlard.Instant, from protocol.Life, e protocol.LoggedEntry, out []Effect) []Effect {
	if m.guard == nil || m.state == Done {
		return out
	}
	changed := m.guard.Guard.Logged(from, e)
	if newer := m.guard.Newer(); newer > m.fence.Epoch {
		return m.supersede(newer, out)
	}
	switch {
	case changed:
		out = m.tellAll(now, out)
	case e.Epoch != m.fence.Epoch || !slices.Contains(m.Witnesses(), from):
	case e.Refusal == protocol.WitnessFull || e.Refusal != "" && m.recorded(from):
		if !slices.Contains(m.guard.unfit, from) && len(m.guard.unfit) < maxUnfit {
			m.guard.unfit = append(m.guard.unfit, from)
		}
	}
	return m.release(now, out)
}

// recorded reports whether a witness had the record once: if it does not know the
// session now, it has forgotten it.
func (m *Machine) recorded(l protocol.Life) bool {
	version, _ := m.guard.Acked(l)
	return version > 0
}

// maxUnfit bounds the nodes remembered as unfit to be witnesses of one session; more
// are asked again.
const maxUnfit = 64

// supersede ends the session here: nothing of this epoch is shown any more.
func (m *Machine) supersede(epoch uint64, out []Effect) []Effect {
	if m.state == Done {
		return out
	}
	m.superseded = epoch
	paused := m.state == Paused
	m.state, m.deadline = Done, kevlard.Never
	m.ended = Finish{"error", &kevlard.Failure{
		Code: "session_busy", Status: 409,
		Message: fmt.Sprintf("another node has taken the session over (epoch %d): resume it with its id, on any node", epoch),
	}}
	out = m.closeHops(m.route, nil, out)
	out = m.closeHops(m.old, m.route, out)
	out = append(out, Note{Type: "superseded", Detail: fmt.Sprintf("epoch %d is over, %d has begun", m.fence.Epoch, epoch)})
	if paused {
		return out
	}
	return append(out, m.ended)
}

func (m *Machine) bestEffort() bool { return strings.HasPrefix(m.class, kevlard.BestEffort) }

// allowed returns how many generated tokens may be shown.
func (m *Machine) allowed() int {
	switch g := m.guard; {
	case g == nil:
		return m.Generated()
	case !g.Open() && !g.forced:
		return m.shown
	case m.bestEffort():
		return max(m.shown, min(g.Committed(), m.Generated()))
	}
	return m.Generated()
}

// release shows what may be shown, and ends a session that has only waited for that.
func (m *Machine) release(now kevlard.Instant, out []Effect) []Effect {
	if m.state == Paused || m.state == Done {
		return out
	}
	for n := m.allowed(); m.shown < n; m.shown++ {
		e := Emit{Index: m.shown, Token: m.tokens[len(m.req.Prompt)+m.shown], Again: m.shown < m.inherited}
		if m.req.Sampling.Logprobs {
			e.Logprobs = &m.logprobs[m.shown]
		}
		out = append(out, e)
	}
	if g := m.guard; g != nil {
		switch waits := m.shown < m.Generated() || m.state == Settling && m.unsettled(); {
		case !waits:
			g.waiting = 0
		case g.waiting == 0:
			g.waiting = now
		}
	}
	if m.state == Settling && !m.unsettled() {
		end := *m.ending
		m.ending = nil
		return m.finish(now, end.Reason, end.Err, out)
	}
	return out
}

// guardDue returns when guardWake must be called.
func (m *Machine) guardDue() kevlard.Instant {
	g := m.guard
	if g == nil || m.state == Done || m.state == Paused {
		return kevlard.Never
	}
	at := g.due
	if !g.Open() && !g.forced && !m.bestEffort() {
		at = min(at, g.openBy)
	}
	return min(at, m.waitsUntil())
}

// waitsUntil is when to give up waiting for the witnesses to have what was generated.
func (m *Machine) waitsUntil() kevlard.Instant {
	switch {
	case m.guard.waiting == 0:
		return kevlard.Never
	case m.shown == 0:
		return m.guard.waiting.Add(m.timing.QueueDeadline)
	}
	return m.guard.waiting.Add(m.timing.RecoverDeadline)
}

// CodeNoQuorum is the code of a session of which too few witnesses can be reached.
const CodeNoQuorum = "session_no_quorum"

// guardWake tells witnesses again what they have not acknowledged, and gives up
// waiting for them.
func (m *Machine) guardWake(now kevlard.Instant, out []Effect) []Effect {
	g := m.guard
	if now < m.guardDue() {
		return out
	}
	if !g.Open() && !g.forced && now >= g.openBy && !m.bestEffort() {
		// It would be generated alike elsewhere, so showing it does no harm; but if the
		// owner dies before the witnesses answer, the session is lost.
		g.forced = true
		out = m.release(now, append(out, Note{Type: "unguarded", Cause: "witnesses", Detail: "too few witnesses answer: until they do, the session can't be taken over"}))
	}
	if m.state != Paused && m.state != Done && now >= m.waitsUntil() {
		return m.fail(now, &kevlard.Failure{
			Code: CodeNoQuorum, Status: 409,
			Message: "too few of the session's witnesses can be reached to show what was generated",
		}, out)
	}
	if now < g.due {
		return out
	}
	return m.Remind(now, out)
}

// Remind tells witnesses again what they have not acknowledged.
func (m *Machine) Remind(now kevlard.Instant, out []Effect) []Effect {
	g := m.guard
	if g == nil || !g.told || m.state == Done {
		return out
	}
	g.due = kevlard.Never
	want := g.Guard.Witnesses().Version
	for _, l := range m.Witnesses() {
		version, through := g.Acked(l)
		switch {
		case version < want:
			out = m.tell(l, out)
			g.due = now.Add(m.timing.Again)
		case through < g.sent[l]:
			g.sent[l] = through
			g.due = now.Add(m.timing.Again)
		}
	}
	return out
}

// forget tells the witnesses that they need no record any more, or only for a while.
func (m *Machine) forget(ended bool, out []Effect) []Effect {
	if m.guard == nil || !m.guard.told {
		return out
	}
	for _, l := range m.Witnesses() {
		out = append(out, Send{l.Node, protocol.Forget{Session: m.id, Epoch: m.fence.Epoch, Ended: ended}})
	}
	return out
}

// MissesWitness returns the witnesses that can be kept, if some should be replaced and
// that is possible now. gone reports whether one is lost for good.
func (m *Machine) MissesWitness(gone func(protocol.Life) bool) (keep []protocol.Life, misses bool) {
	g := m.guard
	if g == nil || m.state == Done || !g.Settled() {
		return nil, false
	}
	now := g.Guard.Witnesses().Now
	keep = slices.DeleteFunc(slices.Clone(now), func(l protocol.Life) bool { return gone(l) || m.UnfitWitness(l) })
	return keep, len(keep) < protocol.MaxWitnesses
}

// UnfitWitness reports whether a node refused to be a witness of this session.
func (m *Machine) UnfitWitness(l protocol.Life) bool {
	return m.guard != nil && slices.Contains(m.guard.unfit, l)
}

// ReplaceWitnesses puts other witnesses in the place of the present ones.
func (m *Machine) ReplaceWitnesses(now kevlard.Instant, to []protocol.Life, out []Effect) []Effect {
	if m.guard == nil || !m.guard.Replace(to) {
		return out
	}
	return m.tellAll(now, out)
}
