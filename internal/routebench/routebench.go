// Package routebench measures how long the choice of a route takes, on made-up meshes:
// every decision is for the next turn of a conversation whose prefix some route has.
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
)

// Mesh is a mesh of nodes with a stage each, and conversations over them.
type Mesh struct {
	router   scheduler.Router
	ask      scheduler.Ask
	nodes    map[kevlard.NodeID]*nodeState
	sessions []conversation
	next     int
}

// nodeState is what an owner knows of a node.
type nodeState struct {
	load int
	up   bool
}

// conversation is where a prefix is, and how long it is.
type conversation struct {
	route     [stages]kevlard.NodeID
	positions int
}

// New makes a mesh of so many nodes, at least 4, and sessions.
func New(nodes, sessions int) *Mesh {
	rng := rand.New(rand.NewPCG(seed, uint64(nodes)))
	m := &Mesh{nodes: map[kevlard.NodeID]*nodeState{}}
	var of [stages][]kevlard.NodeID
	for i := range nodes {
		n, s := kevlard.NodeID(fmt.Sprintf("node-%04d", i)), i%stages
		m.nodes[n] = &nodeState{up: i < stages || rng.IntN(50) > 0}
		of[s] = append(of[s], n)
		m.ask.Candidates = append(m.ask.Candidates, topology.Candidate{
			Node: n, Layers: kevlard.Layers{Lo: s * layers / stages, Hi: (s + 1) * layers / stages}, Class: "class",
		})
	}
	slices.SortFunc(m.ask.Candidates, func(a, b topology.Candidate) int {
		return cmp.Or(a.Layers.Compare(b.Layers), cmp.Compare(a.Node, b.Node))
	})
	for range sessions {
		c := conversation{positions: 64 + rng.IntN(4000)}
		for s := range stages {
			c.route[s] = of[s][rng.IntN(len(of[s]))]
			m.nodes[c.route[s]].load++
		}
		m.sessions = append(m.sessions, c)
	}
	m.ask.Layers, m.ask.Worth = layers, 32
	m.ask.Load = func(n kevlard.NodeID) int { return m.nodes[n].load }
	m.ask.Usable = func(n kevlard.NodeID) bool { return m.nodes[n].up }
	m.ask.AvoidEdge = func(kevlard.NodeID, kevlard.NodeID) bool { return false }
	m.ask.Held = func(n kevlard.NodeID, l kevlard.Layers) int {
		if c := &m.sessions[m.next]; c.route[l.Lo*stages/layers] == n {
			return c.positions
		}
		return 0
	}
	return m
}

// Decide chooses the route of the next conversation's turn, and reports whether it is
// the one that has the prefix.
func (m *Mesh) Decide() (found, same bool) {
	m.next = (m.next + 1) % len(m.sessions)
	a := m.router.Route(m.ask)
	same = len(a.Route) == stages
	for i, h := range a.Route {
		same = same && h.Node == m.sessions[m.next].route[i]
	}
	return a.Route != nil, same
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
