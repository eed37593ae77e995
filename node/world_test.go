package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// rig drives one node by hand; its peers are whoever the test plays.
type rig struct {
	*testing.T
	m    *Machine
	now  kevlard.Instant
	out  []Effect // of the last step
	view topology.View
}

var model = topology.Model{ID: kevlard.Digest{1}, Name: "m", Layers: 2, Context: 1000, Vocab: 10}

// newRig returns node "o" with the given stages and connected peers. Each peer is
// written "n1:0-2", a holder of those layers, or "n1".
func newRig(t *testing.T, stages []kevlard.Layers, peers ...string) *rig {
	t.Helper()
	r := &rig{T: t, now: 1}
	c := Config{Self: "o", Boot: "o.1"}
	for _, l := range stages {
		c.Stages = append(c.Stages, Assigned{Model: model, Layers: l, Width: 8})
	}
	r.m = New(c)
	r.step(Wake{})
	for _, s := range r.m.stages {
		r.step(EngineReady{Stage: s.Key(), Run: 1, Class: "c", Cells: 1024, Width: 8})
	}
	self := topology.Node{ID: "o", Boot: "o.1", State: topology.Alive, Models: []topology.Model{model}}
	for _, s := range r.m.stages {
		self.Stages = append(self.Stages, s.Advertise())
	}
	r.view.Nodes = append(r.view.Nodes, self)
	for _, p := range peers {
		n := topology.Node{State: topology.Alive, Models: []topology.Model{model}}
		var name string
		var lo, hi int
		if k, _ := fmt.Sscanf(p, "%2s:%d-%d", &name, &lo, &hi); k == 3 {
			n.Stages = []topology.Stage{{Key: kevlard.StageKey{Model: model.ID, Layers: kevlard.Layers{Lo: lo, Hi: hi}}, State: topology.Ready, Class: "c", Cells: 1024}}
		} else {
			name = p
		}
		n.ID, n.Boot = kevlard.NodeID(name), kevlard.BootID(name+".1")
		r.view.Nodes = append(r.view.Nodes, n)
	}
	slices.SortFunc(r.view.Nodes, func(a, b topology.Node) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
	r.see()
	for _, n := range r.view.Nodes {
		if n.ID != "o" {
			r.step(PeerUp{Node: n.ID, Boot: n.Boot})
		}
	}
	return r
}

func (r *rig) step(ev Event) { r.out = r.m.Step(r.now, ev, nil) }

// see shows the machine the rig's view.
func (r *rig) see() {
	r.step(ViewChanged{topology.View{Nodes: slices.Clone(r.view.Nodes), Absent: r.view.Absent}})
}

// node returns a node of the view to be changed.
func (r *rig) node(id kevlard.NodeID) *topology.Node {
	i := slices.IndexFunc(r.view.Nodes, func(n topology.Node) bool { return n.ID == id })
	return &r.view.Nodes[i]
}

// say makes the machine hear a message from a peer's first boot.
func (r *rig) say(from kevlard.NodeID, m protocol.Message) {
	r.step(Received{From: from, Boot: kevlard.BootID(from + ".1"), Message: m})
}

// sleep lets time pass as a daemon would: it wakes at every deadline, and the
// named peers answer pings. It gathers the effects.
func (r *rig) sleep(d time.Duration, alive ...kevlard.NodeID) []Effect {
	var all []Effect
	for end := r.now.Add(d); ; {
		at := r.m.Deadline()
		if at > end {
			r.now = end
			return all
		}
		r.now = max(at, r.now)
		r.step(Wake{})
		all = append(all, r.out...)
		for _, e := range slices.Clone(r.out) {
			s, ok := e.(Send)
			if p, isPing := s.Message.(protocol.Ping); ok && isPing && slices.Contains(alive, s.To) {
				r.say(s.To, protocol.Pong{Seq: p.Seq, Free: 1000})
				all = append(all, r.out...)
			}
		}
	}
}

func (r *rig) submit(id kevlard.SessionID, prompt ...kevlard.Token) {
	r.step(Submit{Session: id, Request: Request{Model: model.ID, Prompt: prompt, MaxTokens: 50}})
}

// prepares returns whom the effects prepare for a session, in order.
func prepares(es []Effect, id kevlard.SessionID) (to []kevlard.NodeID, last protocol.Prepare) {
	for _, e := range es {
		if s, ok := e.(Send); ok {
			if p, ok := s.Message.(protocol.Prepare); ok && p.Session == id {
				to, last = append(to, s.To), p
			}
		}
	}
	return to, last
}

// accept answers the prepares among the last effects.
func (r *rig) accept() {
	for _, e := range slices.Clone(r.out) {
		if s, ok := e.(Send); ok {
			if p, ok := s.Message.(protocol.Prepare); ok {
				r.say(s.To, protocol.Prepared{Session: p.Session, Fence: p.Fence, Lo: p.Stage.Layers.Lo})
			}
		}
	}
}

func effectsOf[E Effect](es []Effect) []E {
	var out []E
	for _, e := range es {
		if e, ok := e.(E); ok {
			out = append(out, e)
		}
	}
	return out
}

func reports(es []Effect, what string) []Report {
	return slices.DeleteFunc(effectsOf[Report](es), func(r Report) bool { return r.Type != what })
}

// sent returns the messages of one type, by their targets.
func sent[M protocol.Message](es []Effect) map[kevlard.NodeID][]M {
	out := map[kevlard.NodeID][]M{}
	for _, s := range effectsOf[Send](es) {
		if m, ok := s.Message.(M); ok {
			out[s.To] = append(out[s.To], m)
		}
	}
	for _, s := range effectsOf[SendAll](es) {
		for _, to := range s.To {
			if m, ok := s.Message.(M); ok {
				out[to] = append(out[to], m)
			}
		}
	}
	return out
}

func prepareFor(id kevlard.SessionID, boot kevlard.BootID, l kevlard.Layers, next kevlard.NodeID) protocol.Prepare {
	return protocol.Prepare{
		Session: id, Fence: kevlard.Fence{Epoch: 1, Term: 1}, OwnerBoot: boot, Stage: kevlard.StageKey{Model: model.ID, Layers: l},
		Next: next, Last: next == "", Tokens: []kevlard.Token{1, 2, 3}, Positions: 50, Credit: 64,
	}
}
