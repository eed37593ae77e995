package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// problem is an Ask with the candidates that its table is made of.
type problem struct {
	Ask
	Candidates []topology.Candidate // sorted as topology sorts them
	load       map[kevlard.NodeID]int
	rtt        map[string]time.Duration // to zones
}

func (p problem) at(n kevlard.NodeID) int { return p.load[n] }

// table is what the package makes of the candidates.
func (p problem) table() *Table {
	t := NewTable(p.Candidates, p.at)
	for zone, rtt := range p.rtt {
		t.SetRTT(zone, rtt)
	}
	return t
}

// route solves it as the package does.
func (p problem) route() Answer {
	p.Table = p.table()
	return new(Router).Route(p.Ask)
}

// link is the cost of a link: 400 for each millisecond one way, at least 200, and nothing
// inside a zone.
func (p problem) link(a, b string) int64 {
	if a == b || !p.zoned() {
		return 0
	}
	return max(200, max(p.rtt[a], p.rtt[b]).Microseconds()*400/2000)
}

// zoned reports whether there is a choice of zones.
func (p problem) zoned() bool {
	return slices.ContainsFunc(p.Candidates, func(c topology.Candidate) bool { return c.Zone != p.Candidates[0].Zone })
}

// plain solves it by looking at every candidate: dynamic programming from the last layer
// to the first, once for each class.
func (p problem) plain() Answer {
	var usable []stop
	var classes []string
	surcharge := len(p.Previous) > 0
	for _, c := range p.Candidates {
		if c.Layers.Hi > p.Layers || p.Class != "" && c.Class != p.Class || !p.Usable(c.Node) {
			continue
		}
		hop := kevlard.Hop{Node: c.Node, Layers: c.Layers}
		s := stop{Candidate: c, load: p.load[c.Node], stays: slices.Contains(p.Previous, hop), copied: slices.Contains(p.Copies, hop)}
		for _, h := range p.Held {
			if h.Hop == hop {
				s.held = h.Positions
			}
		}
		surcharge = surcharge || s.copied
		usable = append(usable, s)
		classes = append(classes, c.Class)
	}
	slices.Sort(classes)
	var best Answer
	most, least := 0, int64(0)
	for _, c := range slices.Compact(classes) {
		of := slices.DeleteFunc(slices.Clone(usable), func(s stop) bool { return s.Class != c })
		wide := p.widest(of)
		if wide < max(1, p.Worth) {
			wide = 0
		}
		r, cost := p.cheapest(of, wide, surcharge)
		if r == nil && wide > 0 {
			wide = 0
			r, cost = p.cheapest(of, wide, surcharge)
		}
		if r != nil && (best.Route == nil || wide > most || wide == most && cost < least) {
			best, most, least = Answer{Route: r, Class: c}, wide, cost
		}
	}
	if best.Route == nil {
		var covered []kevlard.Layers
		for _, s := range usable {
			covered = append(covered, s.Layers)
		}
		best.Missing = topology.Uncovered(covered, p.Layers)
	}
	return best
}

// stop is one candidate of plain.
type stop struct {
	topology.Candidate
	load          int
	stays, copied bool
	held          int
	wide          int
	route         kevlard.Route // from here to the end; nil: none
	cost          int64
}

// widest sets how much of the prompt every stop and some way on from it have.
func (p problem) widest(of []stop) int {
	idle, nearest := map[int]int{}, map[int]int64{}
	for _, s := range of {
		if l, ok := nearest[s.Layers.Lo]; !ok || p.link(p.Zone, s.Zone) < l {
			nearest[s.Layers.Lo] = p.link(p.Zone, s.Zone)
		}
	}
	near := func(s *stop) bool { return p.link(p.Zone, s.Zone) <= nearest[s.Layers.Lo]+1000 }
	for _, s := range of {
		if l, ok := idle[s.Layers.Lo]; near(&s) && (!ok || s.load < l) {
			idle[s.Layers.Lo] = s.load
		}
	}
	from := map[int]int{p.Layers: 1 << 30}
	for i := range slices.Backward(of) {
		s := &of[i]
		if !near(s) || s.load > 2*idle[s.Layers.Lo]+8 {
			continue
		}
		s.wide = min(s.held, from[s.Layers.Hi])
		from[s.Layers.Lo] = max(from[s.Layers.Lo], s.wide)
	}
	return from[0]
}

func (p problem) cheapest(of []stop, wide int, surcharge bool) (kevlard.Route, int64) {
	var first *stop
	for lo := p.Layers - 1; lo >= 0; lo-- {
		for i := range of {
			s := &of[i]
			if s.Layers.Lo != lo {
				continue
			}
			s.route = nil
			if s.wide < wide {
				continue
			}
			s.cost = int64(100 + 1000*s.load)
			switch {
			case !surcharge || s.stays:
			case s.copied:
				s.cost += 5000
			default:
				s.cost += 10000
			}
			hop := kevlard.Route{{Node: s.Node, Layers: s.Layers}}
			if s.Layers.Hi == p.Layers {
				s.cost += p.link(s.Zone, p.Zone)
				s.route = hop
			} else {
				var next *stop
				for j := range of {
					n := &of[j]
					if n.Layers.Lo == s.Layers.Hi && n.route != nil && !slices.Contains(p.Avoid, Edge{s.Node, n.Node}) && (next == nil || n.cost+p.link(s.Zone, n.Zone) < next.cost+p.link(s.Zone, next.Zone)) {
						next = n
					}
				}
				if next == nil {
					continue
				}
				s.cost += next.cost + p.link(s.Zone, next.Zone)
				s.route = append(hop, next.route...)
			}
			if lo == 0 && (first == nil || s.cost+p.link(p.Zone, s.Zone) < first.cost+p.link(p.Zone, first.Zone)) {
				first = s
			}
		}
	}
	if first == nil {
		return nil, 0
	}
	return first.route, first.cost + p.link(p.Zone, first.Zone)
}

func sortCandidates(c []topology.Candidate) []topology.Candidate {
	slices.SortFunc(c, func(p, q topology.Candidate) int {
		return cmp.Or(p.Layers.Compare(q.Layers), cmp.Compare(p.Node, q.Node))
	})
	return slices.CompactFunc(c, func(p, q topology.Candidate) bool { return p.Node == q.Node && p.Layers == q.Layers })
}
