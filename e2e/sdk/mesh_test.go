package sdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
)

const (
	firstPort   = 25000 // the mesh looks for free ports from here
	stages      = 4
	readyWithin = time.Minute      // a started or restarted host serves
	endWithin   = 40 * time.Second // an answer has ended, one way or another
	idleWithin  = 10 * time.Second // nothing is left of an answer that nobody waits for
	pollEvery   = time.Millisecond
)

// mesh is two pipelines of four stages and a gateway, by which all clients enter.
type mesh struct {
	*devmesh.Mesh
	next int // rotates the stage whose host is killed
}

// start starts the mesh of all tests here. It is stopped with the test; the logs
// stay if the test failed.
func start(t *testing.T) *mesh {
	t.Helper()
	exe := os.Getenv("KEVLARD_BIN")
	if exe == "" {
		t.Fatal("KEVLARD_BIN is not set: make test-sdk sets it to the binary under test")
	}
	o := devmesh.Options{Exe: exe, Nodes: 2 * stages, Stages: stages, Gateways: 1}
	var err error
	if o.BasePort, err = devmesh.FreeBase(firstPort, o.Nodes+o.Gateways); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: with a long test name the control sockets' paths get too long.
	if o.Dir, err = os.MkdirTemp("", "kevlard-sdk-"); err != nil {
		t.Fatal(err)
	}
	d, err := devmesh.Start(t.Context(), o)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(o.Dir)))
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs are kept in %s", o.Dir)
			return
		}
		if err := os.RemoveAll(o.Dir); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	if err := d.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return &mesh{Mesh: d}
}

// poll asks again and again until check returns nil, and gives its last error at
// the deadline.
func poll(ctx context.Context, within time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, err)
		case <-tick.C:
		}
	}
}

// holders returns the two hosts of a stage, counted from 0.
func (m *mesh) holders(stage int) []*devmesh.Node {
	return []*devmesh.Node{m.Node(1 + stage), m.Node(1 + stage + stages)}
}

// whole returns an error unless both hosts of a stage say that they serve it and
// the gateway knows.
func (m *mesh) whole(ctx context.Context, stage int) error {
	for _, n := range m.holders(stage) {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if !s.Ready || len(s.Stages) != 1 || s.Stages[0].State != "ready" {
			return fmt.Errorf("%s does not serve its stage yet", n.Name())
		}
	}
	topology, err := m.Entry().Topology(ctx)
	if err != nil {
		return err
	}
	for _, model := range topology.Models {
		for _, p := range model.Pipelines {
			if stage >= len(p.Stages) || p.Stages[stage].State != "ready" {
				return fmt.Errorf("the gateway does not see stage %d of pipeline %s ready", stage, p.ID)
			}
		}
	}
	return nil
}

// restart starts killed hosts again.
func restart(nodes ...*devmesh.Node) error {
	for _, n := range nodes {
		<-n.Ended()
		if err := n.Restart(); err != nil {
			return err
		}
	}
	return nil
}

// idle waits until no node owns or holds a session.
func (m *mesh) idle(ctx context.Context) error {
	return poll(ctx, idleWithin, func(ctx context.Context) error {
		for _, n := range m.All() {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			if s.Sessions.Owned != 0 || s.Sessions.Hosted != 0 {
				return fmt.Errorf("%s owns %d sessions and holds %d", n.Name(), s.Sessions.Owned, s.Sessions.Hosted)
			}
		}
		return nil
	})
}

// outage kills both hosts of a stage, around which there is no route.
func (m *mesh) outage(ctx context.Context, stage int) error {
	if err := poll(ctx, readyWithin, func(ctx context.Context) error { return m.whole(ctx, stage) }); err != nil {
		return err
	}
	var errs []error
	for _, n := range m.holders(stage) {
		errs = append(errs, n.Kill(syscall.SIGKILL))
	}
	return errors.Join(errs...)
}

// heal ends an outage.
func (m *mesh) heal(ctx context.Context, stage int) error {
	if err := restart(m.holders(stage)...); err != nil {
		return err
	}
	return poll(ctx, readyWithin, func(ctx context.Context) error { return m.whole(ctx, stage) })
}

// rotate chooses the stage to lose a host next: one that can spare it, another one
// each time. The middle ones come first.
func (m *mesh) rotate(ctx context.Context) (int, error) {
	stage := -1
	err := poll(ctx, readyWithin, func(ctx context.Context) error {
		var errs []error
		for i := range stages {
			try := (m.next + 1 + i) % stages
			err := m.whole(ctx, try)
			if err == nil {
				stage, m.next = try, try
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return stage, err
}

// owned returns the gateway's sessions of which old has no name.
func (m *mesh) owned(ctx context.Context, old []string) (ids []string, route []string, tokens int, err error) {
	sessions, err := m.Entry().Sessions(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	for _, s := range sessions {
		if slices.Contains(old, s.ID) {
			continue
		}
		if ids = append(ids, s.ID); len(s.Route) == stages && route == nil {
			route, tokens = s.Route, s.Tokens
		}
	}
	return ids, route, tokens, nil
}
