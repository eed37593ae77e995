package daemon

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/topology"
)

// slowness is what a comparison says of a stage; 0: nothing.
func slowness(all []topology.Slowness, n kevlard.NodeID, k kevlard.StageKey) float64 {
	for _, s := range all {
		if s.Node == n && s.Key == k {
			return float64(s.Permille) / 1000
		}
	}
	return 0
}

// addSlowness puts into the members' stages how fast they are beside others.
func addSlowness(m *report.Members, all []topology.Slowness) {
	of := map[string][]topology.Slowness{}
	for _, s := range all {
		of[string(s.Node)] = append(of[string(s.Node)], s)
	}
	for _, n := range m.Nodes {
		for i := range n.Stages {
			for _, s := range of[n.Name] {
				if x := &n.Stages[i]; s.Key.Model.String() == x.Model && s.Key.Layers == (kevlard.Layers{Lo: x.Lo, Hi: x.Hi}) {
					x.Slowness = float64(s.Permille) / 1000
				}
			}
		}
	}
}

// slowStages names the stages that hold others up.
func slowStages(view topology.View, m report.Members) (out []report.Problem) {
	for _, n := range m.Nodes {
		for _, s := range n.Stages {
			if s.Slowness < float64(topology.Slow)/1000 {
				continue
			}
			id, _ := kevlard.ParseDigest(s.Model) // it was printed by us
			out = append(out, report.Problem{
				What: fmt.Sprintf("node %s takes %.1f times as long as others for layers %d-%d of model %s: what runs through it waits for it", n.Name, s.Slowness, s.Lo, s.Hi, modelName(view, id)),
				Fix:  fmt.Sprintf("look at that host's GPU clocks and power cap (nvidia-smi -q -d PERFORMANCE), temperature, CPU limits and what else runs there; `kevlard drain %s` takes it out", n.Name),
			})
		}
	}
	return out
}
