package devmesh

import (
	"context"
	"fmt"

	"github.com/kevlard/kevlard/daemon/report"
)

// Members asks the node for its view of the ring.
func (n *Node) Members(ctx context.Context) (report.Members, error) {
	c, err := n.client.Members(ctx)
	if err != nil {
		return report.Members{}, fmt.Errorf("ask %s for its members: %w", n.spec.name, err)
	}
	return c, nil
}

// Topology asks the node for the models and their pipelines.
func (n *Node) Topology(ctx context.Context) (report.Topology, error) {
	t, err := n.client.Topology(ctx)
	if err != nil {
		return report.Topology{}, fmt.Errorf("ask %s for its topology: %w", n.spec.name, err)
	}
	return t, nil
}

// Sessions asks the node for the sessions that it owns.
func (n *Node) Sessions(ctx context.Context) ([]report.Session, error) {
	s, err := n.client.Sessions(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its sessions: %w", n.spec.name, err)
	}
	return s.Sessions, nil
}

// Status asks the node for its health.
func (n *Node) Status(ctx context.Context) (report.Status, error) {
	s, err := n.client.Status(ctx)
	if err != nil {
		return report.Status{}, fmt.Errorf("ask %s for its status: %w", n.spec.name, err)
	}
	return s, nil
}

// Events returns the node's event log, oldest first. It is bounded by the daemon.
func (n *Node) Events(ctx context.Context) ([]report.Event, error) {
	var events []report.Event
	err := n.client.Events(ctx, 0, false, func(e report.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask %s for its events: %w", n.spec.name, err)
	}
	return events, nil
}

// self asks the node for its own entry.
func (n *Node) self(ctx context.Context) (report.Member, error) {
	c, err := n.Members(ctx)
	if err != nil {
		return report.Member{}, err
	}
	m, ok := member(c, n.spec.name)
	if !ok {
		return report.Member{}, fmt.Errorf("ask %s for its members: its answer lacks itself", n.spec.name)
	}
	return m, nil
}
