package node

import (
	"maps"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/session"
)

// follower is the client of a session owned here that is connected to another node.
type follower struct {
	node    kevlard.NodeID
	number  uint64 // of its Follow
	sent    int    // tokens
	heardAt kevlard.Instant
	end     *protocol.Followed // how the session ended, to be sent after the last token
}

// following is a session owned elsewhere whose client is connected here.
type following struct {
	owner  kevlard.NodeID
	number uint64
	client uint64 // the shell's number
	next   int    // tokens that have come
	cached int    // of the prompt, as the owner said last
}

// follow begins to follow a session for a client here.
func (m *Machine) follow(now kevlard.Instant, ev Follow, out []Effect) []Effect {
	if m.sessions[ev.Session] != nil || m.following[ev.Session] != nil {
		return append(out, Finish{Session: ev.Session, Reason: "error", Err: busy()})
	}
	if !m.connected(ev.Owner) {
		return append(out, Finish{Session: ev.Session, Reason: "error", Err: ownerLost(ev.Owner)})
	}
	m.followNumber++
	f := &following{owner: ev.Owner, number: m.followNumber, client: ev.Client}
	m.following[ev.Session] = f
	m.rewatch = true
	return append(out, f.ask(ev.Session))
}

func (f *following) ask(id kevlard.SessionID) Effect {
	return Send{f.owner, protocol.Follow{Session: id, Number: f.number, From: f.next}}
}

// unfollow acts on a client of a followed session that is gone, or has what it wanted.
func (m *Machine) unfollow(id kevlard.SessionID, f *following, ended bool, out []Effect) []Effect {
	reason := session.PausedReason
	if ended {
		reason = "cancelled"
	}
	m.leaveOwner(id)
	return append(out, Send{f.owner, protocol.Unfollow{Session: id, Number: f.number, Ended: ended}}, Finish{Session: id, Reason: reason})
}

func (m *Machine) leaveOwner(id kevlard.SessionID) {
	delete(m.following, id)
	m.rewatch = true
}

// followed takes what the owner sends. Tokens that are there already are left out, and
// missing ones are asked for.
func (m *Machine) followed(from kevlard.NodeID, msg protocol.Followed, out []Effect) []Effect {
	f := m.following[msg.Session]
	switch {
	case f == nil || f.owner != from || f.number != msg.Number:
		return out
	case msg.From > f.next:
		return append(out, f.ask(msg.Session))
	}
	if msg.Cached != f.cached {
		f.cached = msg.Cached
		out = append(out, Reused{msg.Session, msg.Cached})
	}
	if had := f.next - msg.From; had < len(msg.Tokens) && msg.From+len(msg.Tokens) <= protocol.MaxTokens {
		r := Replay{Session: msg.Session, Tokens: msg.Tokens[had:]}
		if msg.Logprobs != nil {
			r.Logprobs = msg.Logprobs[had:]
		}
		f.next += len(r.Tokens)
		out = append(out, r)
	}
	if msg.More {
		return append(out, f.ask(msg.Session))
	}
	if !msg.Done || msg.From+len(msg.Tokens) < f.next {
		return out
	}
	m.leaveOwner(msg.Session)
	end := Finish{Session: msg.Session, Reason: msg.Reason}
	if msg.Reason == "error" {
		end.Err = &kevlard.Failure{Code: msg.Code, Status: msg.Status, Message: msg.Message}
	}
	return append(out, end)
}

// ownerGone ends the streams of sessions whose owner can no longer be heard. They can be
// resumed.
func (m *Machine) ownerGone(n kevlard.NodeID, out []Effect) []Effect {
	for _, id := range slices.Sorted(maps.Keys(m.following)) {
		if m.following[id].owner == n {
			if p := m.peers[n]; p != nil && p.up { // it may only have been away: it is not to believe that the client is still here
				out = append(out, Send{n, protocol.Unfollow{Session: id, Number: m.following[id].number}})
			}
			m.leaveOwner(id)
			out = append(out, Finish{Session: id, Reason: "error", Err: ownerLost(n)})
		}
	}
	return out
}

// CodeOwnerLost is the code of a followed session whose owner is gone.
const CodeOwnerLost = "owner_lost"

func ownerLost(n kevlard.NodeID) *kevlard.Failure {
	return &kevlard.Failure{Code: CodeOwnerLost, Status: 503, Message: "node " + string(n) + ", which ran the session, is gone"}
}

