// Package routebench measures how long the choice of a route takes, on made-up meshes:
// every decision is for the next turn of a conversation whose prefix some route has, as
// the owner of a session makes it once the answers of those it asked are there.
package routebench

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/scheduler"
	"github.com/kevlard/kevlard/topology"
)

const (
	layers = 32
	stages = 4
	seed   = 1
	worth  = 32 // positions of a prefix
	avoid  = 2  // links that a session was disappointed by
)

// Mesh is a mesh of nodes with a stage each, and conversations over them.
type Mesh struct {
	router   scheduler.Router
	ask      scheduler.Ask
	nodes    map[kevlard.NodeID]*nodeState
	of       [stages][]kevlard.NodeID
	sessions []conversation
	next     int
}

// nodeState is what an owner knows of a node.
type nodeState struct {
	load int
	up   bool
	free int // KV positions that it can grant
}

// conversation is where a prefix is, how long it is, and which nodes have a part of it.
type conversation struct {
	route     [stages]kevlard.NodeID
	positions int
}

// New makes a mesh of so many nodes, at least 4, and sessions.
func New(nodes, sessions int) *Mesh {
	rng := rand.New(rand.NewPCG(seed, uint64(nodes)))
	m := &Mesh{nodes: map[kevlard.NodeID]*nodeState{}}
	var candidates []topology.Candidate
	for i := range nodes {
		n, s := kevlard.NodeID(fmt.Sprintf("node-%04d", i)), i%stages
		m.nodes[n] = &nodeState{up: i < stages || rng.IntN(50) > 0, free: 100_000}
		m.of[s] = append(m.of[s], n)
		candidates = append(candidates, topology.Candidate{Node: n, Layers: rangeOf(s), Class: "class"})
	}
	slices.SortFunc(candidates, func(a, b topology.Candidate) int {
		return cmp.Or(a.Layers.Compare(b.Layers), cmp.Compare(a.Node, b.Node))
	})
	for range sessions {
		c := conversation{positions: 64 + rng.IntN(4000)}
		for s := range stages {
			c.route[s] = m.of[s][rng.IntN(len(m.of[s]))]
			m.nodes[c.route[s]].load++
		}
		m.sessions = append(m.sessions, c)
	}
	m.ask = scheduler.Ask{
		Layers: layers, Worth: worth,
		Table: scheduler.NewTable(candidates, func(n kevlard.NodeID) int { return m.nodes[n].load }),
		Usable: func(n kevlard.NodeID) bool {
			s := m.nodes[n]
			return s.up && s.free >= m.sessions[m.next].positions
		},
	}
	return m
}

func rangeOf(stage int) kevlard.Layers {
	return kevlard.Layers{Lo: stage * layers / stages, Hi: (stage + 1) * layers / stages}
}

// Decide chooses the route of the next conversation's turn, and reports whether it is
// the one that has the prefix: what was found of the prompt and whom the session avoids
// are gathered, the route is chosen, and its nodes hold one session more, as those of the
// last turn hold one less.
func (m *Mesh) Decide() (found, same bool) {
	m.next = (m.next + 1) % len(m.sessions)
	c := &m.sessions[m.next]
	m.ask.Held, m.ask.Avoid = m.ask.Held[:0], m.ask.Avoid[:0]
	for s, n := range c.route {
		at := rangeOf(s)
		m.ask.Held = append(m.ask.Held, scheduler.Held{Hop: kevlard.Hop{Node: n, Layers: at}, Positions: c.positions})
		// Others have how the prompt begins, as templates let many begin alike.
		for i := range 3 {
			o := m.of[s][(m.next*7+i)%len(m.of[s])]
			if o != n {
				m.ask.Held = append(m.ask.Held, scheduler.Held{Hop: kevlard.Hop{Node: o, Layers: at}, Positions: worth})
			}
		}
	}
	for i := range avoid {
		from, to := m.of[i], m.of[i+1]
		if len(to) == 1 {
			continue // there is no other way
		}
		m.ask.Avoid = append(m.ask.Avoid, scheduler.Edge{From: from[(m.next+i)%len(from)], To: to[(m.next*3+i)%len(to)]})
	}
	a := m.router.Route(m.ask)
	same = len(a.Route) == stages
	for i, h := range a.Route {
		same = same && h.Node == c.route[i]
		m.hold(c.route[i], -1)
		m.hold(h.Node, 1)
		c.route[i] = h.Node
	}
	return a.Route != nil, same
}

func (m *Mesh) hold(n kevlard.NodeID, more int) {
	s := m.nodes[n]
	s.load += more
	m.ask.Table.Set(n, s.load)
}

// Measure returns the time of one decision: the least of several rounds, each of which
// takes about each.
func (m *Mesh) Measure(each time.Duration) (time.Duration, error) {
	best := time.Duration(-1)
	for range 5 {
		n, began := 0, time.Now()
		for time.Since(began) < each {
			for range 16 {
				if found, _ := m.Decide(); !found {
					return 0, fmt.Errorf("no route over %d nodes", len(m.nodes))
				}
			}
			n += 16
		}
		if took := time.Since(began) / time.Duration(n); best < 0 || took < best {
			best = took
		}
	}
	return best, nil
}
