package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// Adoption is a stage that a node should load.
type Adoption struct {
	Key    kevlard.StageKey
	Device int
	Source Source // Disk or Peer
	Bytes  int64  // to load
	Fetch  int64  // of them, from peers
	Need   int64  // of the device's budget: Bytes and the least room for KV
	Reason Reason
	ready  int // holders of the range that are ready: none is urgent
}

// Surplus is a stage that a node holds and should not.
type Surplus struct {
	Key    kevlard.StageKey
	Device int
	Reason Reason
}

// Share is a node's own part of a plan.
type Share struct {
	Adopt   []Adoption // what nobody serves first, then by layers
	Release []Surplus
}

// Mine is what a node has to do to hold what the plan gives it. It is empty for nodes
// whose assignment is static.
func (p Plan) Mine(v View, self kevlard.NodeID) Share {
	n, ok := v.sorted().Node(self)
	if !ok || !n.planned() {
		return Share{}
	}
	var out Share
	weights := v.weights()
	for _, m := range p.Models {
		for _, r := range m.Ranges {
			for _, h := range r.Holders {
				key := kevlard.StageKey{Model: m.Model.ID, Layers: r.Layers}
				if h.Node != self || h.Source == Resident {
					continue
				}
				w := weights[m.Model.ID]
				out.Adopt = append(out.Adopt, Adoption{
					Key: key, Device: h.Device, Source: h.Source, Bytes: r.Bytes, Fetch: h.Fetch, Reason: h.Reason,
					Need: r.Bytes + w.KV*int64(r.Layers.Len()), ready: v.ready(key),
				})
			}
		}
	}
	slices.SortFunc(out.Adopt, func(a, b Adoption) int {
		return cmp.Or(cmp.Compare(a.ready, b.ready), cmp.Compare(a.Reason.order(), b.Reason.order()), a.Key.Compare(b.Key))
	})
	seen := map[kevlard.StageKey]bool{}
	for _, s := range n.Stages {
		if p.gives(self, s.Key, s.Device) && !seen[s.Key] {
			seen[s.Key] = true
			continue
		}
		out.Release = append(out.Release, Surplus{s.Key, s.Device, p.surplus(n, s.Key)})
	}
	return out
}

// order is how urgent a reason is.
func (r Reason) order() int {
	return slices.Index([]Reason{Death, Drained, Resplit, Join, Rebalance}, r)
}

// ready counts the ready holders of a range.
func (v View) ready(k kevlard.StageKey) (n int) {
	for _, c := range v.Candidates(k.Model) {
		if c.Layers == k.Layers {
			n++
		}
	}
	return n
}

// gives reports whether the plan wants a node to hold a stage.
func (p Plan) gives(n kevlard.NodeID, k kevlard.StageKey, device int) bool {
	for _, m := range p.Models {
		if m.Model.ID != k.Model {
			continue
		}
		for _, r := range m.Ranges {
			if r.Layers == k.Layers {
				return slices.ContainsFunc(r.Holders, func(h Holder) bool { return h.Node == n && h.Device == device })
			}
		}
	}
	return false
}

func (p Plan) surplus(n Node, k kevlard.StageKey) Reason {
	i := slices.IndexFunc(p.Models, func(m ModelPlan) bool { return m.Model.ID == k.Model })
	switch {
	case n.State == Draining:
		return Drained
	case i < 0 || !n.mayServe(p.Models[i].Model.Name):
		return Unserved
	case !slices.ContainsFunc(p.Models[i].Ranges, func(r Placement) bool { return r.Layers == k.Layers }):
		return Resplit
	}
	return Rebalance
}

// Bytes counts the weights that are loaded to carry out a plan, and those of them that
// come from peers.
func (p Plan) Bytes() (load, fetch int64) {
	for _, m := range p.Models {
		for _, r := range m.Ranges {
			for _, h := range r.Holders {
				if h.Source != Resident {
					load += r.Bytes
					fetch += h.Fetch
				}
			}
		}
	}
	return load, fetch
}