// attend takes a Follow: a client elsewhere wants a session owned here, or still has it.
func (m *Machine) attend(now kevlard.Instant, from kevlard.NodeID, msg protocol.Follow, out []Effect) []Effect {
	f := m.followers[msg.Session]
	if f != nil && f.node == from && msg.Number >= f.number {
		f.number, f.sent, f.heardAt = msg.Number, msg.From, now
		return m.push(msg.Session, f, out)
	}
	s, why := m.attach(msg.Session)
	if why != nil {
		return append(out, Send{from, protocol.Followed{
			Session: msg.Session, Number: msg.Number, From: msg.From, Done: true, Reason: "error", Code: why.Code, Status: why.Status, Message: why.Message,
		}})
	}
	f = &follower{node: from, number: msg.Number, sent: msg.From, heardAt: now}
	m.followers[msg.Session] = f
	return m.goOn(now, s, out)
}

// push sends a follower what it lacks, a part at a time.
func (m *Machine) push(id kevlard.SessionID, f *follower, out []Effect) []Effect {
	s := m.sessions[id]
	if s == nil {
		s = m.resting.get(id)
	}
	if s == nil { // it rested for too long
		delete(m.followers, id)
		why := notKnown()
		return append(out, Send{f.node, protocol.Followed{Session: id, Number: f.number, From: f.sent, Done: true, Reason: "error", Code: why.Code, Status: why.Status, Message: why.Message}})
	}
	tokens, logprobs := s.Log()
	for range maxPushed {
		n := min(len(tokens)-f.sent, protocol.MaxFollowed)
		if n <= 0 {
			break
		}
		msg := protocol.Followed{Session: id, Number: f.number, From: f.sent, Tokens: tokens[f.sent : f.sent+n], Cached: s.Reused()}
		if len(logprobs) > 0 {
			msg.Logprobs = logprobs[f.sent : f.sent+n]
		}
		f.sent += n
		out = append(out, Send{f.node, msg})
	}
	switch {
	case f.sent < len(tokens):
		return append(out, Send{f.node, protocol.Followed{Session: id, Number: f.number, From: f.sent, More: true, Cached: s.Reused()}})
	case f.end != nil:
		end := *f.end
		end.Session, end.Number, end.From, end.Cached = id, f.number, f.sent, s.Reused()
		delete(m.followers, id)
		return append(out, Send{f.node, end})
	}
	return out
}

// toFollower hands a new token, or the end, to the follower of a session; false if its
// client is here.
func (m *Machine) toFollower(s *session.Machine, e session.Effect, out []Effect) ([]Effect, bool) {
	f := m.followers[s.ID()]
	if f == nil {
		return out, false
	}
	switch e := e.(type) {
	case session.Emit:
		if f.sent != e.Index {
			return out, true // it has not asked for what comes before
		}
	case session.Finish:
		f.end = &protocol.Followed{Done: true, Reason: e.Reason}
		if e.Err != nil {
			f.end.Code, f.end.Status, f.end.Message = e.Err.Code, e.Err.Status, e.Err.Message
		}
	}
	return m.push(s.ID(), f, out), true
}

// dismiss takes an Unfollow.
func (m *Machine) dismiss(now kevlard.Instant, from kevlard.NodeID, msg protocol.Unfollow, out []Effect) []Effect {
	f := m.followers[msg.Session]
	if f == nil || f.node != from || f.number != msg.Number {
		return out
	}
	delete(m.followers, msg.Session)
	return m.silently(now, msg.Session, msg.Ended, out)
}

// silently ends or pauses a session whose client has been told, or cannot be.
func (m *Machine) silently(now kevlard.Instant, id kevlard.SessionID, ended bool, out []Effect) []Effect {
	n := len(out)
	out = m.withSession(now, id, out, func(s *session.Machine, e []session.Effect) []session.Effect {
		if ended {
			return s.Cancel(now, e)
		}
		return s.Pause(now, e)
	})
	return append(out[:n], slices.DeleteFunc(out[n:], func(e Effect) bool {
		f, ok := e.(Finish)
		return ok && f.Session == id
	})...)
}

// followersGone pauses the sessions whose clients are connected to a node that is gone.
func (m *Machine) followersGone(now kevlard.Instant, gone func(*follower) bool, out []Effect) []Effect {
	for _, id := range slices.Sorted(maps.Keys(m.followers)) {
		if gone(m.followers[id]) {
			delete(m.followers, id)
			out = m.silently(now, id, false, out)
		}
	}
	return out
}

// keepFollowing tells owners that their clients are still here, and pauses the sessions
// whose followers have not said so for a lease.
func (m *Machine) keepFollowing(now kevlard.Instant, out []Effect) []Effect {
	for _, id := range slices.Sorted(maps.Keys(m.following)) {
		out = append(out, m.following[id].ask(id))
	}
	return m.followersGone(now, func(f *follower) bool { return now.Sub(f.heardAt) > followLease }, out)
}
