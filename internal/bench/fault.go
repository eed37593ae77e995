package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/netfault"
)

// Fault is a way to break a stage host.
type Fault string

// The faults that bench failover can inject.
const (
	Kill       Fault = "kill"        // SIGKILL to the daemon
	Stop       Fault = "stop"        // SIGSTOP to the daemon
	Drop       Fault = "drop"        // its packets vanish, both ways
	EngineKill Fault = "engine-kill" // SIGKILL to its engine
	Slow       Fault = "slow"        // its engine stands still most of the time
)

// Faults returns all faults.
func Faults() []Fault { return []Fault{Kill, Stop, Drop, EngineKill, Slow} }

// ParseFault returns the fault of that name.
func ParseFault(name string) (Fault, error) {
	if f := Fault(name); slices.Contains(Faults(), f) {
		return f, nil
	}
	var names []string
	for _, f := range Faults() {
		names = append(names, string(f))
	}
	return "", fmt.Errorf("--fault %s: want one of %s", name, strings.Join(names, ", "))
}

// Breaker breaks hosts in one way. It breaks one host at a time.
type Breaker struct {
	Fault  Fault
	Wall   netfault.Wall // for Drop
	Share  float64       // for Slow: of each Period that the engine stands still
	Period time.Duration

	throttle *devmesh.Throttle
}

// Break breaks the host and returns when it did.
func (b *Breaker) Break(ctx context.Context, n *devmesh.Node) (time.Time, error) {
	at := time.Now()
	switch b.Fault {
	case Kill:
		return at, n.Kill(syscall.SIGKILL)
	case Stop:
		return at, n.Kill(syscall.SIGSTOP)
	case Drop:
		return at, b.Wall.Cut(ctx, n.IP(), n.Group())
	case EngineKill:
		return n.KillEngine(ctx, syscall.SIGKILL)
	case Slow:
		var err error
		b.throttle, err = n.Throttle(ctx, b.Share, b.Period)
		return time.Now(), err
	}
	panic(fmt.Sprintf("bench: fault %q", b.Fault))
}

// Lift takes the fault away again. A killed daemon is started again, an engine by its
// daemon.
func (b *Breaker) Lift(ctx context.Context, n *devmesh.Node) error {
	switch b.Fault {
	case Kill:
		return restart(ctx, n)
	case Stop:
		return n.Kill(syscall.SIGCONT)
	case Drop:
		return b.Wall.Mend(ctx, n.IP(), n.Group())
	case Slow:
		return b.throttle.Stop()
	}
	return nil
}

// Replace takes the fault away the way an operator of a fail-stop system does: the
// node is started again, whatever state it is in.
func (b *Breaker) Replace(ctx context.Context, n *devmesh.Node) error {
	if b.Fault == Drop {
		if err := b.Lift(ctx, n); err != nil {
			return err
		}
	}
	return restart(ctx, n)
}

// restart kills the daemon if it runs, stopped or not, and starts it again.
func restart(ctx context.Context, n *devmesh.Node) error {
	if n.PID() != 0 {
		if err := n.Kill(syscall.SIGKILL); err != nil && n.PID() != 0 {
			return err
		}
	}
	select {
	case <-n.Ended():
		return n.Restart()
	case <-ctx.Done():
		return fmt.Errorf("wait for %s to end: %w", n.Name(), context.Cause(ctx))
	}
}
