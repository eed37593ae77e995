package main

import (
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/routebench"
)

func benchRouteCommand() *cli.Command {
	return &cli.Command{
		Name:  "route",
		Usage: "time of one routing decision",
		Description: "Chooses routes for the next turns of conversations on made-up meshes in this process, with\n" +
			"the code of the daemon: the route that has most of a prompt while its nodes are not overloaded,\n" +
			"else the least loaded one. Timed is what an owner does when the nodes have answered: it takes what\n" +
			"they have of the prompt and which links the session avoids, chooses, leaving out nodes that are\n" +
			"down or have no room, and counts the session at its nodes. Not timed is the round trip before,\n" +
			"in which up to 256 nodes are asked what they have.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "nodes", Value: 64, Usage: "`N` nodes with a stage each, four to a route"},
			&cli.IntFlag{Name: "sessions", Value: 10_000, Usage: "`N` conversations"},
			&cli.DurationFlag{Name: "each", Value: 200 * time.Millisecond, Usage: "`D` of one of five rounds, of which the fastest counts"},
		},
		Action: runBenchRoute,
	}
}

// routeReport is the JSON of bench route.
type routeReport struct {
	Nodes    int            `json:"nodes"`
	Sessions int            `json:"sessions"`
	NS       int64          `json:"ns_per_decision"`
	Allocs   uint64         `json:"allocs"` // of one decision
	Scaling  []routeScaling `json:"scaling"`
}

type routeScaling struct {
	Nodes int   `json:"nodes"`
	NS    int64 `json:"ns_per_decision"`
}

func runBenchRoute(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	r := routeReport{Nodes: c.Int("nodes"), Sessions: c.Int("sessions")}
	each := c.Duration("each")
	switch {
	case r.Nodes < 4 || r.Nodes > 100_000:
		return usageError("--nodes %d: want 4 to 100000", r.Nodes)
	case r.Sessions < 1 || r.Sessions > 10_000_000:
		return usageError("--sessions %d: want 1 to 10000000", r.Sessions)
	case each < time.Millisecond || each > time.Minute:
		return usageError("--each %v: want 1ms to 1m", each)
	}
	m := routebench.New(r.Nodes, r.Sessions)
	took, err := m.Measure(each)
	if err != nil {
		return err
	}
	r.NS, r.Allocs = took.Nanoseconds(), allocations(m)
	for _, nodes := range []int{8, 256, 1000} {
		took, err := routebench.New(nodes, r.Sessions).Measure(each)
		if err != nil {
			return err
		}
		r.Scaling = append(r.Scaling, routeScaling{nodes, took.Nanoseconds()})
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	t := newTable("NODES", "NS/DECISION")
	for _, s := range append([]routeScaling{{r.Nodes, r.NS}}, r.Scaling...) {
		t.row(strconv.Itoa(s.Nodes), strconv.FormatInt(s.NS, 10))
	}
	if err := t.write(c.App.Writer); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%d allocations per decision\n", r.Allocs)
	return err
}

// allocations counts those of one decision, rounded down as the test of them does: the
// runtime itself allocates now and then.
func allocations(m *routebench.Mesh) uint64 {
	const decisions = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range decisions {
		m.Decide()
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / decisions
}
