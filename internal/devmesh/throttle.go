package devmesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Throttle makes the engines of the node slow: in every period they stand still for
// the share stopped of it, until Stop. It checks first that each is a child of the
// daemon. An engine that ends meanwhile, such as by a daemon that has had enough of
// it, is let go; its successor is not slowed.
func (n *Node) Throttle(ctx context.Context, stopped float64, period time.Duration) (*Throttle, error) {
	pids, err := n.EnginePIDs(ctx)
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("slow down the engine of %s: it has none", n.spec.name)
	}
	var engines []*os.Process
	for _, pid := range pids {
		// The handle first, then the check: it is tied to the process that is checked,
		// so a reused pid is never hit.
		p, err := os.FindProcess(pid)
		if err != nil {
			return nil, fmt.Errorf("slow down engine %d of %s: %w", pid, n.spec.name, err)
		}
		engines = append(engines, p)
		if parent, err := parentOf(pid); err != nil || parent != n.PID() {
			return nil, fmt.Errorf("slow down engine %d of %s: it is not a child of the daemon %d but of %d (%v)", pid, n.spec.name, n.PID(), parent, err)
		}
	}
	t := &Throttle{stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { t.ended <- alternate(t.stop, engines, stopped, period) }()
	return t, nil
}

// Throttle is a slowdown under way.
type Throttle struct {
	stop  chan struct{}
	ended chan error
}

// Stop lets the engines run on and returns when they do. It is called once.
func (t *Throttle) Stop() error {
	close(t.stop)
	return <-t.ended
}

// alternate stops and continues the processes in turn; in the end they run.
func alternate(stop <-chan struct{}, processes []*os.Process, stopped float64, period time.Duration) error {
	still := time.Duration(stopped * float64(period))
	tick := time.NewTimer(0)
	defer tick.Stop()
	halt := false
	for {
		select {
		case <-stop:
			return signalAll(processes, syscall.SIGCONT)
		case <-tick.C:
		}
		halt = !halt
		sig, next := syscall.SIGCONT, period-still
		if halt {
			sig, next = syscall.SIGSTOP, still
		}
		if err := signalAll(processes, sig); err != nil {
			return errors.Join(err, signalAll(processes, syscall.SIGCONT))
		}
		tick.Reset(next)
	}
}

// signalAll signals the processes that still run.
func signalAll(processes []*os.Process, sig syscall.Signal) error {
	for _, p := range processes {
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("send %s to engine %d: %w", sig, p.Pid, err)
		}
	}
	return nil
}
