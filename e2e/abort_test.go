package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestAbortedDaemonDiesByTheSignal: what the service manager's watchdog does to a
// daemon that hangs. Go's own way, as after a panic, is to exit with 2 when all stacks
// are printed; but 2 is a mistake in the configuration, after which the unit does not
// start the daemon again.
func TestAbortedDaemonDiesByTheSignal(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 1, Stages: 1, Gateways: 1})
	victim := m.Gateway(1)
	if err := victim.Kill(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	<-victim.Ended()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	err := m.Ready(ctx) // says how a node has ended
	if err == nil || !strings.Contains(err.Error(), victim.Name()+" ended (signal: aborted") {
		t.Errorf("%v, want the end by the signal", err)
	}
}
