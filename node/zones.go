package node

import (
	"time"

	"github.com/kevlard/kevlard/scheduler"
)

// zonesEvery is how old what a table knows of the distance of zones may be.
const zonesEvery = time.Second

// measureZones tells a table the round trips to zones: each the least to a node there,
// since nodes that are busy answer late.
func (m *Machine) measureZones(t *scheduler.Table) {
	least := map[string]time.Duration{}
	for _, n := range m.view.Nodes {
		if p := m.peers[n.ID]; p != nil && p.up && p.rtt > 0 && (least[n.Zone] == 0 || p.rtt < least[n.Zone]) {
			least[n.Zone] = p.rtt
		}
	}
	own := m.zone()
	for _, z := range t.Zones() {
		if rtt := least[z]; rtt > 0 && z != own {
			t.SetRTT(z, rtt)
		}
	}
}

// zone is this node's own.
func (m *Machine) zone() string {
	n, _ := m.view.Node(m.cfg.Self)
	return n.Zone
}
