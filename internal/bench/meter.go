package bench

import (
	"context"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// ticksPerSecond is the unit of processor times in /proc, USER_HZ.
const ticksPerSecond = 100

// spent is the processor time of one node.
type spent struct{ daemon, engine float64 } // seconds

// meter reads what the nodes of a mesh have used. The mesh must not change meanwhile.
type meter struct {
	mesh    *devmesh.Mesh
	engines map[string][]int // process ids by node
}

func newMeter(ctx context.Context, mesh *devmesh.Mesh) (meter, error) {
	m := meter{mesh, map[string][]int{}}
	for _, n := range mesh.All() {
		pids, err := n.EnginePIDs(ctx)
		if err != nil {
			return m, err
		}
		m.engines[n.Name()] = pids
	}
	return m, nil
}

// spent returns the processor time of each node so far.
func (m meter) spent() (map[string]spent, error) {
	out := map[string]spent{}
	for _, n := range m.mesh.All() {
		u, err := devmesh.UsageOf(n.PID())
		if err != nil {
			return nil, err
		}
		s := spent{daemon: float64(u.CPU) / ticksPerSecond}
		for _, pid := range m.engines[n.Name()] {
			if u, err = devmesh.UsageOf(pid); err != nil {
				return nil, err
			}
			s.engine += float64(u.CPU) / ticksPerSecond
		}
		out[n.Name()] = s
	}
	return out, nil
}

// since subtracts an earlier reading.
func since(before, after map[string]spent) map[string]spent {
	out := map[string]spent{}
	for name, s := range after {
		out[name] = spent{s.daemon - before[name].daemon, s.engine - before[name].engine}
	}
	return out
}

// replicated returns the bytes of KV that all hosts have sent to standbys so far.
func (m meter) replicated(ctx context.Context) (float64, error) {
	var sum float64
	for _, n := range m.mesh.Hosts() {
		c := load.NewClient(n.APIURL())
		v, err := c.Metric(ctx, "kevlard_replicated_bytes_total")
		c.CloseIdle()
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}
