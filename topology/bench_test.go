package topology

import "testing"

// BenchmarkPlan plans a ring of 1000 nodes: from nothing, as it stands, and after a death.
func BenchmarkPlan(b *testing.B) {
	m, w := even("fairy", 80, 100, 60, 20)
	fresh := ring(m, w, 1000, 4000)
	for i := range fresh.Nodes {
		fresh.Nodes[i].Zone = string(rune('a' + i%4))
	}
	stands := carry(fresh, fresh.Plan(Goal{}))
	death := carry(fresh, fresh.Plan(Goal{}))
	death.Nodes[500].State = Dead
	for _, c := range []struct {
		name string
		v    View
	}{{"forming", fresh}, {"standing", stands}, {"death", death}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.v.Plan(Goal{})
			}
		})
	}
}
