// Package movertest is what every mover.Mover must do, as tests. A transport's own
// tests call Run with a way to make small networks of its movers.
package movertest

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// Network is a few nodes that know one another. The functions fail the test by
// themselves; what they made ends with the test.
type Network struct {
	// Start makes the mover of a node, and all nodes of the network know it from then on.
	Start func(node kevlard.NodeID, h mover.Handler) mover.Mover
	// Cut breaks all connections that were made to a node; new ones get through.
	Cut func(node kevlard.NodeID)
	// Freeze makes the ways to a node swallow what is sent there from now on, without
	// an error that the sender could see.
	Freeze func(node kevlard.NodeID)
}

// deadline is how long a test waits for what must come; generous, for loaded machines.
const deadline = 30 * time.Second

// quick is for tests in which a mover has to give up, patient for those in which it must
// not, although the machine is loaded and handlers stand still.
const (
	quick   = 3 * time.Second
	patient = 60 * time.Second
)

// Run runs the suite. newNetwork is called for each test, with how long the movers are to
// wait without progress before they break a connection.
func Run(t *testing.T, newNetwork func(t *testing.T, stall time.Duration) Network) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Network)
	}{
		{"Order", testOrder},
		{"Parts", testParts},
		{"Empty", testEmpty},
		{"BothWays", testBothWays},
		{"Refused", testRefused},
		{"Oversized", testOversized},
		{"UnknownPeer", testUnknownPeer},
		{"DiesMidPiece", testDiesMidPiece},
		{"OrderOverCuts", testOrderOverCuts},
		{"CancelWaiting", testCancelWaiting},
		{"CancelMidPiece", testCancelMidPiece},
		{"SlowReceiver", testSlowReceiver},
		{"CloseSends", testCloseSends},
		{"CloseWhileSending", testCloseWhileSending},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, newNetwork(t, patient)) })
	}
	t.Run("Blackhole", func(t *testing.T) { testBlackhole(t, newNetwork(t, quick)) })
	t.Run("Leaks", func(t *testing.T) {
		testLeaks(t, func(t *testing.T) Network { return newNetwork(t, patient) })
	})
}

// until waits for a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}
