package topology

// Goal is what the planner aims at. Every node of a ring should have the same one;
// what differs per model travels in records (Serve), so that it is the same.
type Goal struct {
	// Replicas is how many holders each layer should have, on different nodes and in
	// different zones where there are such. Default 2: the death of any node leaves a
	// standby with the layers resident. More cost memory, and bytes when nodes join.
	Replicas int
	// Stages is how many stages a pipeline has where memory does not ask for more.
	// Default 4. More make a death smaller, its replacement faster and the room for KV
	// larger; each is a hop of every token. It does not depend on the number of nodes, so
	// that cuts, and with them the names of KV, stay when nodes come and go.
	Stages int
	// Gain is by how much, in permille, the slowest stage must get faster before weights
	// are moved or layers split anew for that alone. Default 250. Smaller ones move more
	// weights after each measurement.
	Gain int
}

func (g Goal) withDefaults() Goal {
	if g.Replicas == 0 {
		g.Replicas = 2
	}
	if g.Stages == 0 {
		g.Stages = 4
	}
	if g.Gain == 0 {
		g.Gain = 250
	}
	g.Replicas = min(max(g.Replicas, 1), maxCopies)
	g.Stages = min(max(g.Stages, 1), maxLayers)
	g.Gain = min(max(g.Gain, 50), 1000)
	return g
}
