package node

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// compare reports stages of this node that have come to be slow beside others of their
// model, or are not any more.
func (m *Machine) compare(out []Effect) []Effect {
	measured := len(m.slow) > 0
	for _, s := range m.stages {
		measured = measured || s.Advertise().RowMicros > 0
	}
	if !measured {
		return out
	}
	slow := map[kevlard.StageKey]bool{}
	for _, s := range m.ownView().Compare() {
		if s.Node != m.cfg.Self {
			continue
		}
		was := m.slow[s.Key]
		if s.Permille >= topology.Slow || was && s.Permille > topology.Even {
			slow[s.Key] = true
			if !was {
				out = append(out, Report{Type: "stage-slow", Cause: "slow", Detail: fmt.Sprintf("stage %v of %s takes %d.%d times as long for a row as %d others",
					s.Key.Layers, m.modelName(s.Key.Model), s.Permille/1000, s.Permille%1000/100, s.Others)})
			}
		}
	}
	for _, s := range m.stages { // those that are gone are slow no more, and nobody needs to be told
		if k := s.Key(); m.slow[k] && !slow[k] {
			out = append(out, Report{Type: "stage-even", Detail: fmt.Sprintf("stage %v of %s is not slow beside others any more, or not known to be", k.Layers, m.modelName(k.Model))})
		}
	}
	m.slow = slow
	return out
}
