package daemon

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// askMembers asks every other member and takes their answers, one at a time. It returns
// who did not answer within askTimeout.
func askMembers[T any](ctx context.Context, d *Daemon, what string, ask func(context.Context, kevlard.NodeID) (T, error), take func(T)) (unreachable []string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var asks errgroup.Group
	asks.SetLimit(maxAsks)
	for _, n := range d.snapshot().view.Nodes {
		if n.ID == d.cfg.Name || n.State == topology.Dead || n.State == topology.Left {
			continue
		}
		asks.Go(func() error {
			answer, err := ask(ctx, n.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				d.log.Debug(what+" not learned", "peer", n.ID, "err", err)
				unreachable = append(unreachable, string(n.ID))
				return nil
			}
			take(answer)
			return nil
		})
	}
	_ = asks.Wait() // the functions return nil: who did not answer is named
	slices.Sort(unreachable)
	return unreachable
}
